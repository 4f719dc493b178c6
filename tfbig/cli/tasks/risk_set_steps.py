"""Steps of `--survival-loss cox` on risk sets of `--accumulate` bags or images, each computed alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfbig import sources
from tfbig.cli.settings.tasks import ImageSettings, MILSettings
from tfbig.mil.target_losses import Survival
from tfbig.system import keras_internals
from tfbig.training.risk_sets import RiskSets
from tfbig.training.shared_risk_sets import SharedRiskSets


def by_risk_sets(settings: MILSettings | ImageSettings) -> bool:
    """Tell whether a step is that of a whole risk set, whose members are computed one at a time."""
    return settings.survival_loss == "cox" and settings.mode != "patchgd"


def items_of_step(settings: MILSettings | ImageSettings) -> int:
    """Count the training bags or images of a step: those of a batch or of a risk set."""
    return settings.accumulate if by_risk_sets(settings) else settings.batch_size


def worker_of(
    settings: MILSettings | ImageSettings, dense: bool
) -> Callable[[Any], RiskSets] | None:
    """A function that makes the worker of a compiled model that trains it by risk sets; None without them.

    `dense` says whether the model reads tensors instead of handles.
    """
    if not by_risk_sets(settings):
        return None

    def worker(model: Any) -> RiskSets:
        kind = RiskSets if keras_internals.strategy_of(model) is None else SharedRiskSets
        return kind(model, _observations, _read if dense else None)

    return worker


def _observations(labels: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    known = np.asarray(labels)
    return known[:, Survival.RANK], known[:, Survival.EVENT]


def _read(handle: Any) -> Any:
    member = sources.resolve(handle.numpy().decode())
    return tf.convert_to_tensor(member.read(0, member.shape[0])[None])

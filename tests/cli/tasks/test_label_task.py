"""What tasks with labels share: steps of the optimizer, and means over repeats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tfbig.cli.data.images import ImageSet
from tfbig.cli.data.run_data import Data
from tfbig.cli.settings.tasks import ImageSettings, MILSettings
from tfbig.cli.tasks import fitting, label_task
from tfbig.cli.tasks.images import ImageTask
from tfbig.cli.tasks.label_task import LabelTask
from tfbig.cli.tasks.mil import MIL
from tfbig.cli.tasks.task import Models
from tfbig.mil import BagSet
from tfbig.sources import ArrayBag


def test_means_over_repeats() -> None:
    """A metric that is not defined is left out."""
    repeats = [{"auc": 0.5, "qwk": float("nan")}, {"auc": 0.7, "qwk": 0.1}]
    means, deviations = label_task.means_and_deviations(repeats)
    assert means == {"test_auc": 0.6}
    np.testing.assert_allclose(deviations["test_auc"], 0.1)


COX = {
    "target": "survival",
    "survival_loss": "cox",
    "monitor": "loss",
    "accumulate": 4,
    "batch_size": 1,
}
BAGS = tuple(ArrayBag(np.zeros((2, 3), np.float32), str(number)) for number in range(10))
LABELS = np.array([[number, 1, number] for number in range(10)])


@pytest.mark.parametrize(
    ("task", "settings", "part"),
    [
        (MIL(), MILSettings, BagSet(BAGS, LABELS)),
        (ImageTask(), ImageSettings, ImageSet(BAGS, LABELS)),
    ],
)
def test_risk_sets_are_counted_alike(
    task: LabelTask[Any], settings: Any, part: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The optimizer steps once for each risk set of 4, an epoch has 3 of them."""
    chosen, steps = settings(**COX, optimizer="demon_adam", epochs=5), []
    data = Data.of([part], cases=tuple("abcdefghij"))
    monkeypatch.setattr(type(task), "network", lambda *_: Models(None, None))
    monkeypatch.setattr(fitting, "compile_both", lambda models, optimizer, *_: optimizer)
    monkeypatch.setattr(
        fitting, "fit_and_keep", lambda models, _, __, training, *___: steps.append(training.steps)
    )
    optimizer: Any = task.models(chosen, data)
    assert optimizer.get_config()["steps"] == 15
    monkeypatch.setattr(label_task.risk_set_steps, "worker_of", lambda *_: None)
    task.fit(Models(None, None), chosen, data, None)  # type: ignore[arg-type]
    assert steps == [3]

"""Train a U-Net on satellite scenes: classes or values of every pixel."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

import tfbig
from tfbig.cli import machine
from tfbig.cli.data import scenes
from tfbig.cli.data.scenes import LabelledScene, SceneData
from tfbig.cli.paths import FlagError
from tfbig.cli.settings.scene_settings import SceneSettings
from tfbig.cli.tasks import fitting, run_results, scene_results
from tfbig.cli.tasks.task import Curve, History, Models, Plans, Task
from tfbig.data.worker_shards import Shard
from tfbig.models.unet import unet
from tfbig.training import Epochs

AVERAGED = "mean_with_sample_weight"
"""Reduction of the losses: the mean over the pixels that have a label."""
LOSSES = {"class": ("cross_entropy",), "regression": ("mse", "huber")}
"""Losses of each target; the first is the default."""


class Scenes(Task[SceneSettings, SceneData]):
    """Training and evaluation with `--task scenes`."""

    def resolved(self, settings: SceneSettings) -> SceneSettings:
        """Return the settings, after checking that they fit each other.

        Raises:
            FlagError: They do not.
        """
        allowed = LOSSES[settings.target]
        if settings.loss not in (None, *allowed):
            raise FlagError(
                f"--loss {settings.loss}: --target {settings.target} has {' and '.join(allowed)}. Choose one of these."
            )
        return settings

    def load(self, settings: SceneSettings) -> SceneData:
        """Return the scenes, and print what they are."""
        data = scenes.load(settings)
        if not settings.test_only:
            scenes.check_crop(settings, data.train)
        return data

    def models(self, settings: SceneSettings, data: SceneData) -> Models:
        """Return new models, compiled."""
        keras.config.set_dtype_policy(settings.precision)
        keras.utils.set_random_seed(settings.seed)
        twin = machine.synchronize_norm(settings, make_model(settings))
        model = twin if machine.is_plain(settings) else _stream(twin, settings)
        optimizer = fitting.make_optimizer(settings, _steps(settings, data))
        weights = [fitting.loss_weight(settings)]
        for each in dict.fromkeys((twin, model)):
            each.compile(
                optimizer,
                make_loss(settings),
                loss_weights=weights,
                weighted_metrics=_metrics(settings),
            )
        return Models(model, twin)

    def plans(self, models: Models, settings: SceneSettings, data: SceneData) -> Plans | None:
        """Return the plans of a training and a validation step; None for plain Keras."""
        if settings.test_only or models.model is models.twin:
            return None
        size = scenes.crop_of(settings)
        if size is None:
            training, validation = (_largest(part) for part in (data.train, data.val))
        else:
            shape = (settings.batch_size, *size, data.train[0].image.shape[2])
            training = validation = shape
        return Plans(models.model.plan(training), models.model.plan(validation, training=False))

    def fit(
        self, models: Models, settings: SceneSettings, data: SceneData, folder: Path
    ) -> History:
        """Train from the last checkpoint, and return the history of all epochs."""
        epochs, validation = _epochs(settings, data)
        return fitting.fit_and_keep(
            models, settings, folder, epochs, validation, f"val_{settings.monitor}"
        )

    def curve(self, settings: SceneSettings) -> Curve:
        """Return what the learning curve shows."""
        if settings.target == "class":
            return Curve({"loss": "cross-entropy", "accuracy": "accuracy"}, "validation scenes")
        loss = (settings.loss or LOSSES["regression"][0]).upper()
        return Curve({"loss": loss, "mae": "mean absolute error"}, "validation scenes")

    def write_results(
        self,
        models: Models,
        settings: SceneSettings,
        data: SceneData,
        folder: Path,
        measured: Mapping[str, Any],
    ) -> None:
        """Write predictions and pictures of the test scenes, and last the metrics."""
        measured = {**measured, **run_results.tested_on(settings, data.test)}
        scene_results.write(models, settings, data.unseen, folder, measured)


def make_model(settings: SceneSettings) -> keras.Model:
    """Return a new network.

    Args:
        settings: Settings of the run, with what the data decided.
    """
    assert settings.mean is not None and settings.std is not None
    build = partial(
        unet, settings.mean, settings.std, filters=settings.filters, depth=settings.depth
    )
    if settings.target == "regression":
        return build(1, None, values=settings.value_scale)
    return build(len(settings.class_names or ()))


def make_loss(settings: SceneSettings) -> keras.losses.Loss:
    """Return the loss, a mean over the pixels that have a label.

    Args:
        settings: Settings of the run.
    """
    name = settings.loss or LOSSES[settings.target][0]
    if name == "cross_entropy":
        return keras.losses.SparseCategoricalCrossentropy(reduction=AVERAGED)
    if name == "mse":
        return keras.losses.MeanSquaredError(reduction=AVERAGED)
    assert settings.value_scale is not None
    return keras.losses.Huber(delta=settings.value_scale[1], reduction=AVERAGED)


def _metrics(settings: SceneSettings) -> list[keras.metrics.Metric]:
    if settings.target == "class":
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
    return [keras.metrics.MeanAbsoluteError(name="mae")]


def _stream(twin: Any, settings: SceneSettings) -> Any:
    """Return the model streamed strip by strip, with the same variables."""
    budget = machine.budget(settings)
    return tfbig.stream(twin, budget, devices=settings.devices, source_dtype="float32")


def _largest(parts: tuple[LabelledScene, ...]) -> Any:
    """Return the image of the scene with the most pixels that are computed."""

    def computed(image: Any) -> float:
        share = 1.0 if image.background is None else image.background.share
        return float(np.prod(image.shape[:2])) * share

    return max((part.image for part in parts), key=computed)


def _steps(settings: SceneSettings, data: SceneData) -> int:
    """Return the number of batches of an epoch; the last may be smaller."""
    return -(-_items(settings, data) // settings.batch_size)


def _items(settings: SceneSettings, data: SceneData) -> int:
    return settings.crops if scenes.crop_of(settings) else len(data.train)


def _epochs(settings: SceneSettings, data: SceneData) -> tuple[Epochs, Epochs]:
    """Return the crops to train on, drawn again in every epoch, and those for validation, always the same."""
    dense, size, count = (
        machine.is_plain(settings),
        scenes.crop_of(settings),
        _items(settings, data),
    )

    @lru_cache(maxsize=2)  # a dataset does not hold its crops
    def drawn(epoch: int) -> list[LabelledScene]:
        return scenes.draw(data.train, size, count, [settings.seed, epoch])

    whole = [*data.val]
    if size is not None:
        fits = [s for s in whole if min(np.subtract(s.filled.scene.shape[:2], size)) >= 0]
        if fits:
            whole = scenes.draw(fits, size, settings.crops, [settings.seed])

    def batches(shard: Shard) -> Any:
        chosen = [drawn(shard.epoch)[i] for i in shard.items(count, settings.batch_size)]
        return scenes.dataset(chosen, settings.batch_size, dense)

    def validation(shard: Shard) -> Any:
        return scenes.dataset([whole[i] for i in shard.items(len(whole), 1)], 1, dense)

    names = [f"{s.name} {s.image.shape}" for s in data.train]
    return Epochs(_steps(settings, data), batches, names), Epochs(len(whole), validation)

"""Train a U-Net on satellite scenes: classes or values of every pixel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

import tfbig
from tfbig.cli import machine
from tfbig.cli.data import dense_items, scenes
from tfbig.cli.data.run_data import Data
from tfbig.cli.data.scenes import LabelledScene
from tfbig.cli.paths import FlagError
from tfbig.cli.settings.scene_settings import SceneSettings
from tfbig.cli.tasks import scene_results
from tfbig.cli.tasks.dense_task import DenseTask, Judged
from tfbig.cli.tasks.task import Curve, Models
from tfbig.models.unet import unet
from tfbig.training import Epochs

AVERAGED = "mean_with_sample_weight"
"""Reduction of the losses: the mean over the pixels that have a label."""
LOSSES = {"class": ("cross_entropy",), "regression": ("mse", "huber")}
"""Losses of each target; the first is the default."""


class Scenes(DenseTask[SceneSettings]):
    """Training and evaluation with `--task scenes`."""

    measured = ("loss", "val_loss", "seconds_per_step")
    parts = dense_items.WEIGHTED
    pictures = None

    def resolved(self, settings: SceneSettings) -> SceneSettings:
        """Check that the settings fit each other.

        Raises:
            FlagError: They do not.
        """
        allowed = LOSSES[settings.target]
        if settings.loss not in (None, *allowed):
            raise FlagError(
                f"--loss {settings.loss}: --target {settings.target} has {' and '.join(allowed)}. Choose one of these."
            )
        return settings

    def opened(self, settings: SceneSettings) -> Data:
        """Open the scenes, and print what they are."""
        data = scenes.load(settings)
        if not settings.test_only:
            scenes.check_crop(settings, data.train.items)
        return data

    def network(self, settings: SceneSettings, data: Data) -> keras.Model:
        """Build a new U-Net."""
        return make_model(settings)

    def streamed(self, settings: SceneSettings, twin: keras.Model) -> Any:
        """Stream the network."""
        budget = machine.budget(settings)
        return tfbig.stream(twin, budget, devices=settings.devices, source_dtype="float32")

    def predicting(self, models: Models, settings: SceneSettings) -> Models:
        """The models with a streamed one, which writes predictions block by block."""
        if models.model is not models.twin:
            return models
        budget = machine.budget(settings)
        return Models(tfbig.stream(models.twin, budget, source_dtype="float32"), models.twin)

    def loss(self, settings: SceneSettings) -> keras.losses.Loss:
        """The loss, a mean over the pixels that have a label."""
        return make_loss(settings)

    def metrics(self, settings: SceneSettings, data: Data) -> list[keras.metrics.Metric]:
        """The accuracy of classes, or the mean absolute error of values."""
        if settings.target == "class":
            return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
        return [keras.metrics.MeanAbsoluteError(name="mae")]

    def crop(self, settings: SceneSettings) -> tuple[int, int] | None:
        """The rows and columns of a crop, or None for whole scenes."""
        return scenes.crop_of(settings)

    def training(self, settings: SceneSettings, data: Data) -> Epochs:
        """Epochs of crops at random places that have a label."""
        size, count = scenes.crop_of(settings), self.count(settings, data)
        return self.epochs_of(
            settings, data, lambda seed: scenes.draw(data.train.items, size, count, seed)
        )

    def validated(self, settings: SceneSettings, data: Data) -> Sequence[LabelledScene]:
        """Crops, always the same, or whole scenes where these are trained on or are smaller than a crop."""
        size, cropped = scenes.crop_of(settings), _cropped(settings, data)
        return (
            scenes.draw(cropped, size, settings.crops, [settings.seed])
            if cropped
            else data.val.items
        )

    def largest_validated(self, settings: SceneSettings, data: Data) -> Any:
        """The shape of a crop, for which no crop is drawn, or the largest whole scene."""
        size = scenes.crop_of(settings)
        if size is None or not _cropped(settings, data):
            return super().largest_validated(settings, data)
        return (1, *size, data.val.items[0].image.shape[-1])

    def curve(self, settings: SceneSettings) -> Curve:
        """Return what the learning curve shows."""
        if settings.target == "class":
            return Curve({"loss": "cross-entropy", "accuracy": "accuracy"}, "validation scenes")
        loss = (settings.loss or LOSSES["regression"][0]).upper()
        return Curve({"loss": loss, "mae": "mean absolute error"}, "validation scenes")

    def judge(
        self,
        models: Models,
        settings: SceneSettings,
        data: Data,
        item: LabelledScene,
        folder: Path,
        draws: bool,
    ) -> Judged:
        """Predict a scene as a COG, draw it, and count how it agrees with the labels."""
        counts = scene_results.evaluate(models, settings, item, folder)
        return Judged({"scene": item.name, **scene_results.metrics_of(counts)}, counts)

    def results(
        self, settings: SceneSettings, judged: Sequence[Judged], folder: Path
    ) -> dict[str, float]:
        """Compute the metrics of all pixels together, and write a table of the classes."""
        return scene_results.together(settings, [each.counts for each in judged], folder)


def _cropped(settings: SceneSettings, data: Data) -> list[LabelledScene]:
    """The scenes for validation that are cropped: those that crops fit into; empty if scenes are whole."""
    size = scenes.crop_of(settings)
    if size is None:
        return []
    return [s for s in data.val.items if min(np.subtract(s.filled.scene.shape[:2], size)) >= 0]


def make_model(settings: SceneSettings) -> keras.Model:
    """Build a network, by settings with what the data decided."""
    assert settings.mean is not None and settings.std is not None
    build = partial(
        unet, settings.mean, settings.std, filters=settings.filters, depth=settings.depth
    )
    if settings.target == "regression":
        return build(1, None, values=settings.value_scale)
    return build(len(settings.class_names or ()))


def make_loss(settings: SceneSettings) -> keras.losses.Loss:
    """The loss, a mean over the pixels that have a label."""
    name = settings.loss or LOSSES[settings.target][0]
    if name == "cross_entropy":
        return keras.losses.SparseCategoricalCrossentropy(reduction=AVERAGED)
    if name == "mse":
        return keras.losses.MeanSquaredError(reduction=AVERAGED)
    assert settings.value_scale is not None
    return keras.losses.Huber(delta=settings.value_scale[1], reduction=AVERAGED)

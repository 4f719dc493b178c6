"""Predict the class, risk or value of a whole slide, streamed or by PatchGD, and the attention of PatchGD's head."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

import tfbig
from tfbig import sources
from tfbig.cli import machine, slide_batch
from tfbig.cli.data import background, stain
from tfbig.cli.data.background import Masking
from tfbig.cli.predictors import results
from tfbig.cli.predictors.predictor import Predictor
from tfbig.cli.predictors.results import Config
from tfbig.cli.settings.slide_settings import PredictSettings
from tfbig.cli.tasks import images
from tfbig.cli.tasks.class_target import ClassTarget
from tfbig.sources.names import title_of
from tfbig.sources.slides.slide import Slide


class Images(Predictor):
    """Predictor for networks of a whole image: a streamed Keras model, or a PatchGD model."""

    def __init__(self, settings: PredictSettings, plain: Any, config: Config) -> None:
        super().__init__(settings)
        self.config = config
        self.by_patches = isinstance(plain, tfbig.PatchGD)
        settings = background.resolved(settings, config)
        if self.by_patches:
            background.refuse(settings, results.BY_PATCHES)
        self.masking = Masking.of(settings)
        whole = plain.encoder if self.by_patches else plain
        head = plain.head if self.by_patches else plain
        self.last = getattr(head, "layers", [head])[-1]
        self.target = results.target_of(settings, _num_classes(plain, config), config)
        settings = replace(
            settings,
            input=results.input_of(settings, whole.inputs[0].shape[-1]),
            class_names=results.names_of(self.target),
        )
        level = config.get("level", 0)
        self.settings = results.with_resolution(settings, config, level=level)
        self.model = (
            plain
            if self.by_patches
            else tfbig.stream(plain, machine.budget(settings), unsupported="device")
        )

    def predict(self, path: Path, slide: Slide) -> str:
        """Predict a slide, write the results and return a line to print."""
        settings = self.settings
        image = slide.at(**slide_batch.resolution(settings))
        image = stain.normalised(image, slide, self.config.get("stain", stain.NONE))
        if self.masking is not None and not settings.dry_run:
            image = self.masking.apply(slide, image)
        source = self._of_side(results.network_input(image, settings))
        if settings.dry_run:
            return (
                f"{slide.describe()}: would be read at {source.shape[0]} x {source.shape[1]} pixels"
            )
        with source.lent() as handle:
            outputs = self.model.predict_on_batch(tf.constant([handle]))[0]
        computed = results.computed(self.model, source, source) if self.masking else {}
        predicted = self._predicted(outputs)
        row = results.slide_columns(path, source) | self.target.columns(predicted)
        prediction = self.target.caption(predicted)
        title = f"{title_of(path)}: {prediction}"
        if self.by_patches and hasattr(self.model.head, "attention"):
            self._write_attention(path, slide, source, title)
        else:
            shown = background.overlays(image) if self.masking else []
            slide_batch.write_view(settings, path, slide, shown, title)
        self.write_row(row | computed)
        size = f"{source.shape[0]} x {source.shape[1]}"
        return f"{path.name}: {size}, {prediction}{results.in_words(computed)}"

    def _predicted(self, outputs: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Turn outputs of the network, which may be probabilities of classes already, into a prediction."""
        if isinstance(self.target, ClassTarget):
            return results.class_probabilities(outputs, self.last)
        predicted: npt.NDArray[Any] = self.target.predicted(outputs[None])[0]
        return predicted

    def _of_side(self, source: sources.Source) -> sources.Source:
        """Scale the image to `--side` of the run, as its images were."""
        side = self.config.get("side")
        if not side:
            return source
        if self.config.get("keep_aspect"):
            return sources.CenterCropped(source, side)
        return sources.Scaled(source, (side, side))

    def _write_attention(
        self, path: Path, slide: Slide, source: sources.Source, title: str
    ) -> None:
        with source.lent() as handle:
            z = self.model.latent(tf.constant([handle]))
        bag, attention = images.attention_by_code(self.model, source, z)
        (rows, columns), (top, left) = _place_of_pixels(slide, source)
        corners = np.rint(np.asarray(bag.coords) * (columns, rows) + (left, top)).astype(np.int64)
        coords = sources.Coords(slide.title, corners, bag.shape[1], columns, row_step=rows)
        results.write_attention(self.settings, path, slide, coords, attention, title)


def _place_of_pixels(
    slide: Slide, source: sources.Source
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Measure a pixel of an image in pixels of level 0: its height and width, and row and column of the first."""
    whole, first = source.shape[:2], (0, 0)
    if isinstance(source, sources.CenterCropped):
        whole, first = source.scaled_size, source.corner
    rows, columns = (n / m for n, m in zip(slide.shape, whole, strict=False))
    return (rows, columns), (rows * first[0], columns * first[1])


def _num_classes(plain: Any, config: Config) -> int:
    """The number of classes or labels; one output, not of a run on labels, is the second of two classes."""
    count = _num_outputs(plain)
    return count if config.get("target") == "multilabel" else max(count, 2)


def _num_outputs(plain: Any) -> int:
    """The number of outputs of a model."""
    if not isinstance(plain, tfbig.PatchGD):
        return int(plain.output_shape[-1])
    if isinstance(plain.head, keras.Model):
        return int(plain.head.output_shape[-1])
    codes = (1, 2, 2, plain.encoder.output_shape[-1])
    return int(plain.head.compute_output_shape(codes)[-1])

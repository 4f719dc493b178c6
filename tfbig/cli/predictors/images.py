"""Whole images to classes, streamed or by PatchGD: what a slide is taken for, and where PatchGD's head looks."""

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfbig
from tfbig import sources
from tfbig.cli import machine, slide_batch
from tfbig.cli.predictors import results
from tfbig.cli.tasks import patchgd
from tfbig.sources.slides.slide import title_of


class Images:
    """A network from a whole image to classes: any Keras model, streamed, or one of PatchGD.

    Args:
        settings: of the command; what is not given is set.
        plain: the model.
        config: of its run, or nothing.
    """

    def __init__(self, settings, plain, config):
        self.settings, self.folder, self.config = settings, Path(settings.out), config
        self.by_patches = isinstance(plain, tfbig.PatchGD)
        whole = plain.encoder if self.by_patches else plain
        head = plain.head if self.by_patches else plain
        self.last = getattr(head, "layers", [head])[-1]
        results.settle_input(settings, whole.inputs[0].shape[-1])
        results.settle_classes(settings, max(_outputs(plain), 2), config.get("class_names"))
        results.settle_resolution(settings, config, level=config.get("level", 0))
        self.model = (
            plain
            if self.by_patches
            else tfbig.stream(plain, machine.budget(settings), unsupported="device")
        )

    def finished(self, path):
        """Whether the slide was done before: its row is written last."""
        return results.is_noted(self.folder, path)

    def predict(self, path, slide):
        """Everything about one slide; gives a line about it."""
        settings = self.settings
        source = results.seen(slide.at(**slide_batch.resolution(settings)), settings)
        side = self.config.get("side")
        source = sources.Scaled(source, (side, side)) if side else source
        if settings.dry_run:
            return f"{slide.describe()}: would be seen at {source.shape[0]} x {source.shape[1]}"
        with source.lent() as handle:
            outputs = self.model.predict_on_batch(tf.constant([handle]))[0]
        shares = results.chances(outputs, self.last)
        row = results.of_slide(path, source) | results.of_classes(settings.classes, shares)
        told = f"{row['predicted']} {shares.max():.1%}"
        if self.by_patches and hasattr(self.model.head, "attention"):
            self._write_attention(path, slide, source, f"{title_of(path)}: {told}")
        else:
            slide_batch.write_view(settings, path, slide, [])
        results.note(self.folder, row)
        return f"{path.name}: {source.shape[0]} x {source.shape[1]}, {told}"

    def _write_attention(self, path, slide, source, title):
        with source.lent() as handle:
            z = self.model.latent(tf.constant([handle]))
        bag, attention = patchgd.attention_by_code(self.model, source, z)
        steps = [n / m for n, m in zip(slide.shape[:2], source.shape[:2], strict=True)]
        corners = np.rint(bag.coords * steps[::-1]).astype(np.int64)
        coords = sources.Coords(slide.title, corners, bag.shape[1], sum(steps) / 2)
        results.write_attention(self.settings, path, slide, coords, attention, title)


def _outputs(plain):
    """How many numbers a model gives."""
    if not isinstance(plain, tfbig.PatchGD):
        return plain.output_shape[-1]
    if isinstance(plain.head, keras.Model):
        return plain.head.output_shape[-1]
    return plain.head.compute_output_shape((1, 2, 2, plain.encoder.output_shape[-1]))[-1]

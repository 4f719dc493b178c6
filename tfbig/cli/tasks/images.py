"""Train a network on large images with a label each, whole or by patch gradient descent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

import tfbig
from tfbig import sources
from tfbig.cli import machine, messages
from tfbig.cli.data import background, dense_items, images
from tfbig.cli.data.run_data import Data
from tfbig.cli.paths import FlagError
from tfbig.cli.settings import patch_settings
from tfbig.cli.settings.run_settings import EXACT_MODES
from tfbig.cli.settings.tasks import ImageSettings
from tfbig.cli.tasks import encoder_weights, evaluation, risk_set_steps
from tfbig.cli.tasks.label_task import LabelTask, Predicted
from tfbig.cli.tasks.target import Numbers, Row, Target
from tfbig.cli.tasks.task import Models, Plans
from tfbig.data.worker_shards import ALL_BATCHES, Shard
from tfbig.models import encoders, latent, series
from tfbig.patchgd import PatchGD
from tfbig.results import figures

Shape = tuple[int | None, ...]
"""Extents and channels of images; None where they differ."""
INNER_GRID = "inner_grid"
"""Name of the latent grid of a patch, in a hierarchy."""
MOST_MAPS = 4
"""Largest number of test images whose latent grid is drawn."""


class ImageTask(LabelTask[ImageSettings]):
    """Training and evaluation with `--task images`."""

    def resolved(self, settings: ImageSettings) -> ImageSettings:
        """Fill in defaults; in an evaluation, take what the training set of the run decided.

        Raises:
            SourceError: Flags contradict each other.
        """
        settings = super().resolved(settings)
        if settings.inner_patch and settings.encoder == "series":
            raise FlagError("--inner-patch: series have no hierarchy, only images. Remove it.")
        if settings.mode == "patchgd":
            patch_settings.check_steps(settings)
        settings = background.resolved(settings)
        if settings.mode == "patchgd" or settings.images != "slides":
            background.refuse(
                settings,
                "background is skipped only on --images slides that go through the network whole, with --mode "
                f"{', '.join(EXACT_MODES)}. Remove it.",
            )
        settings = encoder_weights.with_scale(settings)
        return replace(settings, code=_code(settings))

    def opened(self, settings: ImageSettings) -> Data:
        """Return the images, all of which have room for a patch.

        Raises:
            FlagError: One has not.
        """
        data = images.load(settings)
        if settings.mode == "patchgd" and settings.encoder != "series":
            every = (image for part in data.sets.values() for image in part.images)
            sizes = ((image.name, image.shape) for image in every)
            dense_items.check_crop(sizes, (settings.patch, settings.patch), 1, part="patch")
        return data

    def load(self, settings: ImageSettings) -> Data:
        """Return the images, and print what they are and how much of them is computed."""
        data = super().load(settings)
        if settings.background == "skip":
            masked = [image for part in data.sets.values() for image in part.images]
            print(background.describe((Path(image.name).name, image) for image in masked))
        return data

    def sizes(self, part: images.ImageSet) -> str:
        """Return the smallest and the largest shape, in words."""
        shapes = sorted({image.shape for image in part.images})
        words = [" x ".join(map(str, shape)) for shape in (shapes[0], shapes[-1])]
        return f"of {words[0]}" if len(shapes) == 1 else f"of {words[0]} to {words[1]}"

    def network(self, settings: ImageSettings, data: Data, num_outputs: int) -> Models:
        """Return new models: the same twice, or a streamed model and its plain one."""
        keras.config.set_dtype_policy(settings.precision)
        keras.utils.set_random_seed(settings.seed)
        shape = images.image_shape(data, settings.images == "slides" and not settings.side)
        if settings.encoder == "series":
            model = _series(settings, shape, num_outputs)
            return Models(model, model)
        if settings.mode != "patchgd":
            return _baseline(settings, shape, num_outputs)
        model = machine.synchronize_norm(settings, _by_patches(settings, shape, num_outputs))
        return Models(model, model)

    def plans(self, models: Models, settings: ImageSettings, data: Data) -> Plans | None:
        """The plans of the largest images."""
        if settings.mode != "offload":
            return None
        training, validation = (
            models.model.plan(largest(part, settings), learns)
            for part, learns in ((data.train, True), (data.val, False))
        )
        return Plans(training, validation)

    def batches(
        self,
        settings: ImageSettings,
        data: Data,
        part: images.ImageSet,
        shard: Shard = ALL_BATCHES,
        learns: bool = False,
        weights: npt.NDArray[np.float32] | None = None,
    ) -> tf.data.Dataset:
        """Return the images of a split, weighted if classes have weights."""
        if learns:
            settings = replace(settings, batch_size=risk_set_steps.items_of_step(settings))
        dense = self.is_dense(settings) and not risk_set_steps.by_risk_sets(settings)
        found = images.dataset(part, settings, learns, shard, dense)
        return found if weights is None else found.map(lambda x, y: (x, y, tf.gather(weights, y)))

    def predicted(
        self,
        models: Models,
        settings: ImageSettings,
        target: Target,
        part: images.ImageSet,
        repeat: int = 0,
    ) -> Predicted:
        """Predict the images of a split."""
        batches = images.dataset(part, settings, dense=self.is_dense(settings))
        outputs = models.model.predict(batches.map(lambda x, *_: x), verbose=0)
        predictions = target.predicted(outputs)
        return Predicted(predictions, target.judged(predictions, part))

    def first_columns(self, item: Any) -> Row:
        """Return the name of an image."""
        return {"image": item.name}

    def rows(
        self,
        models: Models,
        settings: ImageSettings,
        target: Target,
        data: Data,
        predictions: Numbers,
    ) -> list[Row]:
        """Return a row for each test image, with how much of it is computed if background is skipped."""
        rows = super().rows(models, settings, target, data, predictions)
        if settings.background != "skip":
            return rows
        streams, test = settings.mode == "offload", data.judged.images
        plans = (models.model.plan(image, training=False) if streams else None for image in test)
        shares = map(background.shares, test, plans)
        return [{**row, **share} for row, share in zip(rows, shares, strict=True)]

    def draw(
        self,
        models: Models,
        settings: ImageSettings,
        target: Target,
        data: Data,
        folder: Path,
        predicted: Predicted,
    ) -> None:
        """Draw the latent grid of test images."""
        if settings.mode == "patchgd" and settings.encoder != "series":
            draw_latent(models.model, target, predicted.predictions, data, folder)


def _code(settings: ImageSettings) -> str | None:
    """The code of a patch, where the model has codes."""
    if settings.mode != "patchgd" or settings.encoder == "series":
        return settings.code
    return settings.code or ("vector" if settings.images == "slides" else "map")


def largest(part: images.ImageSet, settings: ImageSettings) -> tuple[int, ...] | sources.Source:
    """The shape of a batch of the largest images of a split, or the image with the most foreground."""
    if settings.background == "skip" and settings.batch_size == 1:
        most: sources.Source = max(part.images, key=background.foreground_pixels)
        return most
    return (settings.batch_size, *max((image.shape for image in part.images), key=np.prod))


def _baseline(settings: ImageSettings, shape: Shape, num_outputs: int) -> Models:
    """Build the network of whole images, which is streamed in mode offload."""
    options = {"latent": settings.latent, "width": settings.head_width, **_scale(settings)}
    plain = latent.baseline(settings.encoder, shape, num_outputs, settings.head, **options)
    encoder_weights.load(plain, settings)
    machine.synchronize_norm(settings, plain)
    if machine.is_plain(settings):
        return Models(plain, plain)
    budget = machine.budget(settings)
    big = tfbig.stream(
        plain, budget, devices=settings.devices, unsupported="device", plain_if_small=False
    )
    return Models(big, plain)  # heads that cannot be streamed use whole tensors


def _by_patches(settings: ImageSettings, shape: Shape, num_outputs: int) -> PatchGD:
    """Build the PatchGD model of an encoder and a head.

    Raises:
        SourceError: Flags contradict each other, or `--encoder-weights` cannot be used.
    """
    side = settings.inner_patch or settings.patch
    _check_inner_patch(settings)
    patch = (side, side, shape[-1])
    options = {"latent": settings.latent, "pooled": settings.code == "vector", **_scale(settings)}
    try:
        encoder = encoders.make(settings.encoder, patch, **options)
    except ValueError as error:
        raise FlagError(
            f"a patch of {side} x {side} pixels is too small for --encoder {settings.encoder}. Use a larger --patch, "
            "or --inner-patch."
        ) from error
    encoder_weights.load(encoder, settings)
    if settings.inner_patch:
        encoder = _of_inner_patches(settings, encoder, settings.inner_patch)
    cells = _cells(settings, shape, encoder.output_shape[1:-1])
    width = settings.head_width
    head = latent.make_head(settings.head, num_outputs, cells, settings.latent, width)
    return _patchgd(settings, encoder, head, shape)


def _check_inner_patch(settings: ImageSettings) -> None:
    """Check that inner patches tile a patch.

    Raises:
        SourceError: They do not.
    """
    patch, inner_patch = settings.patch, settings.inner_patch
    if inner_patch and (patch % inner_patch or patch == inner_patch):
        raise FlagError(
            f"--inner-patch {inner_patch}: does not tile a patch of {patch} pixels. Use a divisor of --patch."
        )


def _of_inner_patches(settings: ImageSettings, encoder: Any, inner_patch: int) -> Any:
    """Build an encoder of patches by a latent grid of inner patches and a head: a hierarchy (appendix B)."""
    patch = settings.patch
    image = keras.Input((patch, patch, encoder.input_shape[-1]))
    grid = tfbig.patchgd.LatentGrid(
        encoder,
        inner_patch,
        sampling=settings.inner_sampling,
        encoder_scale=settings.encoder_scale,
        filling_norm=settings.filling_norm,
        seed=settings.seed,
        name=INNER_GRID,
    )
    z = tfbig.patchgd.SideBySide(2, name="inner_map")(grid(image))
    cells, width = tuple(z.shape[1:3]), settings.head_width
    head = latent.make_head(settings.head, settings.latent, cells, settings.latent, width)
    return keras.Model(image, head(z), name=f"grid_of_{encoder.name}")


def _scale(settings: ImageSettings) -> dict[str, Any]:
    """The scale of pixels, for networks that do not scale them."""
    scaled_outside = settings.encoder in encoders.NETWORKS
    return {"mean": settings.mean, "std": settings.std} if scaled_outside else {}


def _cells(settings: ImageSettings, shape: Shape, inside: Sequence[int]) -> tuple[int, int] | None:
    """The rows and columns of Z, or None if images differ in size.

    `inside` are the rows and columns of the map of a patch, or empty.
    """
    extents = [extent for extent in shape[:-1] if extent is not None]
    if len(extents) < len(shape) - 1:
        return None
    stride = settings.patch_stride or settings.patch
    try:
        grid = tfbig.patchgd.PatchGrid(tuple(extents), (settings.patch,) * 2, (stride,) * 2)
        rows, columns = (n * m for n, m in zip(grid.cells, inside or (1, 1), strict=True))
        return rows, columns
    except ValueError as error:
        raise FlagError(f"--patch {settings.patch}: {messages.in_flags(error)}") from error


def _series(settings: ImageSettings, shape: Shape, num_outputs: int) -> Any:
    """Build the networks of the paper for time series."""
    if settings.mode == "offload":
        raise FlagError("--encoder series: series fit in memory; use --mode device or patchgd.")
    length, channels = (extent or 0 for extent in shape)
    rate, hidden = (0.0, None) if settings.head == "linear" else (series.RATE, series.HIDDEN)
    if settings.mode != "patchgd":
        return series.baseline(length, channels, num_outputs, rate, hidden)
    encoder = series.encoder(settings.patch, channels, rate)
    head = series.head(num_outputs, length // settings.patch, encoder.output_shape[-1], hidden)
    return _patchgd(settings, encoder, head, shape)


def _patchgd(settings: ImageSettings, encoder: Any, head: Any, shape: Shape) -> PatchGD:
    """Build the PatchGD model of an encoder and a head.

    Raises:
        FlagError: Patches are to be drawn by the attention of a head that has none.
    """
    if settings.sampler == "attention" and not hasattr(head, "attention"):
        raise FlagError(
            f"--sampler attention: --head {settings.head} has none. Use --head abmil or transformer, or another "
            "--sampler."
        )
    accumulate = settings.inner_accumulate
    return PatchGD(
        encoder,
        head,
        settings.patch,
        settings.patch_stride,
        settings.sampling,
        settings.inner_steps,
        accumulate if isinstance(accumulate, int) else None,
        sampler=settings.sampler,
        encoder_scale=settings.encoder_scale,
        filling_norm=settings.filling_norm,
        patches_at_once=settings.patches_at_once,
        image_shape=shape,
        source_dtype="float32" if settings.encoder == "series" else "uint8",
        seed=settings.seed,
    )


def draw_latent(
    model: PatchGD, target: Target, predictions: npt.NDArray[Any], data: Data, folder: Path
) -> None:
    """Draw the latent grid of the first test images, and the attention of a head that has one."""
    test = data.judged
    for number, (image, label) in enumerate(
        zip(test.images[:MOST_MAPS], test.labels, strict=False)
    ):
        with image.lent() as handle:
            z = model.latent(tf.constant([handle]))
        truth = evaluation.in_words(target.truth(label, data))
        title = f"{image.name}: {truth}, predicted {target.caption(predictions[number])}"
        figures.latent_grid(folder / f"latent_{number}.png", image, z[0].numpy(), title)
        if hasattr(model.head, "attention"):
            bag, attention = attention_by_code(model, image, z)
            evaluation.draw_attention(folder, f"attention_{number}", bag, attention, title)


def attention_by_code(
    model: PatchGD, image: Any, z: Any
) -> tuple[sources.Patches, npt.NDArray[Any]]:
    """Show each code of Z as a patch, with its attention; by patch if maps do not tile the image."""
    patch, inside = model.patch, model.encoder.output_shape[1:-1]
    sizes = zip(image.shape[:-1], patch, inside, strict=False)
    if inside and model.stride == patch and not any(n % p or p % m for n, p, m in sizes):
        cell = tuple(p // m for p, m in zip(patch, inside, strict=True))
        return sources.Patches(image, cell), np.asarray(model.head.attention(z))[0]
    by_patch = np.asarray(model.attention_of(z))[0]
    return sources.Patches(image, patch, model.stride), by_patch

"""Train a network on large images with a label each, whole or by patch gradient descent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

import tfbig
from tfbig import SourceError, sources
from tfbig.cli import failure_log, machine
from tfbig.cli.data import background, images
from tfbig.cli.data.run_data import Data
from tfbig.cli.settings import target_settings
from tfbig.cli.settings.run_settings import EXACT_MODES
from tfbig.cli.settings.tasks import ImageSettings
from tfbig.cli.tasks import (
    encoder_weights,
    evaluation,
    fitting,
    risk_set_steps,
    run_results,
    targets,
)
from tfbig.cli.tasks.target import Row, Target
from tfbig.cli.tasks.task import Curve, History, Models, Plans, Task
from tfbig.data.worker_shards import ALL_BATCHES, Shard
from tfbig.models import encoders, latent, series
from tfbig.patchgd import PatchGD
from tfbig.results import figures, run_folder
from tfbig.training import Epochs

Shape = tuple[int | None, ...]
"""Extents and channels of images; None where they differ."""
INNER_GRID = "inner_grid"
"""Name of the latent grid of a patch, in a hierarchy."""
MAPS = 4
"""Largest number of test images whose latent grid is drawn."""


class ImageTask(Task[ImageSettings]):
    """Training and evaluation with `--task images`."""

    def resolved(self, settings: ImageSettings) -> ImageSettings:
        """Return the settings without gaps, with what an evaluated run decided.

        Raises:
            SourceError: Flags contradict each other.
        """
        target_settings.check(settings)
        if settings.test_only:
            settings = replace(settings, **targets.of_evaluated_run(settings))
        if settings.inner_patch and settings.encoder == "series":
            raise SourceError("--inner-patch: series have no hierarchy, only images. Remove it.")
        settings = background.resolved(settings)
        if settings.mode == "patchgd" or settings.images != "slides":
            background.refuse(
                settings,
                "background is skipped only on --images slides that go through the network whole, with --mode "
                f"{', '.join(EXACT_MODES)}. Remove it.",
            )
        settings = encoder_weights.with_scale(settings)
        return replace(settings, code=_code(settings))

    def load(self, settings: ImageSettings) -> Data:
        """Return the images, and print what they are."""
        data = images.load(settings)
        print(f"mode {settings.mode}, encoder {settings.encoder}, precision {settings.precision}")
        decided = targets.decided(settings, data)
        target = targets.of(replace(settings, **decided), data)
        images.print_counts(data, targets.counter(target))
        if settings.background == "skip":
            parts = [data.test] if settings.test_only else [data.train, data.val, data.test]
            masked = [image for part in parts for image in part.images]
            print(background.describe((Path(image.name).name, image) for image in masked))
        return replace(data, decided={**data.decided, **decided})

    def models(self, settings: ImageSettings, data: Data) -> Models:
        """Return new models, compiled with one optimizer."""
        target = targets.of(settings, data)
        models = make_models(settings, data, target.num_outputs)
        steps = images.steps(data.train, _of_steps(settings))
        optimizer = fitting.make_optimizer(settings, steps)
        loss, weights = self.loss(target), [fitting.loss_weight(settings)]
        return fitting.compile_both(
            models, optimizer, loss, weights, lambda: self.metrics(target, data)
        )

    def loss(self, target: Target) -> Any:
        """Return the loss of the model."""
        return target.loss()

    def metrics(self, target: Target, data: Data) -> list[Any]:
        """Return the metrics of an epoch."""
        return target.metrics(data)

    def is_dense(self, settings: ImageSettings) -> bool:
        """Return whether the model reads tensors instead of handles."""
        return machine.is_plain(settings)

    def plans(self, models: Models, settings: ImageSettings, data: Data) -> Plans | None:
        """Return the plans of the largest images."""
        if settings.mode != "offload":
            return None
        training, validation = (
            models.model.plan(largest(part, settings), learns)
            for part, learns in ((data.train, True), (data.val, False))
        )
        return Plans(training, validation)

    def fit(self, models: Models, settings: ImageSettings, data: Data, folder: Path) -> History:
        """Train from the last checkpoint, and return the history of all epochs."""
        target = targets.of(settings, data)
        weights = fitting.class_weights(settings, data)
        training, validation = (
            Epochs(
                images.steps(part, own),
                partial(self.batches, target, data, split, own, of_split),
                fitting.item_names(part.images, part.labels),
            )
            for part, split, own, of_split in (
                (data.train, "train", _of_steps(settings), weights),
                (data.val, "val", settings, None),
            )
        )
        monitor = f"val_{settings.monitor}"
        worker = risk_set_steps.worker_of(settings, machine.is_plain(settings))
        return fitting.fit_and_keep(models, settings, folder, training, validation, monitor, worker)

    def curve(self, settings: ImageSettings) -> Curve:
        """Return what the learning curve shows."""
        return Curve(dict(targets.TARGETS[settings.target].curves), "validation images")

    def write_results(
        self,
        models: Models,
        settings: ImageSettings,
        data: Data,
        folder: Path,
        measured: Mapping[str, Any],
    ) -> None:
        """Write predictions, pictures, and last the metrics."""
        failure_log.write_readable(
            lambda rest: self._write(models, settings, rest, folder, measured),
            data,
            folder,
            settings.strict,
        )

    def batches(
        self,
        target: Target,
        data: Data,
        split: str,
        settings: ImageSettings,
        weights: npt.NDArray[np.float32] | None = None,
        shard: Shard = ALL_BATCHES,
    ) -> tf.data.Dataset:
        """Return the images of a split with the labels of the target, weighted if there are weights.

        Args:
            target: What is predicted.
            data: Data of the run.
            split: Name of the split.
            settings: Settings of the run.
            weights: Weights of the classes, or None.
            shard: Batches of this worker, and the epoch to start with.
        """
        part = getattr(data, split)
        part = replace(part, labels=target.labels(part, data))
        dense = self.is_dense(settings) and not risk_set_steps.by_risk_sets(settings)
        found = images.dataset(part, settings, split == "train", shard, dense)
        return found if weights is None else found.map(lambda x, y: (x, y, tf.gather(weights, y)))

    def _write(
        self,
        models: Models,
        settings: ImageSettings,
        data: Data,
        folder: Path,
        measured: Mapping[str, Any],
    ) -> None:
        """Write the results of images that can be read."""
        target, model = targets.of(settings, data), models.model

        def predict(part: images.ImageSet) -> npt.NDArray[Any]:
            batches = images.dataset(part, settings, dense=self.is_dense(settings))
            return target.predicted(model.predict(batches.map(lambda x, *_: x), verbose=0))

        predictions = predict(data.test)
        rows = _with_shares(_rows(target, predictions, data), model, settings, data)
        run_folder.write_csv(folder / run_folder.PREDICTIONS, rows)
        reference = target.reference(predict, data, settings.test_only)
        results = target.write(folder, [predictions], data.test, reference)
        if settings.mode == "patchgd" and settings.encoder != "series":
            draw_latent(model, target, predictions, data, folder)
        merits = target.judged(predictions, data.test)
        numbers = {f"test_{key}": value for key, value in merits.items() if value == value}
        results["left_out"] = [list(reason) for reason in data.failed]
        run_results.write_metrics(folder, settings, {**measured, **numbers, **results})
        run_results.print_results(numbers, folder)


def _rows(target: Target, predictions: npt.NDArray[Any], data: Data) -> list[Row]:
    """Return a row for each test image."""
    return [
        {"image": image.name, **target.truth(label, data), **target.columns(prediction)}
        for image, label, prediction in zip(
            data.test.images, data.test.labels, predictions, strict=True
        )
    ]


def _of_steps(settings: ImageSettings) -> ImageSettings:
    """Return the settings with the images of a step as those of a batch."""
    return replace(settings, batch_size=risk_set_steps.items_of_step(settings))


def _code(settings: ImageSettings) -> str | None:
    """Return the code of a patch, where the model has codes."""
    if settings.mode != "patchgd" or settings.encoder == "series":
        return settings.code
    return settings.code or ("vector" if settings.images == "slides" else "map")


def largest(part: images.ImageSet, settings: ImageSettings) -> tuple[int, ...] | sources.Source:
    """Return the shape of a batch of the largest images of a split, or the image with the most foreground."""
    if settings.background == "skip" and settings.batch_size == 1:
        most: sources.Source = max(part.images, key=background.foreground_pixels)
        return most
    return (settings.batch_size, *max((image.shape for image in part.images), key=np.prod))


def make_models(settings: ImageSettings, data: Data, num_outputs: int) -> Models:
    """Return new models: the same twice, or a streamed model and its plain one."""
    keras.config.set_dtype_policy(settings.precision)
    keras.utils.set_random_seed(settings.seed)
    shape = images.image_shape(data, any_size=settings.images == "slides" and not settings.side)
    if settings.encoder == "series":
        model = _series(settings, shape, num_outputs)
        return Models(model, model)
    if settings.mode != "patchgd":
        return _baseline(settings, shape, num_outputs)
    model = machine.synchronize_norm(settings, _by_patches(settings, shape, num_outputs))
    return Models(model, model)


def _baseline(settings: ImageSettings, shape: Shape, num_outputs: int) -> Models:
    """Return the network of whole images, which is streamed in mode offload."""
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
    """Return the PatchGD model of an encoder and a head.

    Raises:
        SourceError: Flags contradict each other, or `--encoder-weights` cannot be used.
    """
    if settings.accumulate > 1 and settings.inner_accumulate != "all":
        raise SourceError(
            f"--accumulate {settings.accumulate}: accumulates gradients over steps, but with --inner-accumulate "
            f"{settings.inner_accumulate} the optimizer steps within each. Use --inner-accumulate all."
        )
    side = settings.inner_patch or settings.patch
    _check_inner_patch(settings)
    patch = (side, side, shape[-1])
    options = {"latent": settings.latent, "pooled": settings.code == "vector", **_scale(settings)}
    try:
        encoder = encoders.make(settings.encoder, patch, **options)
    except ValueError as error:
        raise SourceError(
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
        raise SourceError(
            f"--inner-patch {inner_patch}: does not tile a patch of {patch} pixels. Use a divisor of --patch."
        )


def _of_inner_patches(settings: ImageSettings, encoder: Any, inner_patch: int) -> Any:
    """Return an encoder of patches by a latent grid of inner patches and a head: a hierarchy (appendix B).

    Args:
        settings: Settings of the run.
        encoder: Encoder of an inner patch.
        inner_patch: Rows and columns of an inner patch.
    """
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
    """Return the scale of pixels, for networks that do not scale them."""
    scaled_outside = settings.encoder in encoders.NETWORKS
    return {"mean": settings.mean, "std": settings.std} if scaled_outside else {}


def _cells(settings: ImageSettings, shape: Shape, inside: Sequence[int]) -> tuple[int, int] | None:
    """Return rows and columns of Z, or None if images differ in size.

    Args:
        settings: Settings of the run.
        shape: Shape of the images.
        inside: Rows and columns of the map of a patch, or an empty tuple.
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
        raise SourceError(f"--patch {settings.patch}: {error}") from error


def _series(settings: ImageSettings, shape: Shape, num_outputs: int) -> Any:
    """Return the networks of the paper for time series."""
    if settings.mode == "offload":
        raise SourceError("--encoder series: series fit in memory; use --mode device or patchgd.")
    length, channels = (extent or 0 for extent in shape)
    rate, hidden = (0.0, None) if settings.head == "linear" else (series.RATE, series.HIDDEN)
    if settings.mode != "patchgd":
        return series.baseline(length, channels, num_outputs, rate, hidden)
    encoder = series.encoder(settings.patch, channels, rate)
    head = series.head(num_outputs, length // settings.patch, encoder.output_shape[-1], hidden)
    return _patchgd(settings, encoder, head, shape)


def _patchgd(settings: ImageSettings, encoder: Any, head: Any, shape: Shape) -> PatchGD:
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


def _with_shares(
    table: Sequence[Mapping[str, Any]], model: Any, settings: ImageSettings, data: Data
) -> list[Mapping[str, Any]]:
    """Return the rows of the test images, and if background is skipped, how much of each is computed."""
    if settings.background != "skip":
        return [*table]
    streams, test = settings.mode == "offload", data.test.images
    plans = (model.plan(image, training=False) if streams else None for image in test)
    shares = map(background.shares, test, plans)
    return [{**row, **share} for row, share in zip(table, shares, strict=True)]


def draw_latent(
    model: PatchGD, target: Target, predictions: npt.NDArray[Any], data: Data, folder: Path
) -> None:
    """Draw the latent grid of the first test images, and the attention of a head that has one."""
    test = data.test
    for number, (image, label) in enumerate(zip(test.images[:MAPS], test.labels, strict=False)):
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
    """Return each code of Z as a patch, with its attention; by patch if maps do not tile the image."""
    patch, inside = model.patch, model.encoder.output_shape[1:-1]
    sizes = zip(image.shape[:-1], patch, inside, strict=False)
    if inside and model.stride == patch and not any(n % p or p % m for n, p, m in sizes):
        cell = tuple(p // m for p, m in zip(patch, inside, strict=True))
        return sources.Patches(image, cell), np.asarray(model.head.attention(z))[0]
    by_patch = np.asarray(model.attention_of(z))[0]
    return sources.Patches(image, patch, model.stride), by_patch

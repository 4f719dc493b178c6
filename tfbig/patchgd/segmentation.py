"""PatchGD for segmentation: an encoder fills Z, a decoder fills the mask from Z, and both learn from a few patches.

Gupta et al., "Patch gradient descent: training neural networks on very large images", appendix E, which describes it
and gives no results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfbig import sources
from tfbig.patchgd import inner_loop, patch_sampling, slice_encoder
from tfbig.patchgd.latent_grid import LatentGrid, filled, interleaved, replaced, side_by_side
from tfbig.patchgd.patch_model import Filling, PatchModel
from tfbig.patchgd.patch_reader import Patches
from tfbig.streaming import gradient_step
from tfbig.system import tf_errors


@keras.saving.register_keras_serializable(package="tfbig")
class Mask(keras.layers.Layer):
    """Z `[N, *cells, ...]` to the mask `[N, *extents, K]`: the decoder of every cell and of those around it.

    Args:
        decoder: takes a window of Z, `[B, *(map * (1 + 2 * context)), d]`, to `[B, *(patch * (1 + 2 * context)), K]`,
            of which the middle is kept.
        patch: of the image, for each axis.
        context: cells on each side that the decoder sees besides; zeros outside the image.
    """

    def __init__(
        self, decoder: keras.Model, patch: Sequence[int], context: int = 0, **options: Any
    ) -> None:
        super().__init__(**options)
        self.decoder, self.patch, self.context = decoder, tuple(patch), context
        self.autocast = False
        self.cropped = _cropped(decoder, self.patch, context)

    def build(self, shape: Any) -> None:
        self.built = True

    def call(self, z: Any, training: bool | None = None) -> Any:
        cells = slice_encoder.sizes(z)[1 : 1 + len(self.patch)]
        windows = Windows(z, len(self.patch), self.context)
        count = prod(cells) if all(isinstance(n, int) for n in cells) else tf.reduce_prod(cells)
        places = tf.tile(tf.range(count)[None], [tf.shape(z)[0], 1])
        masks = slice_encoder.encode(self.cropped, windows.take, places, count, bool(training))
        return assembled(masks, cells, self.patch)

    def compute_output_shape(self, shape: Any) -> Any:
        cells = shape[1 : 1 + len(self.patch)]
        extents = [
            None if n is None else n * size for n, size in zip(cells, self.patch, strict=True)
        ]
        return (shape[0], *extents, self.decoder.outputs[0].shape[-1])

    def compute_output_spec(self, z: Any, training: bool | None = None) -> Any:
        return keras.KerasTensor(self.compute_output_shape(z.shape), self.decoder.outputs[0].dtype)

    def get_config(self) -> dict[str, Any]:
        decoder = keras.saving.serialize_keras_object(self.decoder)
        own = {"decoder": decoder, "patch": self.patch, "context": self.context}
        return super().get_config() | own

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Mask:
        config = dict(config)
        decoder = keras.saving.deserialize_keras_object(config.pop("decoder"), custom_objects)
        return cls(decoder, **config)


class Windows:
    """Cells of Z with those around them, as maps.

    Args:
        z: `[N, *cells, *map, d]`; the map of a cell may have no axes, it then is one number wide.
        axes: of the image.
        context: cells on each side; zeros outside.
    """

    def __init__(self, z: tf.Tensor, axes: int, context: int) -> None:
        batch, *sizes = slice_encoder.sizes(z)
        self.axes, self.context = axes, context
        cells, inside = sizes[:axes], sizes[axes:]
        self.map = tuple(inside[:-1]) or (1,) * axes
        z = tf.reshape(z, [batch, *cells, *self.map, inside[-1]])
        edges = [[0, 0], *[[context, context]] * axes, *[[0, 0]] * (axes + 1)]
        padded = [n + 2 * context for n in cells]
        every = prod(padded) if all(isinstance(n, int) for n in padded) else -1
        self._cells, self._padded = cells, padded
        self._flat = tf.reshape(tf.pad(z, edges), [batch, every, *self.map, inside[-1]])

    def take(self, places: tf.Tensor) -> tf.Tensor:
        """The windows around cells `[N, k]`, `[N, k, *window, d]`."""
        count, across = places.shape[1], 1 + 2 * self.context
        first = tf.zeros_like(places)
        rest, step = places, 1
        for cells, padded in reversed(list(zip(self._cells, self._padded, strict=True))):
            first += rest % cells * step
            rest, step = rest // cells, step * padded
        offsets = []
        for place in product(range(across), repeat=self.axes):
            offset = 0
            for number, padded in zip(place, self._padded, strict=True):
                offset = offset * padded + number
            offsets.append(offset)
        near = first[..., None] + tf.stack(offsets)
        found = tf.gather(self._flat, near, batch_dims=1)  # [N, k, cells, *map, d]
        shape = tf.shape(places)
        found = tf.reshape(
            found, [shape[0], shape[1], *[across] * self.axes, *self.map, found.shape[-1]]
        )
        found = tf.transpose(found, [0, 1, *interleaved(2, self.axes), 2 + 2 * self.axes])
        window = [across * n for n in self.map]
        found = tf.reshape(found, [shape[0], shape[1], *window, found.shape[-1]])
        return tf.ensure_shape(found, [places.shape[0], count, *window, found.shape[-1]])


def assembled(patches: tf.Tensor, cells: Sequence[Any], patch: Sequence[int]) -> tf.Tensor:
    """Patches `[N, n, *patch, K]` of a grid without overlap as an image `[N, *extents, K]`."""
    apart = tf.reshape(
        patches, [slice_encoder.sizes(patches)[0], *cells, *patch, patches.shape[-1]]
    )
    return side_by_side(apart, len(patch))


@keras.saving.register_keras_serializable(package="tfbig")
class PatchGDSegmentation(PatchModel):
    """Patch Gradient Descent for masks (appendix E).

    A training step on a batch of images:

        Z = encoder(every patch)                            without a gradient: Z-filling
        y = decoder(every cell of Z)                        without a gradient: y-filling
        for k in range(inner_steps):
            Z[set k] = encoder(patches of set k)            with a gradient
            y[set k] = decoder(cells of set k)              with a gradient
            gradients += those of loss(labels, y) / accumulate
            every `accumulate` inner steps: the optimizer applies them

    With `sampling=1.0`, one inner step, and neither BatchNormalization nor dropout it equals training of the plain
    model (`twin`). Of a loss that is a mean over pixels, encoder and decoder both get the share of the exact gradient
    that the sets have of the patches; `scale="unbiased"` makes it whole where `context` is 0, and with context but
    for what a decoder sees of stale neighbours.

    Args:
        encoder: a patch `[B, *patch, C]` to a map `[B, *map, d]` or a code `[B, d]`.
        decoder: a window of Z to a mask patch, see `Mask`.
        patch: rows and columns of a patch, or one number for all axes; the image is a multiple of it
            (`tfbig.sources.Padded` makes it one).
        sampling, inner_steps, accumulate, filling_norm, patches_at_once, source_dtype,
        latent_on_host, seed: as in `tfbig.PatchGD`.
        context: cells around each that the decoder sees besides.
        sampler: "shuffle" or "replacement".
        scale: "published" or "unbiased"; of use with `fill_mask`, without it the loss is a mean over the set anyway.
        fill_mask: False leaves out y-filling: the loss is that of the set alone, which is the same but for its share
            where losses are means over pixels, and nothing as large as the image is held. True is needed for losses of
            the whole mask, such as Dice.
        label_dtype: element type of labels given by handle.

    Inputs and labels are tensors `[N, *extents, C]` and `[N, *extents, K or 1]`, or handles `[N]`.

    Raises:
        ValueError: an argument is none that there is, or the decoder's windows do not go with the encoder's maps.
        SourceError: an image or its labels cannot be read, or are no multiple of the patch.
    """

    PARTS = ("encoder", "decoder")
    SETTINGS = ("context", "scale", "fill_mask", "label_dtype")

    def __init__(
        self,
        encoder: keras.Model,
        decoder: keras.Model,
        patch: int | Sequence[int],
        sampling: float | int = 0.25,
        inner_steps: int | None = None,
        accumulate: int | None = 1,
        *,
        context: int = 0,
        sampler: str = "shuffle",
        scale: str = "published",
        filling_norm: str = "published",
        fill_mask: bool = True,
        patches_at_once: int | None = None,
        source_dtype: str = "uint8",
        label_dtype: str = "uint8",
        latent_on_host: bool | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            encoder,
            patch,
            None,
            sampling,
            inner_steps,
            accumulate,
            sampler,
            scale,
            filling_norm,
            patches_at_once,
            source_dtype,
            latent_on_host,
            seed,
            **options,
        )
        if sampler == "attention":
            raise ValueError(
                "sampler='attention': a decoder has none; choose 'shuffle' or 'replacement'."
            )
        self.decoder = decoder
        self.context, self.scale, self.fill_mask = context, scale, fill_mask
        self.label_dtype = label_dtype
        self._mask = Mask(decoder, self.patch, context, name="mask")
        self.built = True

    @property
    def twin(self) -> keras.Model:
        """The plain model with the same layers: all patches in one pass."""
        spec = self.encoder.inputs[0]
        image = keras.Input((*[None] * len(self.patch), spec.shape[-1]), dtype=spec.dtype)
        z = LatentGrid(self.encoder, self.patch, name="latent_grid")(image)
        return keras.Model(image, self._mask(z), name=f"plain_{self.name}")

    def patches(self, images: Any, exact: bool = True) -> Patches:
        return super().patches(images, exact)

    def call(self, images: Any, training: bool | None = None) -> Any:
        patches = self.patches(images)
        size = self.slice(patches)
        codes = slice_encoder.encode(
            self.encoder, patches.take, patches.places(), size, bool(training)
        )
        return self._mask(self.shaped(codes, patches), training=training)

    def _stepped(self, data: Any) -> gradient_step.Gradients:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        step = _Step(self, x, y, sample_weight)
        gradients, found, loss = step.run()
        self._loss_tracker.update_state(
            gradient_step.unscaled(loss), sample_weight=step.patches.batch
        )
        labels, masks = step.compared(*found)
        return gradients, self.compute_metrics(x, labels, masks, sample_weight)

    def test_step(self, data: Any) -> dict[str, Any]:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        masks = self(x, training=False)
        patches = self.patches(x)
        labels = self._labels(y)
        y = assembled(labels.take(patches.places()), patches.cells, self.patch)
        loss = self.compute_loss(x, y, masks, sample_weight, training=False)
        self._loss_tracker.update_state(loss, sample_weight=tf.shape(masks)[0])
        return self.compute_metrics(x, y, masks, sample_weight)

    @tf_errors.unwrapped
    def predict_to(
        self, image: Any, path: str, convert: Callable[..., Any] | None = None
    ) -> sources.Source:
        """Predicts one image of any size into a `.npy` file, a row of patches at a time; Z is held, the mask is not.

        Args:
            image: a `Source`, a path or an array `[H, W, C]`.
            path: file to write; it appears under this name only when complete.
            convert: from rows of the prediction, `[r, W, K]`, to what is written of them, as in
                `StreamedModel.predict_to`.

        Returns:
            The prediction `[H, W, K]`, converted, as a source.

        Raises:
            SourceError: the image cannot be read, or the file not written.
        """
        source = sources.open(image)
        convert, made = convert or (lambda rows: rows), self.decoder.outputs[0]
        pixel = convert(np.zeros((1, 1, made.shape[-1]), made.dtype))
        shape = (*source.shape[:2], *pixel.shape[2:])
        with source.lent() as handle, sources.write_npy(path, shape, pixel.dtype) as writer:
            patches = self.patches(tf.constant([handle]))
            codes = slice_encoder.fill(
                self.encoder, patches.take, patches.places(), self.slice(patches), False
            )
            windows = Windows(self.shaped(codes, patches), len(self.patch), self.context)
            rows, columns = (int(n) for n in patches.cells)
            for row in range(rows):
                places = tf.range(row * columns, (row + 1) * columns)[None]
                masks = slice_encoder.fill(self._mask.cropped, windows.take, places, columns, False)
                band = assembled(masks, (1, columns), self.patch)[0]
                writer.write(row * self.patch[0], convert(band.numpy()))
        return sources.open(path)

    def _labels(self, labels: Any) -> Patches:
        labels = tf.convert_to_tensor(labels)
        channels = 1 if labels.dtype == tf.string else labels.shape[-1]
        return Patches(labels, self.patch, self.patch, channels, self.label_dtype, exact=True)


class _Step(Filling):
    """One training step: Z-filling, y-filling, and what an inner step is."""

    def __init__(self, model: PatchGDSegmentation, x: Any, y: Any, sample_weight: Any) -> None:
        super().__init__(model, x, model.scale, exact=True)
        self.model, self.x, self.sample_weight = model, x, sample_weight
        self.labels = model._labels(y)

    def run(self) -> tuple[list[Any], Any, tf.Tensor]:
        """Gradients that were not applied, `(places, masks)` of what was compared last, the mean of the losses."""
        model = self.model
        codes = filled(model, self.patches, self.slice, self.seed, self.on_host)
        every = self.patches.places()
        places, masks = every[:, :0], self._masks(codes, every[:, :0])
        if model.fill_mask:
            training = model.filling_norm == "published"
            places = every
            masks = slice_encoder.fill(
                model._mask.cropped, self._windows(codes).take, places, self.slice, training
            )
        known = places.shape[1] if model.fill_mask else None
        batch = places.shape[0]
        shapes = (
            codes.shape,
            tf.TensorShape([batch, known]),
            tf.TensorShape([batch, known, *masks.shape[2:]]),
        )
        state = codes, places, masks
        gradients, state, loss = inner_loop.run(model, self.total, self._inner, state, shapes)
        return gradients, state[1:], loss

    def compared(self, places: tf.Tensor, masks: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Labels and predictions as images: the whole ones, or patches of a set one below the other."""
        cells: Sequence[Any] = self.patches.cells
        if not self.model.fill_mask:
            cells = (slice_encoder.sizes(places)[1], *[1] * (len(self.model.patch) - 1))
        patch = self.model.patch
        return assembled(self.labels.take(places), cells, patch), assembled(masks, cells, patch)

    def _inner(self, step: tf.Tensor, state: Any) -> tuple[list[Any], tf.Tensor, Any]:
        model, (codes, places, masks) = self.model, state
        own, weights = self.choose(step, lambda: codes)
        with tf.GradientTape() as tape:
            fresh = slice_encoder.encode(model.encoder, self.patches.take, own, self.slice)
            with slice_encoder.placed(self.on_host):
                codes = replaced(codes, own, fresh)
            found = self._masks(codes, own, training=True)
            if model.fill_mask:
                masks = replaced(masks, own, patch_sampling.weighted(found, weights))
            else:
                places, masks = own, found
            labels, predicted = self.compared(places, masks)
            loss = model.compute_loss(self.x, labels, predicted, self.sample_weight, training=True)
            scaled = model.optimizer.scale_loss(loss)
        return tape.gradient(scaled, self.variables), loss, (codes, places, masks)

    def _windows(self, codes: tf.Tensor) -> Windows:
        z = self.model.shaped(codes, self.patches)
        return Windows(z, len(self.model.patch), self.model.context)

    def _masks(self, codes: tf.Tensor, places: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Mask patches of some cells, with a gradient for Z too."""
        windows = self._windows(codes).take(places)
        return slice_encoder.applied(self.model._mask.cropped, windows, training)


def _cropped(decoder: keras.Model, patch: tuple[int, ...], context: int) -> keras.Model:
    """The decoder, and of what it gives the middle."""
    (window,), (mask,) = decoder.inputs, decoder.outputs
    size = tuple(n * (1 + 2 * context) for n in patch)
    made = decoder.compute_output_shape((None, *window.shape[1:]))
    if any(a is not None and a != b for a, b in zip(made[1:-1], size, strict=False)):
        raise ValueError(
            f"decoder '{decoder.name}' makes {tuple(made[1:-1])} of windows {tuple(window.shape[1:-1])}; expected "
            f"{size}, patches of {patch} with a context of {context}."
        )
    image = keras.Input(window.shape[1:], dtype=window.dtype)
    found = decoder(image)
    edges = tuple(context * n for n in patch)
    middle = (slice(None), *[slice(edge, edge + n) for edge, n in zip(edges, patch, strict=True)])
    found = found[middle] if context else found
    kept = keras.layers.Reshape((*patch, mask.shape[-1]))(found)
    return keras.Model(image, kept, name=decoder.name)

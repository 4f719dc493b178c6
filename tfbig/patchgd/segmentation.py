"""PatchGD for segmentation: an encoder fills Z, a decoder fills the mask from Z, and both learn from a few patches.

Gupta et al., "Patch gradient descent: training neural networks on very large images", appendix E, which describes the
method without results.
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
from tfbig.patchgd.base_model import PatchModel, TrainingStep
from tfbig.patchgd.latent_grid import LatentGrid, filled, interleaved, replaced, side_by_side
from tfbig.patchgd.patch_reader import PatchReader
from tfbig.streaming import gradient_step
from tfbig.system import keras_internals, tf_errors
from tfbig.system.parts import WithParts


@keras.saving.register_keras_serializable(package="tfbig")
class Mask(WithParts, keras.layers.Layer):
    """Layer from Z `[N, *cells, ...]` to the mask `[N, *extents, K]`: decodes every cell with the cells around it.

    Args:
        decoder: Keras model from windows of Z, `[B, *(map * (1 + 2 * context)), d]`, to `[B, *(patch * (1 + 2 *
            context)), K]`; the middle is kept.
        patch: Size of a patch of the image along each axis.
        context: Number of adjacent cells on each side that the decoder sees too; zeros outside the image.
        **options: Options of `keras.layers.Layer`, such as `name`.
    """

    PARTS = ("decoder",)

    def __init__(
        self, decoder: keras.Model, patch: Sequence[int], context: int = 0, **options: Any
    ) -> None:
        super().__init__(**options)
        self.decoder, self.patch, self.context = decoder, tuple(patch), context
        self.autocast = False
        self.cropped = _cropped(decoder, self.patch, context)

    def build(self, shape: Any) -> None:
        """Mark the layer as built; the decoder has its weights already."""
        self.built = True

    def call(self, z: Any, training: bool | None = None) -> Any:
        """Return the mask of Z."""
        cells = slice_encoder.sizes(z)[1 : 1 + len(self.patch)]
        windows = Windows(z, len(self.patch), self.context)
        count = prod(cells) if all(isinstance(n, int) for n in cells) else tf.reduce_prod(cells)
        indices = tf.tile(tf.range(count)[None], [tf.shape(z)[0], 1])
        masks = slice_encoder.encode(self.cropped, windows.take, indices, count, bool(training))
        return assembled(masks, cells, self.patch)

    def compute_output_shape(self, shape: Any) -> Any:
        """Return the shape of the mask."""
        cells = shape[1 : 1 + len(self.patch)]
        extents = [
            None if n is None else n * size for n, size in zip(cells, self.patch, strict=True)
        ]
        return (shape[0], *extents, self.decoder.outputs[0].shape[-1])

    def compute_output_spec(self, z: Any, training: bool | None = None) -> Any:
        """Return the shape and dtype of the mask."""
        return keras.KerasTensor(self.compute_output_shape(z.shape), self.decoder.outputs[0].dtype)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the layer."""
        own = {"patch": self.patch, "context": self.context}
        return super().get_config() | own | self.parts_config()


class Windows:
    """Cells of Z with the cells around them, as maps.

    Args:
        z: `[N, *cells, *map, d]`; the map of a cell may have no axes, and counts as a map of one code then.
        axes: Number of axes of the image.
        context: Number of cells on each side; zeros outside the image.
    """

    def __init__(self, z: tf.Tensor, axes: int, context: int) -> None:
        batch, *sizes = slice_encoder.sizes(z)
        self.axes, self.context = axes, context
        cells, map_and_depth = sizes[:axes], sizes[axes:]
        self.map = tuple(map_and_depth[:-1]) or (1,) * axes
        z = tf.reshape(z, [batch, *cells, *self.map, map_and_depth[-1]])
        edges = [[0, 0], *[[context, context]] * axes, *[[0, 0]] * (axes + 1)]
        padded = [n + 2 * context for n in cells]
        total = prod(padded) if all(isinstance(n, int) for n in padded) else -1
        self._cells, self._padded = cells, padded
        self._flat = tf.reshape(tf.pad(z, edges), [batch, total, *self.map, map_and_depth[-1]])

    def take(self, indices: tf.Tensor) -> tf.Tensor:
        """Return the windows around cells, `[N, k, *window, d]`."""
        count, across = indices.shape[1], 1 + 2 * self.context
        first = tf.zeros_like(indices)
        remaining, step = indices, 1
        for cells, padded in reversed(list(zip(self._cells, self._padded, strict=True))):
            first += remaining % cells * step
            remaining, step = remaining // cells, step * padded
        offsets = []
        for cell in product(range(across), repeat=self.axes):
            offset = 0
            for number, padded in zip(cell, self._padded, strict=True):
                offset = offset * padded + number
            offsets.append(offset)
        cells_of_windows = first[..., None] + tf.stack(offsets)
        windows = tf.gather(self._flat, cells_of_windows, batch_dims=1)  # [N, k, cells, *map, d]
        shape = tf.shape(indices)
        windows = tf.reshape(
            windows, [shape[0], shape[1], *[across] * self.axes, *self.map, windows.shape[-1]]
        )
        windows = tf.transpose(windows, [0, 1, *interleaved(2, self.axes), 2 + 2 * self.axes])
        window = [across * n for n in self.map]
        windows = tf.reshape(windows, [shape[0], shape[1], *window, windows.shape[-1]])
        return tf.ensure_shape(windows, [indices.shape[0], count, *window, windows.shape[-1]])


def assembled(patches: tf.Tensor, cells: Sequence[Any], patch: Sequence[int]) -> tf.Tensor:
    """Return the patches of a grid without overlap as images.

    `PatchGDSegmentation` (Gupta et al., "Patch gradient descent: training neural networks on very large images",
    appendix E) and generators of patches put their outputs together with it.

    Args:
        patches: Patches `[N, n, *patch, K]`, in the order of the grid.
        cells: Number of patches along each axis.
        patch: Size of a patch along each axis.

    Returns:
        Images `[N, *extents, K]`, with `extents = cells * patch`.

    Raises:
        tf.errors.InvalidArgumentError: n is not the product of `cells`.

    Example:
        >>> patches = tf.reshape(tf.range(8), [1, 4, 1, 2, 1])  # four patches of 1 x 2
        >>> tfbig.patchgd.assembled(patches, cells=(2, 2), patch=(1, 2))[0, :, :, 0].numpy()
        array([[0, 1, 2, 3],
               [4, 5, 6, 7]], dtype=int32)
    """
    cells_and_patches = tf.reshape(
        patches, [slice_encoder.sizes(patches)[0], *cells, *patch, patches.shape[-1]]
    )
    return side_by_side(cells_and_patches, len(patch))


@keras.saving.register_keras_serializable(package="tfbig")
class PatchGDSegmentation(PatchModel):
    """Patch Gradient Descent for masks.

    Gupta et al., "Patch gradient descent: training neural networks on very large images", appendix E. A training step
    on a batch of images:

        Z = encoder(every patch)                            without a gradient: Z-filling
        y = decoder(every cell of Z)                        without a gradient: y-filling
        for k in range(inner_steps):
            Z[set k] = encoder(patches of set k)            with a gradient
            y[set k] = decoder(cells of set k)              with a gradient
            gradients += those of loss(labels, y) / accumulate
            every `accumulate` inner steps: the optimizer applies them

    With `sampling=1.0`, one inner step, and neither BatchNormalization nor dropout it equals training of the plain
    model (`twin`). For a loss that is a mean over pixels, encoder and decoder both get the exact gradient times the
    share of the patches in the sets; `scale="unbiased"` makes it the whole gradient if `context` is 0, and with context
    except for the stale codes of adjacent cells.

    Inputs and labels are tensors `[N, *extents, C]` and `[N, *extents, K or 1]`, or handles `[N]`.

    Args:
        encoder: Keras model from patches `[B, *patch, C]` to maps `[B, *map, d]` or codes `[B, d]`.
        decoder: Keras model from windows of Z to patches of the mask, see `tfbig.patchgd.segmentation.Mask`.
        patch: Size of a patch along each axis, or one number for all; the size of an image is a multiple of it
            (`tfbig.sources.Padded` pads an image).
        sampling: As in `tfbig.PatchGD`.
        inner_steps: As in `tfbig.PatchGD`.
        accumulate: As in `tfbig.PatchGD`.
        context: Number of adjacent cells on each side that the decoder sees too.
        sampler: "shuffle" or "replacement".
        scale: "published" or "unbiased"; matters only with `fill_mask`, because the loss without it is a mean over the
            set.
        filling_norm: As in `tfbig.PatchGD`.
        fill_mask: Whether to fill the mask before the inner steps. If False, the loss covers the set alone: the
            same up to its share for losses that are means over pixels, and nothing as large as the image is held. True
            is needed for losses of the whole mask, such as Dice.
        patches_at_once: As in `tfbig.PatchGD`.
        source_dtype: As in `tfbig.PatchGD`.
        label_dtype: Dtype of labels given by handle.
        latent_on_host: As in `tfbig.PatchGD`.
        seed: As in `tfbig.PatchGD`.
        **options: Options of `keras.Model`, such as `name`.

    Returns:
        Masks `[N, *extents, K]`.

    Raises:
        ValueError: An argument is not one of the options, or the windows of the decoder do not fit the maps of the
            encoder.
        SourceError: An image or its labels cannot be read, or its size is not a multiple of the patch.

    Example:
        >>> encoder = keras.Sequential([keras.Input((4, 4, 1)), keras.layers.Conv2D(3, 2, strides=2)])
        >>> decoder = keras.Sequential([keras.Input((2, 2, 3)), keras.layers.Conv2DTranspose(1, 2, strides=2)])
        >>> model = tfbig.patchgd.PatchGDSegmentation(encoder, decoder, patch=4, sampling=0.5)
        >>> model(np.zeros((1, 8, 12, 1), "float32")).shape
        TensorShape([1, 8, 12, 1])
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
            patch=patch,
            stride=None,
            sampling=sampling,
            inner_steps=inner_steps,
            accumulate=accumulate,
            sampler=sampler,
            scale=scale,
            filling_norm=filling_norm,
            patches_at_once=patches_at_once,
            source_dtype=source_dtype,
            latent_on_host=latent_on_host,
            seed=seed,
            **options,
        )
        if sampler == "attention":
            raise ValueError(
                "sampler='attention': a decoder has no attention; choose 'shuffle' or 'replacement'."
            )
        self.decoder = decoder
        self.context, self.scale, self.fill_mask = context, scale, fill_mask
        self.label_dtype = label_dtype
        self._mask = Mask(decoder, self.patch, context, name="mask")
        self.built = True

    @property
    def twin(self) -> keras.Model:
        """Plain Keras model with the same layers, which encodes and decodes all patches in one pass."""
        spec = self.encoder.inputs[0]
        image = keras.Input((*[None] * len(self.patch), spec.shape[-1]), dtype=spec.dtype)
        z = LatentGrid(self.encoder, self.patch, name="latent_grid")(image)
        return keras.Model(image, self._mask(z), name=f"plain_{self.name}")

    def patches(self, images: Any, exact: bool = True) -> PatchReader:
        """Return a reader of the patches of images or handles.

        Args:
            images: Tensors or handles.
            exact: Whether the size of an image must be a multiple of the patch.
        """
        return super().patches(images, exact)

    def call(self, images: Any, training: bool | None = None) -> Any:
        """Return the masks of images or handles."""
        patches = self.patches(images)
        size = self.patches_per_slice(patches)
        codes = slice_encoder.encode(
            self.encoder, patches.take, patches.indices(), size, bool(training)
        )
        return self._mask(self.shaped(codes, patches), training=training)

    def _run_inner_steps(self, data: Any) -> gradient_step.Gradients:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        step = _SegmentationStep(self, x, y, sample_weight)
        gradients, compared, loss = step.run()
        keras_internals.track_loss(self, gradient_step.unscaled(loss), step.patches.batch)
        labels, masks = step.compared(*compared)
        return gradients, self.compute_metrics(x, labels, masks, sample_weight)

    def test_step(self, data: Any) -> dict[str, Any]:
        """Evaluate one batch."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        masks = self(x, training=False)
        patches = self.patches(x)
        labels = self._labels(y)
        y = assembled(labels.take(patches.indices()), patches.cells, self.patch)
        loss = self.compute_loss(x, y, masks, sample_weight, training=False)
        keras_internals.track_loss(self, loss, tf.shape(masks)[0])
        return self.compute_metrics(x, y, masks, sample_weight)

    @tf_errors.unwrapped
    def predict_to(
        self, image: Any, path: str, convert: Callable[..., Any] | None = None
    ) -> sources.Source:
        """Predict one image of any size into a `.npy` file, a row of patches at a time; Z is held, the mask is not.

        Args:
            image: A `Source`, a path or an array `[H, W, C]`.
            path: File to write; it appears under this name only when complete.
            convert: Function from rows of the prediction `[r, W, K]` to the rows to write, as in
                `StreamedModel.predict_to`.

        Returns:
            The prediction `[H, W, K]`, converted, as a source.

        Raises:
            SourceError: The image cannot be read, or the file cannot be written.
        """
        source = sources.open(image)
        convert, output = convert or (lambda rows: rows), self.decoder.outputs[0]
        pixel = convert(np.zeros((1, 1, output.shape[-1]), output.dtype))
        shape = (*source.shape[:2], *pixel.shape[2:])
        with source.lent() as handle, sources.write_npy(path, shape, pixel.dtype) as writer:
            patches = self.patches(tf.constant([handle]))
            codes = slice_encoder.fill(
                self.encoder,
                patches.take,
                patches.indices(),
                self.patches_per_slice(patches),
                False,
            )
            windows = Windows(self.shaped(codes, patches), len(self.patch), self.context)
            rows, columns = (int(n) for n in patches.cells)
            for row in range(rows):
                indices = tf.range(row * columns, (row + 1) * columns)[None]
                masks = slice_encoder.fill(
                    self._mask.cropped, windows.take, indices, columns, False
                )
                band = assembled(masks, (1, columns), self.patch)[0]
                writer.write(row * self.patch[0], convert(band.numpy()))
        return sources.open(path)

    def _labels(self, labels: Any) -> PatchReader:
        labels = tf.convert_to_tensor(labels)
        channels = 1 if labels.dtype == tf.string else labels.shape[-1]
        return PatchReader(labels, self.patch, self.patch, channels, self.label_dtype, exact=True)


class _SegmentationStep(TrainingStep):
    """One training step: Z-filling, y-filling, and the computation of an inner step."""

    def __init__(self, model: PatchGDSegmentation, x: Any, y: Any, sample_weight: Any) -> None:
        super().__init__(model, x, model.scale, exact=True)
        self.model, self.x, self.sample_weight = model, x, sample_weight
        self.labels = model._labels(y)

    def run(self) -> tuple[list[Any], Any, tf.Tensor]:
        """Return gradients that were not applied, the last compared `(indices, masks)`, and the mean loss."""
        model = self.model
        codes = filled(model, self.patches, self.patches_per_slice, self.seed, self.on_host)
        all_indices = self.patches.indices()
        indices, masks = all_indices[:, :0], self._no_masks()
        if model.fill_mask:
            training = model.filling_norm == "published"
            indices = all_indices
            masks = slice_encoder.fill(
                model._mask.cropped,
                self._windows(codes).take,
                indices,
                self.patches_per_slice,
                training,
            )
        num_indices = indices.shape[1] if model.fill_mask else None
        batch = indices.shape[0]
        shapes = (
            codes.shape,
            tf.TensorShape([batch, num_indices]),
            tf.TensorShape([batch, num_indices, *masks.shape[2:]]),
        )
        state = codes, indices, masks
        gradients, state, loss = inner_loop.run(
            model, self.num_inner_steps, self._inner, state, shapes
        )
        return gradients, state[1:], loss

    def compared(self, indices: tf.Tensor, masks: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return labels and predictions as images: whole ones, or the patches of a set one below the other."""
        cells: Sequence[Any] = self.patches.cells
        if not self.model.fill_mask:
            cells = (slice_encoder.sizes(indices)[1], *[1] * (len(self.model.patch) - 1))
        patch = self.model.patch
        return assembled(self.labels.take(indices), cells, patch), assembled(masks, cells, patch)

    def _inner(self, step: tf.Tensor, state: Any) -> tuple[list[Any], tf.Tensor, Any]:
        model, (codes, indices, masks) = self.model, state
        chosen, weights = self.choose(step, lambda: codes)
        with tf.GradientTape() as tape:
            fresh = slice_encoder.encode(
                model.encoder, self.patches.take, chosen, self.patches_per_slice
            )
            with slice_encoder.placed(self.on_host):
                codes = replaced(codes, chosen, fresh)
            new_masks = self._masks(codes, chosen, training=True)
            if model.fill_mask:
                masks = replaced(masks, chosen, patch_sampling.weighted(new_masks, weights))
            else:
                indices, masks = chosen, new_masks
            labels, predicted = self.compared(indices, masks)
            loss = model.compute_loss(self.x, labels, predicted, self.sample_weight, training=True)
            scaled = model.optimizer.scale_loss(loss)
        return tape.gradient(scaled, self.variables), loss, (codes, indices, masks)

    def _no_masks(self) -> tf.Tensor:
        """Return no patches of the mask of each image; a decoder need not accept an empty batch."""
        output = self.model._mask.cropped.outputs[0]
        return tf.zeros([self.patches.batch, 0, *output.shape[1:]], output.dtype)

    def _windows(self, codes: tf.Tensor) -> Windows:
        z = self.model.shaped(codes, self.patches)
        return Windows(z, len(self.model.patch), self.model.context)

    def _masks(self, codes: tf.Tensor, indices: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Return the patches of the mask at some cells, with a gradient for Z too."""
        windows = self._windows(codes).take(indices)
        return slice_encoder.applied(self.model._mask.cropped, windows, training)


def _cropped(decoder: keras.Model, patch: tuple[int, ...], context: int) -> keras.Model:
    """Return the decoder followed by a crop to the middle of its output."""
    (window,), (mask,) = decoder.inputs, decoder.outputs
    size = tuple(n * (1 + 2 * context) for n in patch)
    output_shape = decoder.compute_output_shape((None, *window.shape[1:]))
    if any(a is not None and a != b for a, b in zip(output_shape[1:-1], size, strict=False)):
        raise ValueError(
            f"decoder '{decoder.name}' returns {tuple(output_shape[1:-1])} for windows "
            f"{tuple(window.shape[1:-1])}; expected {size}, patches of {patch} with a context of {context}."
        )
    image = keras.Input(window.shape[1:], dtype=window.dtype)
    output = decoder(image)
    edges = tuple(context * n for n in patch)
    middle = (slice(None), *[slice(edge, edge + n) for edge, n in zip(edges, patch, strict=True)])
    output = output[middle] if context else output
    cropped = keras.layers.Reshape((*patch, mask.shape[-1]))(output)
    return keras.Model(image, cropped, name=decoder.name)

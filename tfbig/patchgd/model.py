"""`PatchGD`: training on large images by a latent grid in which a few patches are updated at a time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import keras
import tensorflow as tf

from tfbig.patchgd import inner_loop, patch_sampling, slice_encoder
from tfbig.patchgd.base_model import PatchModel, TrainingStep
from tfbig.patchgd.latent_grid import filled, patch_model, replaced, side_by_side
from tfbig.patchgd.patch_reader import PatchReader
from tfbig.streaming import gradient_step
from tfbig.system import keras_internals


@keras.saving.register_keras_serializable(package="tfbig")
class PatchGD(PatchModel):
    """Patch Gradient Descent (Gupta et al., "Patch gradient descent: training neural networks on very large images").

    A training step on a batch of images:

        Z = encoder(every patch)                            without a gradient: the filling
        for k in range(inner_steps):
            Z[set k] = encoder(patches of set k)            with a gradient; other codes stay as they are
            gradients += those of loss(head(Z)) / accumulate
            every `accumulate` inner steps: the optimizer applies them

    It is approximate, because most of Z is stale and constant in each step, and cheap: only `sampling` of the patches
    and their activations are in memory. `tfbig.stream` is exact. With `sampling=1.0`, one inner step, and neither
    BatchNormalization nor dropout it equals training of the plain model (`twin`).

    **Scale.** The exact gradient of the encoder is a sum over all n patches, `sum_i J_i^T g_i` with `g_i = dL/dZ_i`;
    that of the head, `h`, needs no sum. An inner step has all of `h` but `sum_i` over its m patches only. Over n/m
    inner steps that accumulate with the loss divided by their number, the head gets `(m/n) (n/m) h = h` and the encoder
    `(m/n) sum_i J_i^T g_i`: m/n of the exact gradient relative to the head, one divided by the number of inner steps.
    Adam does not notice a constant factor; SGD and clipping of all gradients together do. `encoder_scale="unbiased"`
    multiplies the encoder's gradients so that they are exact on average, and exact if every patch has been in a set
    before the optimizer steps and nothing else is random.

    Inputs are tensors `[N, *extents, C]`, or handles `[N]` (`tfbig.open(path).handle`) of images of one size, whose
    patches are read as they are needed. In inference Z is filled once.

    Memory: Z, `4 * N * n * d` bytes, the activations of the head over Z, and twice the patches of a slice with the
    activations of the encoder.

    Args:
        encoder: Keras model from patches `[B, *patch, C]` to codes `[B, d]`, or to maps of codes `[B, *map, d]`, such
            as a network without its pooling: maps are joined in Z, `[N, *(cells * map), d]`.
        head: Keras layer or model from the latent grid Z `[N, *cells, d]` to outputs.
        patch: Size of a patch along each axis, or one number for all. Series `[N, L, C]` have one axis, volumes three.
        stride: Distance between patches; by default the patch, so that none overlap.
        sampling: Patches of an inner step: a share, such as 0.25, or a number, such as 16, which keeps the memory
            constant for images of any size. 1.0 is all of them, 1 is one.
        inner_steps: Inner steps of a training step; by default as many as it takes until every patch has been in a set.
        accumulate: Inner steps whose gradients are averaged before the optimizer steps (epsilon in the paper); None for
            all of a training step. A last group may be smaller, and is averaged over its own size.
        sampler: "shuffle": sets without replacement, as published; "replacement": independent draws; "attention":
            patches with a high `attention(Z)` `[N, n]` of the head are drawn more often.
        encoder_scale: "published" or "unbiased", see above.
        filling_norm: Mode of BatchNormalization (and dropout) during the filling. "published": training, with the
            statistics of slices of shuffled patches, and moving statistics change; "frozen": inference.
        patches_at_once: Patches that the encoder gets in one slice, summed over the images of the batch; by default
            those of an inner step. With fewer, an inner step runs slice by slice and rematerialises each slice in its
            backward pass: the same gradients at less memory, except for BatchNormalization, which has the statistics of
            a slice.
        image_shape: `(*extents, C)`, if the head needs to know the size of Z; by default any. If it is known, the
            activations of the encoder for a set of handles are kept, as for tensors, and not rematerialised in the
            backward pass.
        source_dtype: Dtype of images given by handle.
        latent_on_host: Whether Z stays in host memory while patches are encoded; by default if there is an accelerator
            and Z is large or of unknown size.
        seed: Seed of the random sets of patches.
        **options: Options of `keras.Model`, such as `name`.

    Returns:
        The outputs of the head.

    Raises:
        ValueError: An argument is not one of the options, or out of range.
        SourceError: An image cannot be read, is smaller than a patch, or has other channels or another dtype.

    Example:
        >>> encoder = keras.Sequential([keras.Input((4, 4, 1)), keras.layers.Flatten(), keras.layers.Dense(3)])
        >>> head = keras.Sequential([keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(2)])
        >>> model = tfbig.PatchGD(encoder, head, patch=4, sampling=0.5)
        >>> image = np.random.default_rng(0).normal(size=(1, 8, 8, 1)).astype("float32")
        >>> model.latent(image).shape  # codes of 2 x 2 patches
        TensorShape([1, 2, 2, 3])
        >>> bool(np.allclose(model(image), model.twin(image), atol=1e-5))
        True
    """

    PARTS = ("encoder", "head")
    SETTINGS = ("stride", "encoder_scale", "image_shape")

    def __init__(
        self,
        encoder: keras.Model,
        head: keras.Layer,
        patch: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        sampling: float | int = 0.25,
        inner_steps: int | None = None,
        accumulate: int | None = 1,
        *,
        sampler: str = "shuffle",
        encoder_scale: str = "published",
        filling_norm: str = "published",
        patches_at_once: int | None = None,
        image_shape: Sequence[int | None] | None = None,
        source_dtype: str = "uint8",
        latent_on_host: bool | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            encoder,
            patch=patch,
            stride=stride,
            sampling=sampling,
            inner_steps=inner_steps,
            accumulate=accumulate,
            sampler=sampler,
            scale=encoder_scale,
            filling_norm=filling_norm,
            patches_at_once=patches_at_once,
            source_dtype=source_dtype,
            latent_on_host=latent_on_host,
            seed=seed,
            **options,
        )
        if sampler == "attention" and not hasattr(head, "attention"):
            raise ValueError(
                f"sampler='attention': head '{head.name}' has no method `attention(Z)`. Use a head that has one, such "
                "as tfbig.patchgd.BagHead, or another sampler."
            )
        if len(slice_encoder.code_shape(encoder)) not in (1, len(self.patch) + 1):
            raise ValueError(
                f"encoder '{encoder.name}' returns shape {slice_encoder.code_shape(encoder)} for a patch; expected a "
                f"code (d,), or a map of codes with {len(self.patch)} axes and d."
            )
        self.head = head
        self.encoder_scale = encoder_scale
        self.image_shape = None if image_shape is None else tuple(image_shape)
        sizes = [n for n in (self.image_shape or (None,))[:-1] if n is not None]
        if len(sizes) == len(self.patch):
            self.extents = tuple(sizes)
        self._outputs = self.twin.output  # builds the head
        self.built = True

    @property
    def twin(self) -> keras.Model:
        """Plain Keras model with the same layers, which encodes all patches in one pass."""
        return patch_model(self.encoder, self.head, self.patch, self.stride, self.image_shape)

    def call(self, images: Any, training: bool | None = None) -> Any:
        """Return the outputs of the head for images or handles."""
        patches = self.patches(images)
        codes = slice_encoder.encode(
            self.encoder,
            patches.take,
            patches.indices(),
            self.patches_per_slice(patches),
            bool(training),
        )
        return self.head(self.shaped(codes, patches), training=training)

    def export(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Export the plain model, `twin`, which has the same weights and outputs, for serving.

        Args:
            filepath: As in `keras.Model.export`.
            *args: As in `keras.Model.export`.
            **kwargs: As in `keras.Model.export`.
        """
        self.twin.export(filepath, *args, **kwargs)

    def attention(self, images: Any) -> tf.Tensor:
        """Return the weight of each patch in inference, `[N, n]`; the head needs a method `attention(Z)`.

        Args:
            images: Tensors or handles.
        """
        return self.attention_of(self.latent(images))

    def attention_of(self, z: tf.Tensor) -> tf.Tensor:
        """Return the weight of each patch from Z `[N, *cells, d]`; of a map of codes, the sum over the map.

        Args:
            z: The latent grid.
        """
        attention, axes = self.head.attention(z), len(self.patch)
        map_shape = slice_encoder.code_shape(self.encoder)[:-1]
        if not map_shape:
            return attention
        batch, *sizes = slice_encoder.sizes(z)[:-1]
        cells_and_map = [[n // m, m] for n, m in zip(sizes, map_shape, strict=True)]
        by_patch = tf.reshape(attention, [batch, *chain(*cells_and_map)])
        summed = tf.reduce_sum(by_patch, range(2, 2 + 2 * axes, 2))
        return tf.reshape(summed, [batch, -1])

    def shaped(self, codes: tf.Tensor, patches: PatchReader) -> tf.Tensor:
        """Return codes `[N, n, ...]` as Z `[N, *cells, d]`, with maps joined.

        Args:
            codes: Codes of all patches.
            patches: Patches of the images.
        """
        return side_by_side(super().shaped(codes, patches), len(self.patch))

    def _run_inner_steps(self, data: Any) -> gradient_step.Gradients:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        step = _PatchGDStep(self, x, y, sample_weight)
        gradients, predicted, loss = step.run()
        keras_internals.track_loss(self, gradient_step.unscaled(loss), step.patches.batch)
        return gradients, self.compute_metrics(x, y, predicted, sample_weight)


class _PatchGDStep(TrainingStep):
    """One training step: the filling, and the computation of an inner step."""

    def __init__(self, model: PatchGD, x: Any, y: Any, sample_weight: Any) -> None:
        super().__init__(model, x, model.encoder_scale)
        self.model, self.data = model, (x, y, sample_weight)

    def run(self) -> tuple[list[Any], Any, tf.Tensor]:
        """Return gradients that were not applied, the predictions of the last inner step, and the mean loss."""
        codes = filled(self.model, self.patches, self.patches_per_slice, self.seed, self.on_host)
        batch = patch_sampling.static(self.patches.batch)
        no_predictions, shapes = (
            keras.tree.map_structure(build, self.model._outputs)
            for build in (
                lambda t: tf.zeros([self.patches.batch, *(n or 0 for n in t.shape[1:])], t.dtype),
                lambda t: tf.TensorShape([batch, *t.shape[1:]]),
            )
        )
        gradients, state, loss = inner_loop.run(
            self.model,
            self.num_inner_steps,
            self._inner,
            (codes, no_predictions),
            (codes.shape, shapes),
        )
        return gradients, state[1], loss

    def _inner(self, step: tf.Tensor, state: Any) -> tuple[list[Any], tf.Tensor, Any]:
        """Compute one inner step; return its gradients, the loss, and Z and predictions."""
        model, (codes, _) = self.model, state
        x, y, sample_weight = self.data
        indices, weights = self.choose(step, lambda: self._attention(codes))
        with tf.GradientTape() as tape:
            fresh = slice_encoder.encode(
                model.encoder, self.patches.take, indices, self.patches_per_slice
            )
            with slice_encoder.placed(self.on_host):
                codes = replaced(codes, indices, patch_sampling.weighted(fresh, weights))
            predicted = model.head(model.shaped(codes, self.patches), training=True)
            loss = model.compute_loss(x, y, predicted, sample_weight, training=True)
            scaled = model.optimizer.scale_loss(loss)
        return tape.gradient(scaled, self.variables), loss, (codes, predicted)

    def _attention(self, codes: tf.Tensor) -> tf.Tensor:
        return self.model.attention_of(self.model.shaped(codes, self.patches))

"""`PatchGD`: training on large images by a latent grid of which a few patches are brought up to date at a time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import keras
import tensorflow as tf

from tfbig.patchgd import inner_loop, patch_sampling, slice_encoder
from tfbig.patchgd.latent_grid import filled, patch_model, replaced, side_by_side
from tfbig.patchgd.patch_model import Filling, PatchModel
from tfbig.patchgd.patch_reader import Patches
from tfbig.streaming import gradient_step


@keras.saving.register_keras_serializable(package="tfbig")
class PatchGD(PatchModel):
    """Patch Gradient Descent (Gupta et al., "Patch gradient descent: training neural networks on very large images").

    A training step on a batch of images:

        Z = encoder(every patch)                            without a gradient: the filling
        for k in range(inner_steps):
            Z[set k] = encoder(patches of set k)            with a gradient; the rest of Z is what it was
            gradients += those of loss(head(Z)) / accumulate
            every `accumulate` inner steps: the optimizer applies them

    It is approximate, as most of Z is stale and constant in each step, and cheap: only `sampling` of the patches are
    in memory with what the encoder makes of them. `tfbig.stream` is exact. With `sampling=1.0`, one inner step, and
    neither BatchNormalization nor dropout it equals training of the plain model (`twin`).

    **Scale.** The exact gradient of the encoder is a sum over all n patches, `sum_i J_i^T g_i` with `g_i = dL/dZ_i`;
    that of the head, `h`, needs no sum. An inner step has `h` whole but `sum_i` over its m patches only. Over n/m
    inner steps that accumulate with the loss divided by their number, the head gets `(m/n) (n/m) h = h` and the
    encoder `(m/n) sum_i J_i^T g_i`: m/n of the exact gradient relative to the head, one divided by the number of
    inner steps. Adam does not notice a constant factor; SGD and clipping of all gradients together do.
    `encoder_scale="unbiased"` multiplies the encoder's gradients so that they are exact on average, and exact where
    all patches have been in a set before the optimizer steps and nothing else is random.

    Args:
        encoder: a Keras model from a patch `[B, *patch, C]` to a code `[B, d]`, or to a map of codes `[B, *map, d]`,
            such as a network without its pooling: maps lie side by side in Z, `[N, *(cells * map), d]`.
        head: a Keras layer or model from the latent grid Z `[N, *cells, d]` to outputs.
        patch: rows and columns of a patch, or one number for all axes. Series `[N, L, C]` have one axis, volumes three.
        stride: from patch to patch; by default the patch, so that none overlap.
        sampling: patches of an inner step: a share, as 0.25, or a number, as 16, which keeps memory the same for images
            of any size. 1.0 is all of them, 1 is one.
        inner_steps: of a training step; by default as many as it takes until all patches have been in a set.
        accumulate: inner steps whose gradients are averaged before the optimizer steps (the papers' epsilon); None for
            all of a training step. A last group may be smaller, and is averaged over what it has.
        sampler: "shuffle": sets without replacement, as published; "replacement"; "attention": patches that the head
            looks at come more often, by its method `attention(Z)`, `[N, n]` of n codes.
        encoder_scale: "published" or "unbiased", see above.
        filling_norm: what the filling takes for BatchNormalization (and dropout): "published": training, with
            statistics of slices of shuffled patches, and moving statistics change; "frozen": inference.
        patches_at_once: patches that the encoder sees together at most, all images of the batch counted; by default
            those of an inner step. With fewer, an inner step goes slice by slice and makes each again in its backward:
            the same gradients at less memory, but for BatchNormalization, which has the statistics of a slice.
        image_shape: `(*extents, C)`, where the head needs to know the size of Z; by default any. Known, what
            the encoder makes of a set of handles is kept, as for tensors, and not made again in the backward.
        source_dtype: element type of images given by handle.
        latent_on_host: whether Z stays in host memory while patches are encoded; by default where there is an
            accelerator and Z is large or of unknown size.
        seed: of the sets of patches.

    Inputs are tensors `[N, *extents, C]`, or handles `[N]` (`tfbig.open(path).handle`) of images of one size, of which
    patches are read as they are needed. In inference Z is filled once.

    Memory: Z, `4 * N * n * d` bytes, what the head makes of it, and twice the patches of a slice with what the encoder
    makes of them.

    Raises:
        ValueError: an argument is none that there is.
        SourceError: an image cannot be read, is smaller than a patch, or has other channels or samples.
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
            patch,
            stride,
            sampling,
            inner_steps,
            accumulate,
            sampler,
            encoder_scale,
            filling_norm,
            patches_at_once,
            source_dtype,
            latent_on_host,
            seed,
            **options,
        )
        if sampler == "attention" and not hasattr(head, "attention"):
            raise ValueError(
                f"sampler='attention': head '{head.name}' has no method `attention(Z)`; those of tfbig.models.latent "
                "with attention have."
            )
        if len(slice_encoder.code_shape(encoder)) not in (1, len(self.patch) + 1):
            raise ValueError(
                f"encoder '{encoder.name}' makes {slice_encoder.code_shape(encoder)} of a patch; expected a code (d,), "
                f"or a map of codes of {len(self.patch)} axes and d."
            )
        self.head = head
        self.encoder_scale = encoder_scale
        self.image_shape = None if image_shape is None else tuple(image_shape)
        known = [n for n in (self.image_shape or (None,))[:-1] if n is not None]
        if len(known) == len(self.patch):
            self.extents = tuple(known)
        self._outputs = self.twin.output  # builds the head
        self.built = True

    @property
    def twin(self) -> keras.Model:
        """The plain model with the same layers: all patches in one pass."""
        return patch_model(self.encoder, self.head, self.patch, self.stride, self.image_shape)

    def call(self, images: Any, training: bool | None = None) -> Any:
        patches = self.patches(images)
        codes = slice_encoder.encode(
            self.encoder, patches.take, patches.places(), self.slice(patches), bool(training)
        )
        return self.head(self.shaped(codes, patches), training=training)

    def attention(self, images: Any) -> tf.Tensor:
        """How much each patch counts, `[N, n]`, in inference; the head has a method `attention(Z)`.

        Args:
            images: tensors or handles.
        """
        return self.attention_of(self.latent(images))

    def attention_of(self, z: tf.Tensor) -> tf.Tensor:
        """The same from Z `[N, *cells, d]`; that of a map of codes is the sum over it."""
        found, axes = self.head.attention(z), len(self.patch)
        inside = slice_encoder.code_shape(self.encoder)[:-1]
        if not inside:
            return found
        batch, *sizes = slice_encoder.sizes(z)[:-1]
        apart = [[n // m, m] for n, m in zip(sizes, inside, strict=True)]
        by_patch = tf.reshape(found, [batch, *chain(*apart)])
        summed = tf.reduce_sum(by_patch, range(2, 2 + 2 * axes, 2))
        return tf.reshape(summed, [batch, -1])

    def shaped(self, codes: tf.Tensor, patches: Patches) -> tf.Tensor:
        """Codes `[N, n, ...]` as Z `[N, *cells, d]`, maps of them side by side."""
        return side_by_side(super().shaped(codes, patches), len(self.patch))

    def _stepped(self, data: Any) -> gradient_step.Gradients:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        step = _Step(self, x, y, sample_weight)
        gradients, predicted, loss = step.run()
        self._loss_tracker.update_state(
            gradient_step.unscaled(loss), sample_weight=step.patches.batch
        )
        return gradients, self.compute_metrics(x, y, predicted, sample_weight)


class _Step(Filling):
    """One training step: the filling, and what an inner step is."""

    def __init__(self, model: PatchGD, x: Any, y: Any, sample_weight: Any) -> None:
        super().__init__(model, x, model.encoder_scale)
        self.model, self.data = model, (x, y, sample_weight)

    def run(self) -> tuple[list[Any], Any, tf.Tensor]:
        """Gradients that were not applied, what the last inner step predicted, and the mean of the losses."""
        codes = filled(self.model, self.patches, self.slice, self.seed, self.on_host)
        batch = patch_sampling.static(self.patches.batch)
        nothing, shapes = (
            keras.tree.map_structure(made, self.model._outputs)
            for made in (
                lambda t: tf.zeros([self.patches.batch, *(n or 0 for n in t.shape[1:])], t.dtype),
                lambda t: tf.TensorShape([batch, *t.shape[1:]]),
            )
        )
        gradients, state, loss = inner_loop.run(
            self.model, self.total, self._inner, (codes, nothing), (codes.shape, shapes)
        )
        return gradients, state[1], loss

    def _inner(self, step: tf.Tensor, state: Any) -> tuple[list[Any], tf.Tensor, Any]:
        """One inner step: gradients, the loss, Z and predictions."""
        model, (codes, _) = self.model, state
        x, y, sample_weight = self.data
        places, weights = self.choose(step, lambda: self._attention(codes))
        with tf.GradientTape() as tape:
            fresh = slice_encoder.encode(model.encoder, self.patches.take, places, self.slice)
            with slice_encoder.placed(self.on_host):
                codes = replaced(codes, places, patch_sampling.weighted(fresh, weights))
            predicted = model.head(model.shaped(codes, self.patches), training=True)
            loss = model.compute_loss(x, y, predicted, sample_weight, training=True)
            scaled = model.optimizer.scale_loss(loss)
        return tape.gradient(scaled, self.variables), loss, (codes, predicted)

    def _attention(self, codes: tf.Tensor) -> tf.Tensor:
        return self.model.attention_of(self.model.shaped(codes, self.patches))

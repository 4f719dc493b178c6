"""Base class of PatchGD's models: patches, the latent grid Z, saving and error messages."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import keras
import tensorflow as tf

from tfbig.choices import FILLINGS
from tfbig.geometry import patch_grid
from tfbig.patchgd import patch_sampling, slice_encoder
from tfbig.patchgd.latent_grid import check_encoder, shaped, slice_size
from tfbig.patchgd.patch_reader import PatchReader
from tfbig.streaming import gradient_step
from tfbig.system import backend, keras_internals, replication, tf_errors, xla
from tfbig.system.parts import WithParts

LARGE_BYTES = 2**30
"""Bytes from which a latent grid stays on the host if there is an accelerator."""


class PatchModel(
    WithParts, xla.Choice, tf_errors.Unwrapped, patch_sampling.DrawCounter, keras.Model
):
    """Base class of models with an encoder of patches and further layers over their codes.

    Subclasses name these layers in `PARTS`, and their other arguments in `SETTINGS`.

    Args: as in `tfbig.PatchGD`.
    """

    SETTINGS: tuple[str, ...] = ()
    SHARED = (
        *("patch", "sampling", "inner_steps", "accumulate", "sampler", "filling_norm"),
        *("patches_at_once", "source_dtype", "latent_on_host", "seed", "name"),
    )

    def __init__(
        self,
        encoder: keras.Model,
        *,
        patch: int | Sequence[int],
        stride: int | Sequence[int] | None,
        sampling: float | int,
        inner_steps: int | None,
        accumulate: int | None,
        sampler: str,
        scale: str,
        filling_norm: str,
        patches_at_once: int | None,
        source_dtype: str,
        latent_on_host: bool | None,
        seed: int | None,
        **options: Any,
    ) -> None:
        options.setdefault("name", f"patchgd_{encoder.name}")
        super().__init__(dtype=encoder.dtype_policy, **options)
        replication.check()
        check_encoder(encoder)
        patch_sampling.check_sampling(sampling, sampler, scale)
        patch_sampling.check_counts(
            inner_steps=inner_steps, accumulate=accumulate, patches_at_once=patches_at_once
        )
        patch_sampling.check_option("filling_norm", filling_norm, FILLINGS)
        axes = len(encoder.inputs[0].shape) - 2
        self.encoder = encoder
        self.patch = patch_grid.per_axis(patch, axes, "patch")
        self.stride = self.patch if stride is None else patch_grid.per_axis(stride, axes, "stride")
        self.sampling, self.inner_steps, self.accumulate = sampling, inner_steps, accumulate
        self.sampler, self.filling_norm = sampler, filling_norm
        self.patches_at_once = patches_at_once
        self.source_dtype, self.latent_on_host = source_dtype, latent_on_host
        self.extents: tuple[int, ...] | None = None
        self.autocast = False
        self.supports_jit = False  # patches come from the host
        self.count_draws(seed)

    def build(self, input_shape: Any = None) -> None:
        """Mark the model as built; its layers have their weights already."""
        self.built = True

    def train_step(self, data: Any) -> dict[str, Any]:
        """Train on one batch."""
        return (
            gradient_step.train_step(self, data)
            if self.accumulate is None
            else self._run_inner_steps(data)[1]
        )

    def compute_gradients(self, data: Any) -> gradient_step.Gradients:
        """Return the gradients of a batch and its logs, see `tfbig.streaming.gradient_step`.

        Args:
            data: Batch in the form of Keras.

        Raises:
            ValueError: The optimizer steps between inner steps, so a step has no gradients to return.
        """
        if self.accumulate is not None:
            raise ValueError(
                f"'{self.name}': with accumulate={self.accumulate} the optimizer steps between inner steps, so a "
                "training step has no gradients to return; pass accumulate=None."
            )
        return self._run_inner_steps(data)

    def _run_inner_steps(self, data: Any) -> gradient_step.Gradients:
        """Run all inner steps; return the gradients that were not applied in between, and the logs."""
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the model."""
        own = {name: getattr(self, name) for name in (*self.SHARED, *self.SETTINGS)}
        return own | self.parts_config()

    def latent(self, images: Any) -> tf.Tensor:
        """Return Z of images, `[N, *cells, d]`, computed as in inference.

        Args:
            images: Tensors or handles.
        """
        patches = self.patches(images)
        codes = slice_encoder.fill(
            self.encoder,
            patches.take,
            patches.indices(),
            self.patches_per_slice(patches),
            training=False,
            on_host=self.on_host(patches),
        )
        return self.shaped(codes, patches)

    def patches(self, images: Any, exact: bool = False) -> PatchReader:
        """Return a reader of the patches of images or handles.

        Args:
            images: Tensors or handles.
            exact: Whether the size of an image must be a multiple of the patch.
        """
        images = tf.convert_to_tensor(images)
        channels = self.encoder.inputs[0].shape[-1]
        options = (channels, self.source_dtype, exact, self.extents)
        return PatchReader(images, self.patch, self.stride, *options)

    def patches_per_slice(self, patches: PatchReader) -> Any:
        """Return the number of patches of each image in a slice of the encoder."""
        set_size = patch_sampling.set_size(self.sampling, patches.count)
        return slice_size(self.patches_at_once, patches.batch, set_size)

    def shaped(self, codes: tf.Tensor, patches: PatchReader) -> tf.Tensor:
        """Return codes `[N, n, d]` as Z `[N, *cells, d]`."""
        return shaped(codes, patches, self.encoder)

    def on_host(self, patches: PatchReader) -> bool:
        """Return whether Z is kept in host memory."""
        if self.latent_on_host is not None:
            return self.latent_on_host
        if backend.accelerator() is None or tf.distribute.has_strategy():
            return False
        sizes = (patches.batch, patches.count, *slice_encoder.code_shape(self.encoder))
        return not all(isinstance(n, int) for n in sizes) or 4 * prod(sizes) > LARGE_BYTES


class TrainingStep:
    """State that every training step starts from: the patches, the sampler of sets, and where Z is stored."""

    def __init__(self, model: PatchModel, images: Any, scale: str, exact: bool = False) -> None:
        self.patches = model.patches(images, exact)
        self.seed = model.next_seed()
        batch, count = self.patches.batch, self.patches.count
        self.choose = patch_sampling.Chooser(
            model.sampling, model.sampler, scale, batch, count, self.seed
        )
        self.patches_per_slice = slice_size(model.patches_at_once, batch, self.choose.size)
        self.on_host = model.on_host(self.patches)
        self.num_inner_steps = model.inner_steps or self.choose.num_sets
        self.variables = keras_internals.tensors_of(model.trainable_variables)

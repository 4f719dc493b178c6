"""The latent grid Z of an image as a layer, and the plain model of an encoder of patches and a head over Z."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfbig.geometry import patch_grid
from tfbig.patchgd import patch_sampling, slice_encoder
from tfbig.patchgd.patch_reader import Patches

FILLINGS = ("published", "frozen")


@keras.saving.register_keras_serializable(package="tfbig")
class SideBySide(keras.layers.Layer):
    """Z of maps of codes, `[N, *cells, *map, d]`, as one map `[N, *(cells * map), d]`; codes `[N, *cells, d]` as is.

    Args:
        axes: of the image.
    """

    def __init__(self, axes: int, **options: Any) -> None:
        super().__init__(**options)
        self.axes = axes
        self.autocast = False

    def call(self, z: Any) -> Any:
        return side_by_side(z, self.axes)

    def compute_output_shape(self, shape: Any) -> Any:
        cells, inside = shape[1 : 1 + self.axes], shape[1 + self.axes : -1] or [1] * self.axes
        whole = [None if n is None else n * m for n, m in zip(cells, inside, strict=True)]
        return (shape[0], *whole, shape[-1])

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"axes": self.axes}


@keras.saving.register_keras_serializable(package="tfbig")
class LatentGrid(patch_sampling.Counted, keras.layers.Layer):
    """Codes of all patches of an image, where the patches lie: `[N, *extents, C]` to Z `[N, *cells, d]`.

    By itself it is a plain layer: all patches are one batch of the encoder. With `sampling` it is what PatchGD makes
    of it in training: Z is filled without a gradient, then the patches of one random set are encoded again with a
    gradient. Inside the encoder of another grid it makes a hierarchy, the authors' way to gigapixels (PatchGD,
    appendix B): `PatchGD(Model(cell, inner_head(LatentGrid(encoder, 128, sampling=0.1)(cell))), head, patch=2048)`.

    Args:
        encoder: takes a patch `[B, *patch, C]` to a code `[B, d]`, or to a map of codes `[B, *map, d]`, which makes Z
            `[N, *cells, *map, d]`; `tfbig.patchgd.SideBySide` lays the maps together.
        patch: rows and columns of a patch, or one number for all axes; images of 1, 2 or 3 axes.
        stride: from patch to patch; by default the patch.
        sampling: patches that learn in a training step, a number or a share; by default all, exactly.
        patches_at_once: of a slice that the encoder sees together, all images of a batch counted; by default all.
            BatchNormalization of the encoder has the statistics of the slice.
        encoder_scale, filling_norm: as in `tfbig.PatchGD`; of use with `sampling`.
        seed: of the sets of patches.

    Raises:
        ValueError: an argument is none that there is, or an image is smaller than a patch.
    """

    def __init__(
        self,
        encoder: keras.Model,
        patch: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        *,
        sampling: float | int | None = None,
        patches_at_once: int | None = None,
        encoder_scale: str = "published",
        filling_norm: str = "published",
        seed: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        check_encoder(encoder)
        axes = len(encoder.inputs[0].shape) - 2
        self.patch = patch_grid.per_axis(patch, axes, "patch")
        self.stride = self.patch if stride is None else patch_grid.per_axis(stride, axes, "stride")
        patch_grid.check(self.patch, self.stride)
        patch_sampling.check(1.0 if sampling is None else sampling, "shuffle", encoder_scale)
        patch_sampling.check_known("filling_norm", filling_norm, FILLINGS)
        self.encoder = encoder
        self.sampling = sampling
        self.patches_at_once = patches_at_once
        self.encoder_scale = encoder_scale
        self.filling_norm = filling_norm
        self.autocast = False  # the encoder has its own element types
        self.supports_jit = False
        self.count_draws(seed)

    def build(self, shape: Any) -> None:
        self.built = True

    def call(self, images: Any, training: bool | None = None) -> Any:
        patches = Patches(images, self.patch, self.stride, images.shape[-1], images.dtype)
        if training and self.sampling is not None:
            return self._sampled(patches, self.sampling)
        places = patches.places()
        size = slice_size(self.patches_at_once, patches.batch, patches.count)
        codes = slice_encoder.encode(self.encoder, patches.take, places, size, bool(training))
        return shaped(codes, patches, self.encoder)

    def _sampled(self, patches: Patches, sampling: float | int) -> tf.Tensor:
        """Z, of which one set of patches has a gradient."""
        seed = self.next_seed()
        choose = patch_sampling.Chooser(
            sampling,
            "shuffle",
            self.encoder_scale,
            patches.batch,
            patches.count,
            seed,
        )
        size = slice_size(self.patches_at_once, patches.batch, choose.size)
        codes = filled(self, patches, size, seed)
        places, weights = choose(tf.constant(0), lambda: codes)
        fresh = slice_encoder.encode(self.encoder, patches.take, places, size)
        return shaped(
            replaced(codes, places, patch_sampling.weighted(fresh, weights)), patches, self.encoder
        )

    def compute_output_shape(self, shape: Any) -> Any:
        axes = zip(shape[1:-1], self.patch, self.stride, strict=True)
        cells = [None if axis[0] is None else patch_grid.num_cells(*axis) for axis in axes]
        return (shape[0], *cells, *slice_encoder.code_shape(self.encoder))

    def compute_output_spec(self, images: Any, training: bool | None = None) -> Any:
        sizes = images.shape[1:-1]
        if None not in sizes:
            patch_grid.PatchGrid(tuple(sizes), self.patch, self.stride)
        shape = self.compute_output_shape(images.shape)
        return keras.KerasTensor(shape, self.encoder.outputs[0].dtype)

    def get_config(self) -> dict[str, Any]:
        own = (
            "patch",
            "stride",
            "sampling",
            "patches_at_once",
            "encoder_scale",
            "filling_norm",
            "seed",
        )
        encoder = keras.saving.serialize_keras_object(self.encoder)
        return (
            super().get_config()
            | {name: getattr(self, name) for name in own}
            | {"encoder": encoder}
        )

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> LatentGrid:
        config = dict(config)
        encoder = keras.saving.deserialize_keras_object(config.pop("encoder"), custom_objects)
        return cls(encoder, **config)


def patch_model(
    encoder: keras.Model,
    head: keras.Layer,
    patch: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    image_shape: Sequence[int | None] | None = None,
) -> keras.Model:
    """The plain model that PatchGD trains: the head of the codes of all patches, in one pass.

    Args:
        encoder, head, patch, stride: as in `tfbig.PatchGD`.
        image_shape: `(*extents, C)`; None where it may be any. By default any size.
    """
    z = LatentGrid(encoder, patch, stride, name="latent_grid")
    spec = encoder.inputs[0]
    shape = tuple(image_shape or (*[None] * len(z.patch), spec.shape[-1]))
    image = keras.Input(shape, dtype=spec.dtype, name="image")
    grid = SideBySide(len(z.patch), name="side_by_side")(z(image))
    return keras.Model(image, head(grid), name=f"{head.name}_of_{encoder.name}")


def filled(
    layer: Any, patches: Patches, size: Any, seed: tf.Tensor, on_host: bool = False
) -> tf.Tensor:
    """Codes of all patches `[N, n, d]` in training, without a gradient.

    Published, BatchNormalization has the statistics of slices of shuffled patches; frozen, its moving ones, and patches
    come in the order of the grid.

    Args:
        layer: has `encoder` and `filling_norm`.
        patches: of the images.
        size: patches of each image in a slice.
        seed: two integers.
        on_host: whether the codes are gathered in host memory.
    """
    places = patches.places()
    training = layer.filling_norm == "published"
    if not training or not mixes(layer.encoder):
        return slice_encoder.fill(layer.encoder, patches.take, places, size, training, on_host)
    own = patch_sampling.folded(seed, 0)
    numbers = tf.random.stateless_uniform([patches.batch, patches.count], own)
    shuffled = tf.ensure_shape(tf.argsort(numbers), places.shape)
    codes = slice_encoder.fill(layer.encoder, patches.take, shuffled, size, training, on_host)
    with slice_encoder.placed(on_host):
        return tf.gather(codes, tf.argsort(shuffled), batch_dims=1)


def shaped(codes: tf.Tensor, patches: Patches, encoder: keras.Model) -> tf.Tensor:
    """Codes `[N, n, d]` as Z `[N, *cells, d]`."""
    inside = slice_encoder.code_shape(encoder)
    z = tf.reshape(codes, [patches.batch, *patches.cells, *inside])
    known = [patch_sampling.static(n) for n in (patches.batch, *patches.cells)]
    return tf.ensure_shape(z, [*known, *inside])


def side_by_side(z: tf.Tensor, axes: int) -> tf.Tensor:
    """Maps `[N, *cells, *map, d]` of cells that touch as one map `[N, *(cells * map), d]`."""
    if z.shape.rank == axes + 2:
        return z
    batch, *sizes = slice_encoder.sizes(z)
    whole = [n * m for n, m in zip(sizes[:axes], sizes[axes:-1], strict=True)]
    return tf.reshape(
        tf.transpose(z, [0, *interleaved(1, axes), 1 + 2 * axes]), [batch, *whole, sizes[-1]]
    )


def interleaved(first: int, axes: int) -> list[int]:
    """Axes `first` to `first + 2 * axes` so that each of the cells is followed by that inside the cell."""
    return [first + axes * inside + axis for axis in range(axes) for inside in (0, 1)]


def replaced(codes: tf.Tensor, places: tf.Tensor, fresh: tf.Tensor) -> tf.Tensor:
    """`codes` `[N, n, ...]` with `fresh` `[N, m, ...]` at `places` `[N, m]`."""
    shape = tf.shape(places)
    images = tf.tile(tf.range(shape[0])[:, None], [1, shape[1]])
    index = tf.stack([images, places], -1)
    return tf.tensor_scatter_nd_update(codes, index, fresh)


def slice_size(patches_at_once: int | None, batch: Any, count: Any) -> Any:
    """Patches of each image in a slice of `patches_at_once` patches of `batch` images; `count` by default."""
    if patches_at_once is None:
        return count
    if isinstance(batch, int):
        return max(patches_at_once // batch, 1)
    return tf.maximum(patches_at_once // batch, 1)


def mixes(encoder: keras.Model) -> bool:
    """Whether what the encoder makes of a patch in training depends on the others of the slice."""
    layers = encoder._flatten_layers(include_self=False)
    norms = [each for each in layers if isinstance(each, keras.layers.BatchNormalization)]
    return any(norm.trainable for norm in norms)


def check_encoder(encoder: keras.Model) -> None:
    """Refuses what cannot encode patches.

    Raises:
        ValueError: it has several inputs or outputs, a code of unknown size, or adds activity losses, which slices
            would lose.
    """
    if len(encoder.inputs) != 1 or len(encoder.outputs) != 1:
        raise ValueError(
            f"encoder '{encoder.name}' has {len(encoder.inputs)} inputs and {len(encoder.outputs)} outputs; expected "
            "one of each, a patch and its code."
        )
    if None in slice_encoder.code_shape(encoder):
        raise ValueError(
            f"encoder '{encoder.name}' makes {slice_encoder.code_shape(encoder)} of a patch, which is known where its "
            "input has the rows and columns of a patch: `keras.Input((*patch, C))`."
        )
    for layer in encoder._flatten_layers(include_self=False):
        if getattr(layer, "activity_regularizer", None) is not None:
            raise ValueError(
                f"'{layer.name}' of encoder '{encoder.name}' has an activity_regularizer, whose loss would be lost "
                "between slices; regularise its weights instead, or the head."
            )

"""The latent grid Z of an image as a layer, and the plain model of an encoder of patches and a head over Z."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfbig.choices import FILLINGS
from tfbig.geometry import patch_grid
from tfbig.patchgd import patch_sampling, slice_encoder
from tfbig.patchgd.patch_reader import PatchReader
from tfbig.system import keras_internals
from tfbig.system.parts import WithParts


@keras.saving.register_keras_serializable(package="tfbig")
class SideBySide(keras.layers.Layer):
    """Layer that joins the maps of codes in Z, `[N, *cells, *map, d]`, to one map `[N, *(cells * map), d]`.

    Codes that are vectors, `[N, *cells, d]`, are returned unchanged. Used by `patch_model` for encoders without
    pooling, whose Z is then the feature map of the whole image.

    Args:
        axes: Number of axes of the image, 1 to 3.
        **options: Options of `keras.layers.Layer`, such as `name`.

    Returns:
        A map `[N, *(cells * map), d]`.

    Raises:
        ValueError: A map has another number of axes than the image.

    Example:
        >>> z = np.zeros((1, 2, 3, 4, 4, 8), "float32")  # 2 x 3 patches, each with a map of 4 x 4 codes
        >>> tfbig.patchgd.SideBySide(axes=2)(z).shape
        TensorShape([1, 8, 12, 8])
    """

    def __init__(self, axes: int, **options: Any) -> None:
        super().__init__(**options)
        self.axes = axes
        self.autocast = False

    def call(self, z: Any) -> Any:
        """Return the maps of Z as one map."""
        return side_by_side(z, self.axes)

    def compute_output_shape(self, shape: Any) -> Any:
        """Return the shape of the joined map."""
        cells, inside = shape[1 : 1 + self.axes], shape[1 + self.axes : -1] or [1] * self.axes
        whole = [None if n is None else n * m for n, m in zip(cells, inside, strict=True)]
        return (shape[0], *whole, shape[-1])

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the layer."""
        return super().get_config() | {"axes": self.axes}


@keras.saving.register_keras_serializable(package="tfbig")
class LatentGrid(WithParts, patch_sampling.DrawCounter, keras.layers.Layer):
    """Codes of all patches of an image at their places: `[N, *extents, C]` to Z `[N, *cells, d]`.

    Without `sampling` it is a plain layer: all patches are one batch of the encoder. With `sampling` it trains by
    PatchGD: Z is filled without a gradient, then the patches of one random set are encoded again with a gradient.
    Inside the encoder of another grid it makes a hierarchy, the way to gigapixels that the authors propose (Gupta et
    al., "Patch gradient descent: training neural networks on very large images", appendix B):

        cell_encoder = Model(cell, inner_head(LatentGrid(encoder, 128, sampling=0.1)(cell)))
        model = PatchGD(cell_encoder, head, patch=2048)

    Args:
        encoder: Keras model from patches `[B, *patch, C]` to codes `[B, d]`, or to maps of codes `[B, *map, d]`. Z then
            is `[N, *cells, *map, d]`, which `tfbig.patchgd.SideBySide` joins.
        patch: Size of a patch along each axis, or one number for all; images have 1, 2 or 3 axes.
        stride: Distance between patches; by default the patch.
        sampling: Patches with a gradient in a training step, a number or a share; by default all, which is exact.
        patches_at_once: Patches that the encoder gets in one slice, summed over the images of a batch; by default all.
            BatchNormalization of the encoder has the statistics of the slice.
        encoder_scale: As in `tfbig.PatchGD`; matters only with `sampling`.
        filling_norm: As in `tfbig.PatchGD`; matters only with `sampling`.
        seed: Seed of the random sets of patches.
        **options: Options of `keras.layers.Layer`, such as `name`.

    Returns:
        Z, `[N, *cells, d]` or `[N, *cells, *map, d]`.

    Raises:
        ValueError: An argument is out of range, or an image is smaller than a patch.

    Example:
        >>> encoder = keras.Sequential([keras.Input((4, 4, 1)), keras.layers.Flatten(), keras.layers.Dense(3)])
        >>> grid = tfbig.patchgd.LatentGrid(encoder, patch=4)
        >>> image = np.arange(96, dtype="float32").reshape(1, 8, 12, 1)
        >>> z = grid(image)
        >>> z.shape  # codes of 2 x 3 patches
        TensorShape([1, 2, 3, 3])
        >>> bool(np.allclose(z[0, 1, 2], encoder(image[:, 4:8, 8:12])[0]))
        True
    """

    PARTS = ("encoder",)

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
        patch_sampling.check_sampling(
            1.0 if sampling is None else sampling, "shuffle", encoder_scale
        )
        patch_sampling.check_option("filling_norm", filling_norm, FILLINGS)
        self.encoder = encoder
        self.sampling = sampling
        self.patches_at_once = patches_at_once
        self.encoder_scale = encoder_scale
        self.filling_norm = filling_norm
        self.autocast = False  # the encoder casts its own inputs
        self.supports_jit = False
        self.count_draws(seed)

    def build(self, shape: Any) -> None:
        """Mark the layer as built; the encoder has its weights already."""
        self.built = True

    def call(self, images: Any, training: bool | None = None) -> Any:
        """Return Z of images `[N, *extents, C]`."""
        patches = PatchReader(images, self.patch, self.stride, images.shape[-1], images.dtype)
        if training and self.sampling is not None:
            return self._sampled(patches, self.sampling)
        indices = patches.indices()
        size = slice_size(self.patches_at_once, patches.batch, patches.count)
        codes = slice_encoder.encode(self.encoder, patches.take, indices, size, bool(training))
        return shaped(codes, patches, self.encoder)

    def _sampled(self, patches: PatchReader, sampling: float | int) -> tf.Tensor:
        """Return Z, with a gradient for one random set of patches."""
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
        indices, weights = choose(tf.constant(0), lambda: codes)
        fresh = slice_encoder.encode(self.encoder, patches.take, indices, size)
        return shaped(
            replaced(codes, indices, patch_sampling.weighted(fresh, weights)), patches, self.encoder
        )

    def compute_output_shape(self, shape: Any) -> Any:
        """Return the shape of Z."""
        axes = zip(shape[1:-1], self.patch, self.stride, strict=True)
        cells = [None if axis[0] is None else patch_grid.num_cells(*axis) for axis in axes]
        return (shape[0], *cells, *slice_encoder.code_shape(self.encoder))

    def compute_output_spec(self, images: Any, training: bool | None = None) -> Any:
        """Return the shape and dtype of Z; raises a ValueError if the image is smaller than a patch."""
        sizes = images.shape[1:-1]
        if None not in sizes:
            patch_grid.PatchGrid(tuple(sizes), self.patch, self.stride)
        shape = self.compute_output_shape(images.shape)
        return keras.KerasTensor(shape, self.encoder.outputs[0].dtype)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the layer."""
        names = (
            "patch",
            "stride",
            "sampling",
            "patches_at_once",
            "encoder_scale",
            "filling_norm",
            "seed",
        )
        own = {name: getattr(self, name) for name in names}
        return super().get_config() | own | self.parts_config()


def patch_model(
    encoder: keras.Model,
    head: keras.Layer,
    patch: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    image_shape: Sequence[int | None] | None = None,
) -> keras.Model:
    """Build the plain Keras model that PatchGD trains: all patches in one pass, then the head.

    It is the twin of `tfbig.PatchGD` (Gupta et al., "Patch gradient descent: training neural networks on very large
    images"), with exact gradients and the memory of all patches.

    Args:
        encoder: As in `tfbig.PatchGD`.
        head: As in `tfbig.PatchGD`.
        patch: As in `tfbig.PatchGD`.
        stride: As in `tfbig.PatchGD`.
        image_shape: `(*extents, C)`, with None for sizes that vary; by default any size.

    Returns:
        A `keras.Model` from images `[N, *extents, C]` to the outputs of the head.

    Raises:
        ValueError: The encoder cannot encode patches, or an image is smaller than a patch.

    Example:
        >>> encoder = keras.Sequential([keras.Input((4, 4, 1)), keras.layers.Flatten(), keras.layers.Dense(3)])
        >>> head = keras.Sequential([keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(2)])
        >>> model = tfbig.patchgd.patch_model(encoder, head, patch=4)
        >>> model(np.zeros((1, 8, 12, 1), "float32")).shape
        TensorShape([1, 2])
    """
    z = LatentGrid(encoder, patch, stride, name="latent_grid")
    spec = encoder.inputs[0]
    shape = tuple(image_shape or (*[None] * len(z.patch), spec.shape[-1]))
    image = keras.Input(shape, dtype=spec.dtype, name="image")
    grid = SideBySide(len(z.patch), name="side_by_side")(z(image))
    return keras.Model(image, head(grid), name=f"{head.name}_of_{encoder.name}")


def filled(
    layer: Any, patches: PatchReader, size: Any, seed: tf.Tensor, on_host: bool = False
) -> tf.Tensor:
    """Return the codes of all patches in training, `[N, n, d]`, without a gradient.

    With `filling_norm="published"`, BatchNormalization has the statistics of slices of shuffled patches; with "frozen",
    its moving statistics, and patches are encoded in the order of the grid.
    """
    indices = patches.indices()
    training = layer.filling_norm == "published"
    if not training or not mixes_patches(layer.encoder):
        return slice_encoder.fill(layer.encoder, patches.take, indices, size, training, on_host)
    shuffle_seed = patch_sampling.seed_of_part(seed, 0)
    numbers = tf.random.stateless_uniform([patches.batch, patches.count], shuffle_seed)
    shuffled = tf.ensure_shape(tf.argsort(numbers), indices.shape)
    codes = slice_encoder.fill(layer.encoder, patches.take, shuffled, size, training, on_host)
    with slice_encoder.placed(on_host):
        return tf.gather(codes, tf.argsort(shuffled), batch_dims=1)


def shaped(codes: tf.Tensor, patches: PatchReader, encoder: keras.Model) -> tf.Tensor:
    """Return codes `[N, n, d]` as Z `[N, *cells, d]`."""
    code_shape = slice_encoder.code_shape(encoder)
    z = tf.reshape(codes, [patches.batch, *patches.cells, *code_shape])
    static_sizes = [patch_sampling.static(n) for n in (patches.batch, *patches.cells)]
    return tf.ensure_shape(z, [*static_sizes, *code_shape])


def side_by_side(z: tf.Tensor, axes: int) -> tf.Tensor:
    """Return maps `[N, *cells, *map, d]` of adjacent cells as one map `[N, *(cells * map), d]`."""
    if z.shape.rank == axes + 2:
        return z
    batch, *sizes = slice_encoder.sizes(z)
    whole = [n * m for n, m in zip(sizes[:axes], sizes[axes:-1], strict=True)]
    return tf.reshape(
        tf.transpose(z, [0, *interleaved(1, axes), 1 + 2 * axes]), [batch, *whole, sizes[-1]]
    )


def interleaved(first: int, axes: int) -> list[int]:
    """Return axes `first` to `first + 2 * axes`, each axis of the cells followed by the same axis inside a cell."""
    return [first + axes * inside + axis for axis in range(axes) for inside in (0, 1)]


def replaced(codes: tf.Tensor, indices: tf.Tensor, fresh: tf.Tensor) -> tf.Tensor:
    """Return codes with some of them replaced, a copy of `codes` where the rows at `indices` are `fresh`.

    This is how PatchGD puts the codes of an inner step into Z (Gupta et al., "Patch gradient descent: training neural
    networks on very large images"); the gradient reaches `fresh`, and `codes` elsewhere.

    Args:
        codes: Codes of all patches, `[N, n, ...]`.
        indices: Numbers of the patches to replace, int32 `[N, m]`, each once per image.
        fresh: New codes, `[N, m, ...]`.

    Returns:
        Codes `[N, n, ...]`.

    Raises:
        tf.errors.InvalidArgumentError: The shapes do not match.

    Example:
        >>> codes = tf.zeros([1, 4, 1])
        >>> fresh = tf.constant([[[7.0], [8.0]]])
        >>> tfbig.patchgd.replaced(codes, tf.constant([[1, 3]]), fresh)[0, :, 0].numpy()
        array([0., 7., 0., 8.], dtype=float32)
    """
    shape = tf.shape(indices)
    images = tf.tile(tf.range(shape[0])[:, None], [1, shape[1]])
    index = tf.stack([images, indices], -1)
    return tf.tensor_scatter_nd_update(codes, index, fresh)


def slice_size(patches_at_once: int | None, batch: Any, count: Any) -> Any:
    """Return the patches of each image in a slice of `patches_at_once` patches of `batch` images; `count` for None."""
    if patches_at_once is None:
        return count
    if isinstance(batch, int):
        return max(patches_at_once // batch, 1)
    return tf.maximum(patches_at_once // batch, 1)


def mixes_patches(encoder: keras.Model) -> bool:
    """Return whether the code of a patch in training depends on the other patches of the slice."""
    layers = keras_internals.inner_layers(encoder)
    norms = [each for each in layers if isinstance(each, keras.layers.BatchNormalization)]
    return any(norm.trainable for norm in norms)


def check_encoder(encoder: keras.Model) -> None:
    """Check that a model can encode patches.

    Raises:
        ValueError: It has several inputs or outputs, a code of unknown size, or activity regularizers, whose losses
            would be lost between slices.
    """
    if len(encoder.inputs) != 1 or len(encoder.outputs) != 1:
        raise ValueError(
            f"encoder '{encoder.name}' has {len(encoder.inputs)} inputs and {len(encoder.outputs)} outputs; expected "
            "one input, a patch, and one output, its code."
        )
    if None in slice_encoder.code_shape(encoder):
        raise ValueError(
            f"encoder '{encoder.name}' has outputs of unknown size {slice_encoder.code_shape(encoder)}; give its "
            "input the rows and columns of a patch: `keras.Input((*patch, C))`."
        )
    for layer in keras_internals.inner_layers(encoder):
        if getattr(layer, "activity_regularizer", None) is not None:
            raise ValueError(
                f"'{layer.name}' of encoder '{encoder.name}' has an activity_regularizer, whose loss would be lost "
                "between slices; regularise its weights instead, or the head."
            )

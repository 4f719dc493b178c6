"""The patches of a batch of images in a graph: cut from a tensor, or read by handle without holding an image whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfbig import sources
from tfbig.engine import read_ahead
from tfbig.errors import Advice, SourceError
from tfbig.geometry.patch_grid import PatchGrid, num_cells
from tfbig.patchgd.slice_encoder import sizes
from tfbig.sources.bags.patches import patch_grid, read_patches
from tfbig.system import callbacks
from tfbig.units import counted


class PatchReader:
    """Reader of the patches of a batch of images of one size, inside a TensorFlow graph.

    Args:
        images: Tensor `[N, *extents, C]`, or handles, strings `[N]`.
        patch: As in `tfbig.geometry.patch_grid.PatchGrid`.
        stride: As in `tfbig.geometry.patch_grid.PatchGrid`.
        channels: Number of channels C.
        source_dtype: Dtype of images given by handle.
        exact: Whether the size of an image must be a multiple of the patch.
        extents: Size of images given by handle, if it is known.

    Attributes:
        batch: Number of images N.
        cells: Number of patches along each axis.
        count: Number of patches of an image.

    Each attribute is an integer if it is known while tracing, else an int32 tensor.
    """

    def __init__(
        self,
        images: tf.Tensor,
        patch: Sequence[int],
        stride: Sequence[int],
        channels: int,
        source_dtype: str = "uint8",
        exact: bool = False,
        extents: Sequence[int] | None = None,
    ) -> None:
        self._exact, self._extents = exact, None if extents is None else tuple(extents)
        self._images, self._patch, self._stride = images, tuple(patch), tuple(stride)
        self._channels, self._dtype = channels, tf.as_dtype(source_dtype)
        self._by_handle = images.dtype == tf.string
        if self._by_handle:
            self.batch = sizes(images)[0]
            if self._extents is not None:
                grid = PatchGrid(self._extents, self._patch, self._stride)
                self.cells, self.count = grid.cells, grid.count
                return
            self.cells = tuple(tf.unstack(self._read_cells(), num=len(self._patch)))
            self.count = tf.reduce_prod(tf.stack(self.cells))
            return
        self.batch, *extents_of_images, _ = sizes(images)
        if all(isinstance(extent, int) for extent in extents_of_images):
            PatchGrid(
                tuple(extents_of_images), self._patch, self._stride
            )  # raises if it does not fit
            self._check_exact(extents_of_images)
        axes = zip(extents_of_images, self._patch, self._stride, strict=True)
        self.cells = tuple(num_cells(*axis) for axis in axes)
        self._all = _cut(images, extents_of_images, self.cells, self._patch, self._stride)
        self.count = sizes(self._all)[1]

    def indices(self) -> tf.Tensor:
        """Return the numbers of all patches, `[N, n]`."""
        return tf.tile(tf.range(self.count)[None], [self.batch, 1])

    def take(self, indices: tf.Tensor) -> tf.Tensor:
        """Return the patches with the numbers `indices`, `[N, k, *patch, C]`."""
        if not self._by_handle:
            return tf.gather(self._all, indices, batch_dims=1)
        patches = callbacks.numpy_function(self._read, [self._images, indices], self._dtype)
        return tf.ensure_shape(patches, [*indices.shape, *self._patch, self._channels])

    def _read_cells(self) -> tf.Tensor:
        def cells(handles: np.ndarray) -> np.ndarray:
            grids = [self._grid(sources.resolve(h.decode())) for h in np.ravel(handles)]
            return np.array(grids[0].cells, np.int32)

        shape = read_ahead.source_shape(
            self._images, len(self._patch) + 2
        )  # raises on unequal sizes
        with tf.control_dependencies([shape]):
            cells_of_images = callbacks.numpy_function(cells, [self._images], tf.int32)
        return tf.ensure_shape(cells_of_images, [len(self._patch)])

    def _grid(self, image: Any) -> PatchGrid:
        """Return the grid over an image, after checking its dtype, channels and size."""
        if image.dtype != self._dtype.as_numpy_dtype or image.shape[-1] != self._channels:
            raise SourceError(
                f"{image.name}: has {counted(image.shape[-1], 'channel')} of {image.dtype}; expected {self._channels} "
                f"of {self._dtype.name}.",
                Advice.DTYPE,
                found=image.dtype,
            )
        if self._extents not in (None, image.shape[:-1]):
            raise SourceError(
                f"{image.name}: has size {image.shape[:-1]}; expected {self._extents}, the image_shape of the model."
            )
        self._check_exact(image.shape[:-1], f"{image.name}: ")
        return patch_grid(image, self._patch, self._stride)

    def _check_exact(self, extents: Sequence[int], name: str = "") -> None:
        pairs = zip(extents, self._patch, strict=False)
        if self._exact and any(extent % size for extent, size in pairs):
            raise SourceError(
                f"{name}the image has size {tuple(extents)}; expected a multiple of the patch {self._patch}.",
                Advice.PAD,
            )

    def _read(self, handles: np.ndarray, indices: np.ndarray) -> np.ndarray:
        images = [sources.resolve(h.decode()) for h in np.ravel(handles)]
        pairs = zip(images, indices, strict=True)
        return np.stack(
            [read_patches(image, self._grid(image), numbers) for image, numbers in pairs]
        )


def _cut(
    images: tf.Tensor,
    extents: Sequence[Any],
    cells: Sequence[Any],
    patch: Sequence[int],
    stride: Sequence[int],
) -> tf.Tensor:
    """Return all patches of `[N, *extents, C]`, `[N, count, *patch, C]`: one copy, larger by their overlap."""
    batch, *_, channels = sizes(images)
    for axis, (extent, size, step) in enumerate(zip(extents, patch, stride, strict=True), 1):
        divides = isinstance(extent, int) and step == size and extent % size == 0
        if not divides:
            starts = tf.minimum(tf.range(num_cells(extent, size, step)) * step, extent - size)
            with tf.control_dependencies([_assert_large_enough(extent, size)]):
                pixels = starts[:, None] + tf.range(size)
            images = tf.gather(images, tf.reshape(pixels, [-1]), axis=axis)
    count = len(patch)
    pairs = [n for pair in zip(cells, patch, strict=True) for n in pair]
    cells_and_patches = tf.reshape(images, [batch, *pairs, channels])
    order = [0, *range(1, 2 * count, 2), *range(2, 2 * count + 1, 2), 2 * count + 1]
    total = int(np.prod(cells)) if all(isinstance(n, int) for n in cells) else -1
    return tf.reshape(tf.transpose(cells_and_patches, order), [batch, total, *patch, channels])


def _assert_large_enough(extent: Any, size: int) -> Any:
    return tf.debugging.assert_greater_equal(
        extent, size, f"an image is smaller than a patch of {size} along an axis"
    )

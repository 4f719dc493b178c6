"""Stores that hold some tiles of an image, and one pattern for all of its background (`tfbig.stores.tiling`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import tensorflow as tf

from tfbig.stores import file_pool, tiling
from tfbig.stores.host_store import HostArray, StoreRequest, new_array, new_arrays, sent
from tfbig.stores.image_store import StripPart
from tfbig.stores.tiling import Tiling
from tfbig.stores.transfers import Changes, Reads
from tfbig.system import callbacks


class _Tiles(HostArray):
    """Tiles of images, one after the other in a vector."""

    def whole(self, dtype: Any, rank: int) -> tf.Tensor:
        """Return the whole image; of sums, zeros in the background, of which only the sum is known."""
        image = callbacks.numpy_function(
            lambda store: tiling.of(store).dense(store), [self.array], self.array.dtype
        )
        return tf.cast(tf.ensure_shape(image, [None] * rank), dtype)


class TiledImage(_Tiles):
    """Images: the tiles that are not background, and the pattern of the background."""

    def read(self, reads: Reads, part: StripPart) -> Callable[[], tf.Tensor]:
        """Request a rectangle."""
        tile = reads.request(_read, [self.array, *part.bounds], self.array.dtype)
        return lambda: part.shaped(sent(tile(), part.device))

    def write(self, changes: Changes, part: StripPart, rows: tf.Tensor) -> Self:
        """Write a tile, or the pattern."""
        with tf.device(part.device):
            tile = tf.cast(rows, self.array.dtype)
        changes.request(_write, [self.array, tile, part.is_pattern, *part.firsts])
        return self


class TiledGradient(_Tiles):
    """Gradients of images: those of the tiles that are not background, and the sums of those of the background.

    Tiles are zero until something is added. Sums of the background are not rounded to the dtype of the store.
    """

    def read(self, reads: Reads, part: StripPart) -> Callable[[], tf.Tensor]:
        """Request a rectangle, or the sums of the background."""
        inputs = [self.array, part.is_pattern, *part.bounds]
        tile = reads.request(_read_sums, inputs, self.array.dtype)

        def rows() -> tf.Tensor:
            shaped = part.shaped(sent(tile(), part.device))
            if shaped.dtype.size <= self.array.dtype.size:
                return shaped
            with tf.device(part.device):
                return tf.cond(
                    part.is_the_pattern,
                    lambda: part.shaped(self._background_sums(shaped.dtype)),
                    lambda: shaped,
                )

        return rows

    def write(self, changes: Changes, part: StripPart, rows: tf.Tensor) -> Self:
        """Write a tile, or the sums of the background."""
        changes.request(_write_sums, self._change(part, rows))
        return self

    def add(self, changes: Changes, part: StripPart, rows: tf.Tensor) -> Self:
        """Add a rectangle, or gradients of the pattern."""
        changes.request(_add, self._change(part, rows))
        return self

    def add_image(self, image: tf.Tensor) -> Self:
        """Add a whole image `[N, H, W, C]`, and return the store for what is computed after it."""

        def add_all(store: np.ndarray, image: np.ndarray) -> None:
            tiles = tiling.of(store)
            tiles.add(store, image, [0] * tiles.axes)

        inputs = [self.array, tf.cast(image, self.array.dtype)]
        with tf.control_dependencies([callbacks.numpy_function(add_all, inputs, [])]):
            return self.map(tf.identity)

    def _background_sums(self, dtype: tf.DType) -> tf.Tensor:
        """Return the sums of the background in a dtype, `[N, rows of the pattern, its columns, ..., C]`."""

        def sums(store: np.ndarray) -> np.ndarray:
            return tiling.of(store).sums_of_background(dtype.as_numpy_dtype)

        return callbacks.numpy_function(sums, [self.array], dtype, stateful=False)

    def _change(self, part: StripPart, tile: tf.Tensor) -> list[tf.Tensor]:
        """Return the inputs of a change: the tile in the dtype of the store, and the pattern as it is."""
        with tf.device(part.device):
            narrow = tf.cast(tile, self.array.dtype)
        pattern = tf.zeros([0], tile.dtype)
        if tile.dtype != self.array.dtype:
            nothing = tf.zeros([0] * (tile.shape.rank or 0), tile.dtype)
            pattern = tf.cond(part.is_the_pattern, lambda: tile, lambda: nothing)
        return [self.array, narrow, pattern, part.is_pattern, *part.firsts]


def allocate(
    shapes: tf.Tensor,
    addresses: tf.Tensor,
    requests: Sequence[StoreRequest],
    tiles: Sequence[tf.Tensor],
    sums: bool,
) -> list[tf.Tensor]:
    """Create uninitialised arrays of tiles.

    Args:
        shapes: As in `tfbig.stores.host_store.allocate`.
        addresses: As there.
        requests: As there.
        tiles: Tiles of each store, `[n, 2 * axes + 1]`: as in `Tiling`, then 1 for the pattern.
        sums: Whether they are stores of sums.

    Returns:
        Vectors.
    """

    def make(shapes: np.ndarray, addresses: np.ndarray, *tiles: np.ndarray) -> list[np.ndarray]:
        arrays = []
        for request, table in zip(requests, tiles, strict=True):
            new = Tiling(shapes[request.value], table[:, :-1], table[:, -1] > 0, sums)
            arrays.append(new_array(request, (new.elements,), int(addresses[request.value])))
            tiling.remember(arrays[-1], new)
        return arrays

    return new_arrays(make, [shapes, addresses, *tiles], requests)


def _read(store: np.ndarray, *bounds: np.ndarray) -> np.ndarray:
    return _read_sums(store, 0, *bounds)


def _read_sums(store: np.ndarray, is_pattern: Any, *bounds: np.ndarray) -> np.ndarray:
    """Return a rectangle of a store; `bounds` are the start and the stop along each axis."""
    starts, stops = (list(map(int, bounds[n::2])) for n in (0, 1))
    tiles = tiling.of(store)
    part = tiles.read(store, starts, stops, bool(is_pattern))
    _forget(store, tiles.left(store))
    return part


def _write(store: np.ndarray, tile: np.ndarray, is_pattern: int, *firsts: int) -> None:
    written = tiling.of(store).write(store, tile, list(map(int, firsts)), bool(is_pattern))
    _forget(store, [written])


def _write_sums(
    store: np.ndarray, tile: np.ndarray, pattern: np.ndarray, is_pattern: int, *firsts: int
) -> None:
    _write(store, pattern if pattern.size else tile, is_pattern, *firsts)


def _add(
    store: np.ndarray, tile: np.ndarray, pattern: np.ndarray, is_pattern: int, *firsts: int
) -> None:
    tiles, numbers = tiling.of(store), list(map(int, firsts))
    if is_pattern and tiles.background_sums is not None:
        tiles.add_to_background(pattern if pattern.size else tile, numbers)
    else:
        _forget(store, tiles.add(store, tile, numbers))


def _forget(store: np.ndarray, tiles: Sequence[np.ndarray]) -> None:
    """Let the system write tiles to the file that they are in, and reuse their memory."""
    file = file_pool.pool_of(store)
    for tile in tiles if file is not None else ():
        if tile.size:
            file.drop(tile)  # type: ignore[union-attr]

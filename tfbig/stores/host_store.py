"""Arrays in host memory or in the scratch file, and the store of whole images in one.

The memory of an array is of `tfbig.stores.page_pool` or `tfbig.stores.file_pool`, and is freed with the last reference
to the tensor. Inside a loop, TensorFlow copies its own tensors when they change. These arrays are changed in place,
because TensorFlow passes them to NumPy without a copy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import tensorflow as tf

from tfbig.ops.kernels import take_rows
from tfbig.stores import file_pool, parallel_copies
from tfbig.stores.host_memory import MEMORY
from tfbig.stores.image_store import StripPart
from tfbig.stores.page_pool import TILES, Pool
from tfbig.stores.transfers import Changes, Reads, after
from tfbig.system import backend, callbacks
from tfbig.system.backend import HOST

FREED_WITHIN = 0.02
"""Most seconds to wait for the place of an earlier store. A place in use for longer belongs to another step."""


class HostArray(NamedTuple):
    """An array in host memory or in the scratch file, which is changed in place.

    Args:
        array: The array.
    """

    array: tf.Tensor

    @property
    def needs_copy(self) -> bool:
        """True: whole rows of one image are memory of the array."""
        return True

    @property
    def state(self) -> tuple[()]:
        """`()`: the array is changed in place."""
        return ()

    def with_state(self, state: Any) -> Self:
        """Return the store."""
        return self

    def after(self, done: tf.Tensor) -> Self:
        """Return the store; what reads it waits until `done` is computed."""
        return self._replace(array=after([self.array], done)[0])

    def map(self, function: Callable[[tf.Tensor], Any]) -> Self:
        """Return the store with a function applied to its array."""
        return self._replace(array=function(self.array))


class HostImage(HostArray):
    """Whole images `[N, H, W, C]`."""

    def read(self, reads: Reads, part: StripPart) -> Callable[[], tf.Tensor]:
        """Request rows, or a tile; whole rows of one image are not copied."""
        rows = reads.request(_read, [self.array, *part.bounds], self.array.dtype)
        in_store = len(part.intervals) == 1
        return lambda: part.shaped(sent(rows(), part.device, in_store))

    def write(self, changes: Changes, part: StripPart, rows: tf.Tensor) -> Self:
        """Write rows, or a tile."""
        changes.request(_write, [self.array, self._narrow(part, rows), *part.firsts])
        return self

    def add(self, changes: Changes, part: StripPart, rows: tf.Tensor) -> Self:
        """Add rows, or a tile; uninitialised rows are replaced, or become zero where nothing is added."""
        rows = self._narrow(part, rows)
        if len(part.intervals) > 1:
            changes.request(_add_tile, [self.array, rows, *part.firsts])
        else:
            ((start, stop),) = part.intervals
            changes.request(_add, [self.array, rows, start, *(part.uninitialised or (stop, stop))])
        return self

    def whole(self, dtype: Any, rank: int) -> tf.Tensor:
        """Return the whole image."""
        return tf.cast(self.array, dtype)

    def _narrow(self, part: StripPart, rows: tf.Tensor) -> tf.Tensor:
        """Return rows in the dtype of the store, cast where they are computed."""
        with tf.device(part.device):
            return tf.cast(rows, self.array.dtype)


class StoreRequest(NamedTuple):
    """Request for a new store.

    Args:
        value: Row of the tables of shapes and addresses.
        dtype: Element type.
        folder: Directory of the scratch file; None for host memory.
    """

    value: int
    dtype: tf.DType
    folder: str | None = None


def allocate(
    shapes: tf.Tensor, addresses: tf.Tensor, requests: Sequence[StoreRequest]
) -> list[tf.Tensor]:
    """Create uninitialised arrays of whole images.

    Args:
        shapes: `[values, axes]` int64: N, sizes of the spatial axes, C.
        addresses: `[values]` int64: preferred first byte in the pool or file; -1 for any.
        requests: The arrays to create.

    Returns:
        Tensors `[N, H, W, C]`.
    """

    def make(shapes: np.ndarray, addresses: np.ndarray) -> list[np.ndarray]:
        return [
            new_array(
                request, tuple(map(int, shapes[request.value])), int(addresses[request.value])
            )
            for request in requests
        ]

    return new_arrays(make, [shapes, addresses], requests)


def new_arrays(
    make: Callable[..., list[np.ndarray]], inputs: list[tf.Tensor], requests: Sequence[StoreRequest]
) -> list[tf.Tensor]:
    """Return the arrays that a function of some tensors makes, one for each request."""
    if not requests:
        return []
    # TensorFlow frees the arrays of deleted tensors only at its next call to Python: hence a call before this one.
    freed = callbacks.numpy_function(lambda: np.int32(0), [], tf.int32)
    return callbacks.numpy_function(make, after(inputs, freed), [r.dtype for r in requests])


def new_array(request: StoreRequest, shape: tuple[int, ...], address: int) -> np.ndarray:
    """Return an uninitialised array for a request, at a preferred address; -1 for any."""
    wish, size = address if address >= 0 else None, math.prod(shape) * request.dtype.size
    if request.folder is not None:
        pool: Pool = file_pool.pool(request.folder)
    else:
        pool = MEMORY.pool(wish, size)
    if wish is not None:
        _wait_until_free(pool, wish, size)
    return pool.array(shape, request.dtype.as_numpy_dtype, wish)


def _wait_until_free(pool: Pool, start: int, size: int) -> None:
    """Wait for a thread of TensorFlow that has computed the last use of an earlier store, but has not freed it yet.

    Without it, the new store takes another place, and a step needs more memory than planned.
    """
    deadline = time.monotonic() + FREED_WITHIN
    while not pool.is_free(start, size) and time.monotonic() < deadline:
        time.sleep(1e-4)
        tf.constant(0)  # a call of TensorFlow frees the arrays of deleted tensors


def copy(image: tf.Tensor) -> tf.Tensor:
    """Create an array with the content of a tensor.

    Args:
        image: `[N, H, W, C]`.

    Returns:
        The array.
    """
    shapes, addresses = tf.shape(image, tf.int64)[None], tf.constant([-1], tf.int64)
    (store,) = allocate(shapes, addresses, [StoreRequest(0, image.dtype)])
    copied = callbacks.numpy_function(
        lambda store, image: np.copyto(store, image), [store, image], []
    )
    with tf.control_dependencies([copied]):
        return tf.ensure_shape(store, [None] * image.shape.rank)


def staged(rows: tf.Tensor) -> tf.Tensor:
    """Copy rows to page-locked host memory, for an accelerator.

    TensorFlow allocates the result of an operation in page-locked memory if an accelerator reads it: nothing else may
    come between, not even an `EnsureShape` on the host. Copies from there run in parallel to arithmetic. The memory of
    stores is not page-locked. Rows of one image are copied by several threads, as the parts of a concatenation.

    Args:
        rows: `[N, rows, ..., C]`.

    Returns:
        The copy.
    """
    with tf.device(HOST):
        if rows.shape[0] != 1:
            copied = tf.raw_ops.DeepCopy(x=rows)
        else:
            half = tf.shape(rows)[1] // 2
            parts = [take_rows(rows, 0, half), take_rows(rows, half, tf.shape(rows)[1] - half)]
            copied = tf.concat(parts, 1)
    copied.set_shape(rows.shape)
    return copied


def sent(rows: tf.Tensor, device: str | None, in_store: bool = False) -> tf.Tensor:
    """Return rows in memory from which a device can copy while it computes.

    Args:
        rows: `[N, rows, ..., C]`.
        device: The device; None leaves it to TensorFlow.
        in_store: Whether they may be memory of a store, which may be page-locked.
    """
    if not backend.is_gpu(device) or (in_store and MEMORY.can_lock()):
        return rows
    return staged(rows)


def zero(images: list[tf.Tensor], done: tf.Tensor) -> list[tf.Tensor]:
    """Fill arrays with zeros when `done` has been computed.

    Args:
        images: The arrays.
        done: Any tensor.

    Returns:
        The same arrays.
    """

    def fill(_: np.ndarray, *images: np.ndarray) -> None:
        for image in images:
            file = file_pool.pool_of(image)
            if file is None:
                image[...] = 0
            else:
                file.clear(image)

    filled = callbacks.numpy_function(fill, [done, *images], [])
    with tf.control_dependencies([filled]):
        return [tf.identity(image) for image in images]


def _read(store: np.ndarray, *bounds: np.ndarray) -> np.ndarray:
    """Return rows or a tile of a store; `bounds` are the start and the stop along each axis."""
    starts, stops = (list(map(int, bounds[n::2])) for n in (0, 1))
    file = file_pool.pool_of(store)
    if file is not None:
        file.visit(store, starts[0], stops[0])
    part = store[_places(starts, stops)]
    if len(starts) == 1:
        return part
    tile = TILES.array(part.shape, part.dtype)
    tile[...] = part
    return tile


def _places(starts: Sequence[int], stops: Sequence[int]) -> tuple[slice, ...]:
    """Return the index of a part of a store, along the rows and maybe further axes."""
    return (slice(None), *map(slice, starts, stops))


def _target(store: np.ndarray, rows: np.ndarray, firsts: Sequence[int]) -> np.ndarray:
    """Return the part of a store that rows, or a tile, are written to."""
    sizes = rows.shape[1:]
    return store[_places(firsts, [a + n for a, n in zip(firsts, sizes, strict=False)])]


def _write(store: np.ndarray, rows: np.ndarray, *firsts: int) -> None:
    parallel_copies.assign(_target(store, rows, firsts), rows)
    _forget(store, firsts[0], firsts[0] + rows.shape[1])


def _add_tile(store: np.ndarray, tile: np.ndarray, *firsts: int) -> None:
    parallel_copies.add(_target(store, tile, firsts), tile)
    _forget(store, firsts[0], firsts[0] + tile.shape[1])


def _add(store: np.ndarray, rows: np.ndarray, start: int, covered: int, until: int) -> None:
    """Add rows from `start` on; rows from `covered` on are uninitialised, and contain sums up to `until` afterwards."""
    stop = start + rows.shape[1]
    split = min(max(covered, start), stop)
    store[:, covered:start] = 0
    parallel_copies.add(store[:, start:split], rows[:, : split - start])
    parallel_copies.assign(store[:, split:stop], rows[:, split - start :])
    store[:, max(covered, stop) : until] = 0
    _forget(store, min(start, covered), max(stop, until))


def _forget(store: np.ndarray, start: int, stop: int) -> None:
    """Let the system write rows to the file that they are in, and reuse their memory."""
    file = file_pool.pool_of(store)
    if file is not None:
        file.forget(store, start, stop)

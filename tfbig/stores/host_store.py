"""Stores of whole images in host memory or in the scratch file, written and read by rows.

A store is a tensor `[N, H, W, C]` in memory of `tfbig.stores.page_pool` or `tfbig.stores.file_pool`; one that holds
only some tiles of an image is a vector (`tfbig.stores.tiled_store`). It is freed with the last reference to the tensor.
Inside a loop, TensorFlow copies its own tensors when they change. Stores change in place, because TensorFlow passes
them to NumPy without a copy.

The caller keeps operations in order through tensors. A function that changes a store has an argument that is computed
when the previous change was requested, and returns that of the next one; its number is the key of the sweep, of
`begin`. To read after a loop, make the store depend on the end of the loop (`after`). Inside a loop, the calls to
Python are declared stateless: before a stateful call, TensorFlow would end an iteration before the next begins, so
that only one strip would run at a time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import tensorflow as tf

from tfbig.ops.kernels import take_rows
from tfbig.stores import file_pool, parallel_copies, tiled_store
from tfbig.stores.host_memory import MEMORY
from tfbig.stores.page_pool import TILES, Pool
from tfbig.stores.pending_copies import PendingCopies
from tfbig.stores.row_bands import Bands, Writer
from tfbig.stores.tiled_store import Tiling
from tfbig.system import callbacks
from tfbig.system.backend import HOST
from tfbig.system.progress import METER

FREED_WITHIN = 0.02
"""Most seconds to wait for the place of an earlier store. A place in use for longer belongs to another step."""


class NewStore(NamedTuple):
    """Request for a new store.

    Args:
        value: Row of the tables of shapes and addresses.
        dtype: Element type.
        folder: Directory of the scratch file; None for host memory.
        sums: Whether what is added to it outside its tiles is summed up, if it has tiles.
    """

    value: int
    dtype: tf.DType
    folder: str | None = None
    sums: bool = False


def allocate(
    shapes: tf.Tensor,
    places: tf.Tensor,
    requests: list[NewStore],
    tiles: Sequence[tf.Tensor] = (),
) -> list[tf.Tensor]:
    """Create uninitialised stores.

    Args:
        shapes: `[values, axes]` int64: N, sizes of the spatial axes, C.
        places: `[values]` int64: preferred first byte in the pool or file; -1 for any.
        requests: The stores to create.
        tiles: Tiles of each store, `[n, 2 * axes + 1]`: as in `Tiling`, then 1 for the pattern; none for whole images.

    Returns:
        Tensors `[N, H, W, C]`; vectors if they have tiles.
    """
    if not requests:
        return []
    # TensorFlow frees the arrays of deleted tensors only at its next call to Python: hence a call before this one.
    tables = after([shapes, places], callbacks.numpy_function(lambda: np.int32(0), [], tf.int32))

    def make(shapes: np.ndarray, places: np.ndarray, *tiles: np.ndarray) -> list[np.ndarray]:
        tilings = [
            Tiling(shapes[r.value], t[:, :-1], t[:, -1] > 0, r.sums)
            for r, t in zip(requests, tiles, strict=bool(tiles))
        ]
        arrays = []
        for n, request in enumerate(requests):
            shape = (tilings[n].elements,) if tilings else tuple(map(int, shapes[request.value]))
            arrays.append(_new_array(request, shape, int(places[request.value])))
            tiled_store.remember(arrays[-1], tilings[n] if tilings else None)
        return arrays

    return callbacks.numpy_function(make, [*tables, *tiles], [r.dtype for r in requests])


def _new_array(request: NewStore, shape: tuple[int, ...], place: int) -> np.ndarray:
    wish, size = place if place >= 0 else None, math.prod(shape) * request.dtype.size
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
    """Create a store with the content of a tensor.

    Args:
        image: `[N, H, W, C]`.

    Returns:
        The store.
    """
    shapes, places = tf.shape(image, tf.int64)[None], tf.constant([-1], tf.int64)
    (store,) = allocate(shapes, places, [NewStore(0, image.dtype)])
    copied = callbacks.numpy_function(
        lambda store, image: np.copyto(store, image), [store, image], []
    )
    with tf.control_dependencies([copied]):
        return tf.ensure_shape(store, [None] * image.shape.rank)


Copy = Callable[..., tuple[int, int] | None]
"""Function that changes a store, and returns the range of the changed rows; None if it holds tiles."""

Part = list[tuple[tf.Tensor, tf.Tensor]]
"""First row and row after the last; then the same of the columns and further axes, unless they are read whole."""


def read(
    parts: list[tuple[tf.Tensor, Part]], is_pattern: tf.Tensor | None = None
) -> list[tf.Tensor]:
    """Read rows, or tiles, of stores; for N = 1 whole rows are not copied.

    Args:
        parts: Each store, and what to read of it; along as many axes of each.
        is_pattern: Whether to read the sums of the background from stores of sums, int32 scalar.

    Returns:
        Rows `[N, stop - start, W, C]` of each store; of tiles, the columns too.
    """
    if not parts:
        return []
    size = 1 + 2 * len(parts[0][1])
    flat = [t for store, part in parts for t in (store, *(n for pair in part for n in pair))]
    mark = tf.constant(0) if is_pattern is None else is_pattern
    return callbacks.numpy_function(
        lambda mark, *flat: _read(flat, size, bool(mark)),
        [mark, *flat],
        [store.dtype for store, _ in parts],
        stateful=False,
    )


def scatter(store: tf.Tensor, image: tf.Tensor) -> tf.Tensor:
    """Add a whole image to a store of sums that holds tiles, and return the store.

    Args:
        store: The store.
        image: `[N, H, W, C]`.
    """

    def add_all(store: np.ndarray, image: np.ndarray) -> None:
        tiling = tiled_store.tiling_of(store)
        assert tiling is not None
        tiling.add(store, image, [0] * tiling.axes)

    added = callbacks.numpy_function(add_all, [store, tf.cast(image, store.dtype)], [])
    with tf.control_dependencies([added]):
        return tf.identity(store)


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


def zero(images: list[tf.Tensor], after: tf.Tensor) -> list[tf.Tensor]:
    """Fill stores with zeros when `after` has been computed.

    Args:
        images: The stores.
        after: Any tensor.

    Returns:
        The same stores.
    """

    def fill(_: np.ndarray, *images: np.ndarray) -> None:
        for image in images:
            file = file_pool.pool_of(image)
            if file is None:
                image[...] = 0
            else:
                file.clear(image)

    filled = callbacks.numpy_function(fill, [after, *images], [])
    with tf.control_dependencies([filled]):
        return [tf.identity(image) for image in images]


def _read(flat: tuple[Any, ...], size: int, is_pattern: bool) -> list[np.ndarray]:
    return [
        _part(store, list(map(int, bounds)), is_pattern) for store, *bounds in _grouped(flat, size)
    ]


def _part(store: np.ndarray, bounds: list[int], is_pattern: bool) -> np.ndarray:
    """Return rows or a tile of a store; `bounds` are the start and the stop along each axis."""
    starts, stops = bounds[::2], bounds[1::2]
    tiling = tiled_store.tiling_of(store)
    if tiling is not None:
        part = tiling.read(store, starts, stops, is_pattern)
        _forget(store, tiling.left(store))
        return part
    file = file_pool.pool_of(store)
    if file is not None:
        file.visit(store, starts[0], stops[0])
    part = store[_places(starts, stops)]
    if len(starts) == 1:
        return part
    tile = TILES.array(part.shape, part.dtype)
    tile[...] = part
    return tile


def rest(store: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return the sums of the background of a store of sums that holds tiles, not rounded to the dtype of the store.

    Args:
        store: The store.
        dtype: Dtype of the result.

    Returns:
        `[N, rows of the pattern, its columns, ..., C]`.
    """

    def sums(store: np.ndarray) -> np.ndarray:
        tiling = tiled_store.tiling_of(store)
        assert tiling is not None
        assert tiling.rest is not None
        return tiling.rest.astype(dtype.as_numpy_dtype)

    return callbacks.numpy_function(sums, [store], dtype, stateful=False)


def dense(store: tf.Tensor, rank: int) -> tf.Tensor:
    """Return the whole image of a store that holds tiles.

    Args:
        store: The store.
        rank: Number of axes of the image.

    Returns:
        The image `[N, H, W, C]`; the store itself if it holds the whole image.
    """

    def image(store: np.ndarray) -> np.ndarray:
        tiling = tiled_store.tiling_of(store)
        return store if tiling is None else tiling.dense(store)

    return tf.ensure_shape(callbacks.numpy_function(image, [store], store.dtype), [None] * rank)


def _places(starts: Sequence[int], stops: Sequence[int]) -> tuple[slice, ...]:
    """Return the index of a part of a store, along the rows and maybe further axes."""
    return (slice(None), *map(slice, starts, stops))


def _grouped(flat: tuple[Any, ...], size: int) -> Iterator[tuple[Any, ...]]:
    return zip(*[iter(flat)] * size, strict=True)


def _stops(starts: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Return the end of a part along each axis that it has a start of."""
    return [start + size for start, size in zip(starts, shape, strict=False)]


def write(
    changes: list[tuple[tf.Tensor, ...]],
    before: tf.Tensor,
    label: tf.Tensor,
    index: tf.Tensor,
    count: tf.Tensor,
    is_pattern: tf.Tensor | None = None,
) -> tf.Tensor:
    """Write rows or tiles to stores in the background, and report progress. They are in the stores after `finish`.

    Args:
        changes: `(store, rows, first row)` each; of tiles, then the first column, ...
        before: int32 scalar, computed when the previous change was requested.
        label: Name of the sweep.
        index: Index of the strip.
        count: Number of strips.
        is_pattern: Whether the tiles are patterns of background, int32 scalar.

    Returns:
        `before` of the next change.
    """
    if is_pattern is None:
        return _change(_write, changes, before, label, index, count)
    marked = [_narrowed(store, tile, is_pattern, *firsts) for store, tile, *firsts in changes]
    return _change(_write_tile, marked, before, label, index, count)


def _narrowed(
    store: tf.Tensor, tile: tf.Tensor, is_pattern: tf.Tensor, *firsts: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    """Return a change with the tile in the dtype of the store, and the pattern as it is; sums of it are not rounded."""
    narrow = tf.cast(tile, store.dtype)
    if tile.dtype == store.dtype:
        return store, narrow, tf.zeros([0], tile.dtype), is_pattern, *firsts
    nothing = tf.zeros([0] * (tile.shape.rank or 0), tile.dtype)
    pattern = tf.cond(is_pattern > 0, lambda: tile, lambda: nothing)
    return store, narrow, pattern, is_pattern, *firsts


def _write(store: np.ndarray, rows: np.ndarray, *firsts: int) -> tuple[int, int]:
    parallel_copies.assign(store[_places(firsts, _stops(firsts, rows.shape[1:]))], rows)
    return firsts[0], firsts[0] + rows.shape[1]


def _write_tile(
    store: np.ndarray, tile: np.ndarray, pattern: np.ndarray, is_pattern: int, *firsts: int
) -> None:
    tiling = tiled_store.tiling_of(store)
    assert tiling is not None
    if tiling.sums and pattern.size:
        tile = pattern
    _forget(store, [tiling.write(store, tile, list(map(int, firsts)), bool(is_pattern))])


def _forget(store: np.ndarray, tiles: Sequence[np.ndarray]) -> None:
    """Let the system write tiles to the file that they are in, and reuse their memory."""
    file = file_pool.pool_of(store)
    for tile in tiles if file is not None else ():
        if tile.size:
            file.drop(tile)  # type: ignore[union-attr]


def add(
    changes: list[tuple[Any, ...]],
    before: tf.Tensor,
    label: tf.Tensor,
    index: tf.Tensor,
    count: tf.Tensor,
) -> tf.Tensor:
    """Add rows to stores in the background, and report progress. The sums are in the stores after `finish`.

    Args:
        changes: `(store, rows, start, covered, until)` each. Rows before `covered` contain sums already; later rows
            are uninitialised and replaced. Rows from the end of the added ones to `until` become zero.
        before: int32 scalar, computed when the previous change was requested.
        label: Name of the sweep.
        index: Index of the strip.
        count: Number of strips.

    Returns:
        `before` of the next change.
    """
    return _change(_add, changes, before, label, index, count)


def add_tiles(
    changes: list[tuple[tf.Tensor, ...]],
    before: tf.Tensor,
    label: tf.Tensor,
    index: tf.Tensor,
    count: tf.Tensor,
    is_pattern: tf.Tensor | None = None,
) -> tf.Tensor:
    """Add tiles to stores that hold sums, or zeros, in the background. The sums are in the stores after `finish`.

    Args:
        changes: `(store, tile, first row, first column, ...)` each.
        before: int32 scalar, computed when the previous change was requested.
        label: Name of the sweep.
        index: Index of the tile.
        count: Number of tiles.
        is_pattern: Whether they are gradients of the patterns of background, int32 scalar.

    Returns:
        `before` of the next change.
    """
    if is_pattern is None:
        return _change(_add_tile, changes, before, label, index, count)
    marked = [_narrowed(store, tile, is_pattern, *firsts) for store, tile, *firsts in changes]
    return _change(_add_to_tiles, marked, before, label, index, count)


def _add_to_tiles(
    store: np.ndarray, tile: np.ndarray, pattern: np.ndarray, is_pattern: int, *firsts: int
) -> None:
    tiling = tiled_store.tiling_of(store)
    assert tiling is not None
    numbers = list(map(int, firsts))
    if is_pattern and tiling.rest is not None:
        tiling.add_to_rest(pattern if pattern.size else tile, numbers)
    else:
        _forget(store, tiling.add(store, tile, numbers))


def _add_tile(store: np.ndarray, tile: np.ndarray, *firsts: int) -> tuple[int, int]:
    parallel_copies.add(store[_places(firsts, _stops(firsts, tile.shape[1:]))], tile)
    return firsts[0], firsts[0] + tile.shape[1]


def _add(
    store: np.ndarray, rows: np.ndarray, start: int, covered: int, until: int
) -> tuple[int, int]:
    stop = start + rows.shape[1]
    split = min(max(covered, start), stop)
    store[:, covered:start] = 0
    parallel_copies.add(store[:, start:split], rows[:, : split - start])
    parallel_copies.assign(store[:, split:stop], rows[:, split - start :])
    store[:, max(covered, stop) : until] = 0
    return min(start, covered), max(stop, until)


def _change(copy: Copy, changes: list[Any], before: Any, *strip: Any) -> tf.Tensor:
    size = len(changes[0]) if changes else 1

    def run(
        before: np.ndarray, label: bytes, index: int, count: int, *flat: np.ndarray
    ) -> np.ndarray:
        _submit(before, copy, list(_grouped(flat, size)))
        METER.tick(label.decode(), int(index), int(count))
        return before

    return _in_loop(run, [before, *strip, *(t for c in changes for t in c)])


def _in_loop(function: Callable[..., Any], inputs: list[Any]) -> tf.Tensor:
    """Call a Python function for its effect; it runs only if the returned int32 scalar is used."""
    done = callbacks.numpy_function(function, inputs, tf.int32, stateful=False)
    return tf.ensure_shape(done, [])


COPIES: Final = PendingCopies()
"""Copies of all sweeps of this process."""


def begin(before: tf.Tensor) -> tf.Tensor:
    """Begin the changes of a sweep.

    Args:
        before: Any tensor, computed first.

    Returns:
        `before` of the first change: the key of the sweep, int32 scalar, as which it is passed on to `finish`.
    """
    key = callbacks.numpy_function(lambda _: np.int32(COPIES.begin()), [before], tf.int32)
    return tf.ensure_shape(key, [])


def _submit(key: np.ndarray, copy: Copy, changes: list[tuple[Any, ...]]) -> None:
    """Copy in the background, in order, while the next strip runs."""
    if changes:
        COPIES.submit(int(key), partial(_copy_all, copy, changes))


def _copy_all(copy: Copy, changes: list[tuple[Any, ...]]) -> None:
    """Make the changes, and forget the rows that were changed."""
    for store, *change in changes:
        rows = copy(store, *change)
        file = file_pool.pool_of(store)
        if file is not None and rows is not None:
            file.forget(store, *rows)


def finish(done: tf.Tensor) -> tf.Tensor:
    """Wait for all changes of a sweep, and raise the error of one that failed.

    Args:
        done: What the last change returned, computed when all have been requested.

    Returns:
        The same tensor.
    """
    return tf.ensure_shape(callbacks.numpy_function(_finish, [done], done.dtype), done.shape)


def _finish(done: np.ndarray) -> np.ndarray:
    COPIES.finish(int(done))
    file_pool.forget_all()
    return done


def after(tensors: list[tf.Tensor], done: tf.Tensor) -> list[tf.Tensor]:
    """Make tensors depend on another one.

    Args:
        tensors: The tensors.
        done: Tensor to compute first.

    Returns:
        The same tensors, available when `done` has been computed.
    """
    with tf.control_dependencies([done]):
        return [tf.identity(t) for t in tensors]


_SINKS: dict[int, Bands] = {}


@contextmanager
def sink(writer: Writer) -> Iterator[int]:
    """Register a function that receives whole rows from `write_sink`.

    Args:
        writer: Function of the first row and the rows `[r, W, C]`.

    Yields:
        Key of the writer, valid in this context.
    """
    key = id(writer)
    bands = _SINKS[key] = Bands(writer)
    try:
        yield key
        bands.finish()
    finally:
        del _SINKS[key]


def write_sink(
    key: tf.Tensor,
    firsts: list[tf.Tensor],
    rows: tf.Tensor,
    size: tf.Tensor,
    before: tf.Tensor,
    is_pattern: tf.Tensor | None = None,
) -> tf.Tensor:
    """Pass rows to a registered writer, once they are complete.

    Args:
        key: Key from `sink`, integer scalar.
        firsts: First row; of a tile, then its first column, ...
        rows: `[1, r, W, C]`.
        size: Rows, columns, ... of the image.
        before: int32 scalar, computed when the previous change was requested.
        is_pattern: Whether the rows are the pattern of the background, int32 scalar.

    Returns:
        `before` of the next change.
    """
    mark = tf.constant(0) if is_pattern is None else is_pattern
    return _in_loop(_write_sink, [key, rows, size, before, mark, *firsts])


def _write_sink(
    key: int,
    rows: np.ndarray,
    size: np.ndarray,
    before: np.ndarray,
    is_pattern: int,
    *firsts: np.ndarray,
) -> np.ndarray:
    _SINKS[int(key)].write([int(n) for n in firsts], rows[0], size.tolist(), bool(is_pattern))
    return before

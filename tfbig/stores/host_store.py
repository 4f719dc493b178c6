"""Stores of whole images in host memory or in the scratch file, written and read by rows.

A store is a tensor `[N, H, W, C]` in memory of `tfbig.stores.page_pool` or `tfbig.stores.file_pool`. It is freed with
the last reference to the tensor. Inside a loop, TensorFlow copies its own tensors when they change. Stores change in
place, because TensorFlow passes them to NumPy without a copy.

The caller keeps operations in order through tensors. A function that changes a store has an argument that is computed
when the previous change was requested, and returns that of the next one. To read after a loop, make the store depend
on the end of the loop (`after`). Inside a loop, the calls to Python are declared stateless: before a stateful call,
TensorFlow would end an iteration before the next begins, so that only one strip would run at a time.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfbig.errors import BudgetError
from tfbig.stores import file_pool
from tfbig.stores.page_pool import POOL, Pool
from tfbig.system import callbacks
from tfbig.system.budget import available_bytes
from tfbig.system.progress import METER
from tfbig.units import format_bytes

FREED_WITHIN = 0.02
"""Most seconds to wait for the place of an earlier store. A place in use for longer belongs to another step."""


class NewStore(NamedTuple):
    """Request for a new store.

    Args:
        value: Row of the tables of shapes and addresses.
        dtype: Element type.
        folder: Directory of the scratch file; None for host memory.
    """

    value: int
    dtype: tf.DType
    folder: str | None = None


def allocate(shapes: tf.Tensor, places: tf.Tensor, requests: list[NewStore]) -> list[tf.Tensor]:
    """Create uninitialised stores.

    Args:
        shapes: `[values, axes]` int64: N, sizes of the spatial axes, C.
        places: `[values]` int64: preferred first byte in the pool or file; -1 for any.
        requests: The stores to create.

    Returns:
        Tensors `[N, H, W, C]`.
    """
    if not requests:
        return []
    # TensorFlow frees the arrays of deleted tensors only at its next call to Python: hence a call before this one.
    tables = after([shapes, places], callbacks.numpy_function(lambda: np.int32(0), [], tf.int32))

    def make(shapes: np.ndarray, places: np.ndarray) -> list[np.ndarray]:
        arrays = []
        for value, dtype, folder in requests:
            pool = POOL if folder is None else file_pool.pool(folder)
            place = int(places[value]) if places[value] >= 0 else None
            if place is not None:
                _wait_until_free(pool, place, math.prod(map(int, shapes[value])) * dtype.size)
            arrays.append(pool.array(tuple(shapes[value]), dtype.as_numpy_dtype, place))
        return arrays

    return callbacks.numpy_function(make, tables, [r.dtype for r in requests])


def _wait_until_free(pool: Pool, start: int, size: int) -> None:
    """Wait for a thread of TensorFlow that has computed the last use of an earlier store, but has not freed it yet.

    Without it, the new store takes another place, and a step needs more memory than planned.
    """
    deadline = time.monotonic() + FREED_WITHIN
    while not pool.is_free(start, size) and time.monotonic() < deadline:
        time.sleep(1e-4)
        tf.constant(0)  # a call of TensorFlow frees the arrays of deleted tensors


def check(need: int) -> None:
    """Check that a step finds enough host memory, before the system ends the process for using too much.

    Args:
        need: Bytes of its stores; memory of earlier steps is reused.

    Raises:
        BudgetError: If fewer bytes are available.
    """
    free = available_bytes() + POOL.free_bytes
    if need > free:
        raise BudgetError(
            f"a step needs {format_bytes(need)} of host memory for images, but {format_bytes(free)} are available on "
            "this machine or in its control group (container, job). Lower `host` of the Budget to store less there, "
            "use smaller images, or end other programs that use memory."
        )


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


Part = list[tuple[tf.Tensor, tf.Tensor]]
"""First row and row after the last; then the same of the columns and further axes, unless they are read whole."""


def read(parts: list[tuple[tf.Tensor, Part]]) -> list[tf.Tensor]:
    """Read rows, or tiles, of stores; for N = 1 whole rows are not copied.

    Args:
        parts: Each store, and what to read of it; along as many axes of each.

    Returns:
        Rows `[N, stop - start, W, C]` of each store; of tiles, the columns too.
    """
    if not parts:
        return []
    size = 1 + 2 * len(parts[0][1])
    flat = [t for store, part in parts for t in (store, *(n for pair in part for n in pair))]
    return callbacks.numpy_function(
        lambda *flat: _read(flat, size), flat, [store.dtype for store, _ in parts], stateful=False
    )


def staged(rows: tf.Tensor) -> tf.Tensor:
    """Copy rows to page-locked host memory, for an accelerator.

    TensorFlow allocates the result of an operation that an accelerator reads in page-locked memory. Copies from there
    run in parallel to arithmetic. The memory of stores is not page-locked.

    Args:
        rows: Any tensor.

    Returns:
        The copy.
    """
    with tf.device("/CPU:0"):
        return tf.ensure_shape(tf.raw_ops.DeepCopy(x=rows), rows.shape)


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
            image[...] = 0

    filled = callbacks.numpy_function(fill, [after, *images], [])
    with tf.control_dependencies([filled]):
        return [tf.identity(image) for image in images]


def _read(flat: tuple[Any, ...], size: int) -> list[np.ndarray]:
    ranges = list(_grouped(flat, size))
    for store, start, stop, *_ in ranges:
        file = file_pool.pool_of(store)
        if file is not None:
            file.visit(store, int(start), int(stop))
    rows = [store[_places(bounds[::2], bounds[1::2])] for store, *bounds in ranges]
    return rows if size == 3 else [np.ascontiguousarray(tile) for tile in rows]


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
) -> tf.Tensor:
    """Write rows or tiles to stores in the background, and report progress. They are in the stores after `finish`.

    Args:
        changes: `(store, rows, first row)` each; of tiles, then the first column, ...
        before: int32 scalar, computed when the previous change was requested.
        label: Name of the sweep.
        index: Index of the strip.
        count: Number of strips.

    Returns:
        `before` of the next change.
    """
    return _change(_write, changes, before, label, index, count)


def _write(store: np.ndarray, rows: np.ndarray, *firsts: int) -> tuple[int, int]:
    store[_places(firsts, _stops(firsts, rows.shape[1:]))] = rows
    return firsts[0], firsts[0] + rows.shape[1]


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
) -> tf.Tensor:
    """Add tiles to stores that hold sums, or zeros, in the background. The sums are in the stores after `finish`.

    Args:
        changes: `(store, tile, first row, first column, ...)` each.
        before: int32 scalar, computed when the previous change was requested.
        label: Name of the sweep.
        index: Index of the tile.
        count: Number of tiles.

    Returns:
        `before` of the next change.
    """
    return _change(_add_tile, changes, before, label, index, count)


def _add_tile(store: np.ndarray, tile: np.ndarray, *firsts: int) -> tuple[int, int]:
    store[_places(firsts, _stops(firsts, tile.shape[1:]))] += tile
    return firsts[0], firsts[0] + tile.shape[1]


def _add(
    store: np.ndarray, rows: np.ndarray, start: int, covered: int, until: int
) -> tuple[int, int]:
    stop = start + rows.shape[1]
    split = min(max(covered, start), stop)
    store[:, covered:start] = 0
    store[:, start:split] += rows[:, : split - start]
    store[:, split:stop] = rows[:, split - start :]
    store[:, max(covered, stop) : until] = 0
    return min(start, covered), max(stop, until)


def _change(
    copy: Callable[..., tuple[int, int]], changes: list[Any], before: Any, *strip: Any
) -> tf.Tensor:
    size = len(changes[0]) if changes else 1

    def run(_: int, label: bytes, index: np.ndarray, count: int, *flat: np.ndarray) -> np.ndarray:
        _submit(copy, list(_grouped(flat, size)))
        METER.tick(label.decode(), int(index), int(count))
        return index

    return _in_loop(run, [before, *strip, *(t for c in changes for t in c)])


def _in_loop(function: Callable[..., Any], inputs: list[Any]) -> tf.Tensor:
    """Call a Python function for its effect; it runs only if the returned int32 scalar is used."""
    done = callbacks.numpy_function(function, inputs, tf.int32, stateful=False)
    return tf.ensure_shape(done, [])


_COPIES = ThreadPoolExecutor(1, "tfbig-copies")
_PENDING: deque[Future[None]] = deque()
MAX_PENDING = 1
"""Most strips that wait to be copied to stores; their memory is in use until then."""


def _submit(copy: Callable[..., tuple[int, int]], changes: list[tuple[Any, ...]]) -> None:
    """Copy in the background, in order, while the next strip runs."""
    while len(_PENDING) >= MAX_PENDING:
        _PENDING.popleft().result()
    if changes:
        _PENDING.append(_COPIES.submit(_copy_all, copy, changes))


def _copy_all(copy: Callable[..., tuple[int, int]], changes: list[tuple[Any, ...]]) -> None:
    """Make the changes; `copy` returns the range of rows that it changed."""
    for store, *change in changes:
        first, last = copy(store, *change)
        file = file_pool.pool_of(store)
        if file is not None:
            file.forget(store, first, last)


def finish(done: tf.Tensor) -> tf.Tensor:
    """Wait for all changes that were requested before `done`.

    Args:
        done: Any tensor.

    Returns:
        The same tensor.
    """
    return tf.ensure_shape(callbacks.numpy_function(_finish, [done], done.dtype), done.shape)


def _finish(done: np.ndarray) -> np.ndarray:
    while _PENDING:
        _PENDING.popleft().result()
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


Writer = Callable[[int, np.ndarray], object]


class _Bands:
    """Whole rows for a writer, put together from tiles, which come row by row.

    Args:
        writer: Function of the first row and the rows `[r, W, C]`.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._band: np.ndarray | None = None

    def write(self, firsts: Sequence[int], tile: np.ndarray, size: Sequence[int]) -> None:
        """Pass rows on, or keep a tile until its rows are complete.

        Args:
            firsts: First row of the tile, and its first column, ... if it has not all of them.
            tile: `[r, w, ..., C]`.
            size: Rows, columns, ... of the image.
        """
        if len(firsts) == 1:
            self._writer(firsts[0], tile)
            return
        if self._band is None:
            self._band = np.empty((len(tile), *size[1:], tile.shape[-1]), tile.dtype)
        stops = _stops(firsts[1:], tile.shape[1:])
        self._band[_places(firsts[1:], stops)] = tile
        if stops == list(size[1 : len(firsts)]):
            self._writer(firsts[0], self._band)
            self._band = None


_SINKS: dict[int, _Bands] = {}


@contextmanager
def sink(writer: Writer) -> Iterator[int]:
    """Register a function that receives whole rows from `write_sink`.

    Args:
        writer: Function of the first row and the rows `[r, W, C]`.

    Yields:
        Key of the writer, valid in this context.
    """
    key = id(writer)
    _SINKS[key] = _Bands(writer)
    try:
        yield key
    finally:
        del _SINKS[key]


def write_sink(
    key: tf.Tensor, firsts: list[tf.Tensor], rows: tf.Tensor, size: tf.Tensor, before: tf.Tensor
) -> tf.Tensor:
    """Pass rows to a registered writer, once they are complete.

    Args:
        key: Key from `sink`, integer scalar.
        firsts: First row; of a tile, then its first column, ...
        rows: `[1, r, W, C]`.
        size: Rows, columns, ... of the image.
        before: int32 scalar, computed when the previous change was requested.

    Returns:
        `before` of the next change.
    """
    return _in_loop(_write_sink, [key, rows, size, before, *firsts])


def _write_sink(
    key: int, rows: np.ndarray, size: np.ndarray, _: int, *firsts: np.ndarray
) -> np.ndarray:
    _SINKS[int(key)].write([int(n) for n in firsts], rows[0], size.tolist())
    return firsts[0]

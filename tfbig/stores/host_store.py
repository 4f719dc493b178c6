"""Whole images in host memory, written and read by rows.

A store is a tensor `[N, H, W, C]` over memory that we own (see `tfbig.stores.page_pool`), or over a file
(`tfbig.stores.file_pool`), and
goes with the last reference to the tensor. TensorFlow's own tensors cannot be changed in place inside a loop without a
copy; these can, because `tf.numpy_function` hands them over without one.

Order is kept by the caller, through tensors: what changes a store takes one that says that the change before has been
asked for, and gives the next; what is read after a loop depends on its end (`after`). Inside a loop the calls to Python
are stateless in the eyes of TensorFlow. The others end an iteration before the next begins, so that only one strip is
worked on at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfbig.errors import BudgetError
from tfbig.stores import file_pool
from tfbig.stores.page_pool import POOL
from tfbig.system.budget import available_bytes
from tfbig.system.progress import METER
from tfbig.units import format_bytes


class Wanted(NamedTuple):
    """A store to make.

    Args:
        value: line of the tables that say its shape and place.
        dtype: of its elements.
        folder: directory of the file that it is in; None for memory.
    """

    value: int
    dtype: tf.DType
    folder: str | None = None


def allocate(shapes: tf.Tensor, places: tf.Tensor, wanted: list[Wanted]) -> list[tf.Tensor]:
    """Stores with any content.

    Args:
        shapes: `[values, axes]` int64: N, sizes of the spatial axes, C.
        places: `[values]` int64: the bytes of the pool or file that a store should start at; -1 leaves it open.
        wanted: which.
    """
    if not wanted:
        return []
    # TensorFlow returns arrays of dead tensors to NumPy at its next call to Python only: hence a call before ours.
    tables = after([shapes, places], tf.numpy_function(lambda: np.int32(0), [], tf.int32))

    def make(shapes: np.ndarray, places: np.ndarray) -> list[np.ndarray]:
        made = []
        for value, dtype, folder in wanted:
            pool = POOL if folder is None else file_pool.pool(folder)
            place = int(places[value]) if places[value] >= 0 else None
            made.append(pool.array(tuple(shapes[value]), dtype.as_numpy_dtype, place))
        return made

    return tf.numpy_function(make, tables, [w.dtype for w in wanted])


def check(need: int) -> None:
    """Makes sure that a step finds host memory, before the system ends the process for taking it.

    Args:
        need: bytes of its stores; those that earlier steps left are used again.

    Raises:
        BudgetError: there are fewer.
    """
    free = available_bytes() + POOL.free_bytes
    if need > free:
        raise BudgetError(
            f"a step needs {format_bytes(need)} of host memory for images, {format_bytes(free)} can be had of this "
            "machine or of its control group (container, job). Lower `host` of the Budget so that less is kept there, "
            "use smaller images, or end what else takes memory."
        )


def copy(image: tf.Tensor) -> tf.Tensor:
    """A store with the content of a tensor."""
    shapes, places = tf.shape(image, tf.int64)[None], tf.constant([-1], tf.int64)
    (store,) = allocate(shapes, places, [Wanted(0, image.dtype)])
    copied = tf.numpy_function(lambda store, image: np.copyto(store, image), [store, image], [])
    with tf.control_dependencies([copied]):
        return tf.ensure_shape(store, [None] * image.shape.rank)


Rows = tuple[tf.Tensor, tf.Tensor, tf.Tensor]


def read(wanted: list[Rows]) -> list[tf.Tensor]:
    """Rows `start <= row < stop`, `[N, stop - start, W, C]`, of each `(store, start, stop)`; no copy for N = 1."""
    if not wanted:
        return []
    flat = [t for rows in wanted for t in rows]
    return tf.numpy_function(_read, flat, [store.dtype for store, _, _ in wanted], stateful=False)


def staged(rows: tf.Tensor) -> tf.Tensor:
    """A copy of rows on the host, for an accelerator.

    TensorFlow makes what an operation gives to an accelerator in page-locked memory, from which copies run beside
    arithmetic; memory of stores is none.
    """
    with tf.device("/CPU:0"):
        return tf.ensure_shape(tf.raw_ops.DeepCopy(x=rows), rows.shape)


def zero(images: list[tf.Tensor], after: tf.Tensor) -> list[tf.Tensor]:
    """The same stores, filled with zeros once `after` is known."""

    def fill(_: np.ndarray, *images: np.ndarray) -> None:
        for image in images:
            image[...] = 0

    filled = tf.numpy_function(fill, [after, *images], [])
    with tf.control_dependencies([filled]):
        return [tf.identity(image) for image in images]


def _read(*flat: np.ndarray) -> list[np.ndarray]:
    wanted = list(_grouped(flat, 3))
    for store, start, stop in wanted:
        file = file_pool.pool_of(store)
        if file is not None:
            file.visit(store, int(start), int(stop))
    return [store[:, start:stop] for store, start, stop in wanted]


def _grouped(flat: tuple[Any, ...], size: int) -> Iterator[tuple[Any, ...]]:
    return zip(*[iter(flat)] * size, strict=True)


def write(
    changes: list[Rows], before: tf.Tensor, label: tf.Tensor, index: tf.Tensor, count: tf.Tensor
) -> tf.Tensor:
    """Puts rows into stores, once `finish` has run, and reports progress; gives `before` of the next change.

    Args:
        changes: `(store, first row, rows)` each.
        before: int32 scalar, known once the change before has been asked for.
        label, index, count: which sweep, which strip of how many.
    """
    return _change(_write, changes, before, label, index, count)


def _write(store: np.ndarray, start: int, rows: np.ndarray) -> tuple[int, int]:
    stop = start + rows.shape[1]
    store[:, start:stop] = rows
    return start, stop


def add(
    changes: list[tuple[Any, ...]],
    before: tf.Tensor,
    label: tf.Tensor,
    index: tf.Tensor,
    count: tf.Tensor,
) -> tf.Tensor:
    """Adds rows to stores, once `finish` has run, and reports progress; gives `before` of the next change.

    Args:
        changes: `(store, rows, start, covered, until)` each. Rows before `covered` hold sums already; from it on the
            store has any content, which is replaced. Rows from the last added one to `until` become zero.
        before, label, index, count: as in `write`.
    """
    return _change(_add, changes, before, label, index, count)


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
        _later(copy, list(_grouped(flat, size)))
        METER.tick(label.decode(), int(index), int(count))
        return index

    return _in_loop(run, [before, *strip, *(t for c in changes for t in c)])


def _in_loop(function: Callable[..., Any], inputs: list[Any]) -> tf.Tensor:
    """Calls Python for what it does; the int32 scalar that it gives must be used, or it is not called."""
    done = tf.numpy_function(function, inputs, tf.int32, stateful=False)
    return tf.ensure_shape(done, [])


_COPIES = ThreadPoolExecutor(1, "tfbig-copies")
_PENDING: deque[Future[None]] = deque()
MAX_PENDING = 1
"""Strips that wait to be copied; their memory is not free before."""


def _later(copy: Callable[..., tuple[int, int]], changes: list[tuple[Any, ...]]) -> None:
    """Copies in the background, in order, while the next strip is worked on."""
    while len(_PENDING) >= MAX_PENDING:
        _PENDING.popleft().result()
    if changes:
        _PENDING.append(_COPIES.submit(_copy_all, copy, changes))


def _copy_all(copy: Callable[..., tuple[int, int]], changes: list[tuple[Any, ...]]) -> None:
    """Copies; `copy` gives the rows that it changed."""
    for store, *change in changes:
        first, last = copy(store, *change)
        file = file_pool.pool_of(store)
        if file is not None:
            file.forget(store, first, last)


def finish(done: tf.Tensor) -> tf.Tensor:
    """`done`, once all copies have been made that were asked for before it."""
    return tf.ensure_shape(tf.numpy_function(_finish, [done], done.dtype), done.shape)


def _finish(done: np.ndarray) -> np.ndarray:
    while _PENDING:
        _PENDING.popleft().result()
    file_pool.forget_all()
    return done


def after(tensors: list[tf.Tensor], done: tf.Tensor) -> list[tf.Tensor]:
    """The same tensors, to be used only when `done` has been computed."""
    with tf.control_dependencies([done]):
        return [tf.identity(t) for t in tensors]


_SINKS: dict[int, Callable[[int, np.ndarray], object]] = {}


@contextmanager
def sink(writer: Callable[[int, np.ndarray], object]) -> Iterator[int]:
    """Registers a writer `(start, rows [r, W, C])` for `write_sink`; gives its key."""
    key = id(writer)
    _SINKS[key] = writer
    try:
        yield key
    finally:
        del _SINKS[key]


def write_sink(key: tf.Tensor, start: tf.Tensor, rows: tf.Tensor, before: tf.Tensor) -> tf.Tensor:
    """Gives rows `[1, r, W, C]` to a registered writer; `before` as in `write`."""
    return _in_loop(_write_sink, [key, start, rows, before])


def _write_sink(key: int, start: np.ndarray, rows: np.ndarray, _: int) -> np.ndarray:
    _SINKS[int(key)](int(start), rows[0])
    return start

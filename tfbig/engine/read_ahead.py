"""Reads rows of images and bags behind handles, in threads, before the engine asks for them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, final

import numpy as np
import tensorflow as tf

from tfbig import sources
from tfbig.errors import Advice, SourceError
from tfbig.network.graph import AT_ONCE, IN_FLIGHT
from tfbig.system import callbacks

MAX_OTHERS: Final = 2 * IN_FLIGHT
"""Most strips of other images, such as labels, that are read ahead."""


def shape_of(image: tf.Tensor) -> tuple[int, ...]:
    """Return the shape `(N, H, W, C)` of an eager tensor or a batch of handles, string `[N]`; `(N, n, ...)` of bags."""
    if image.dtype == tf.string:
        return shape_of_all(resolved(image.numpy()))
    return tuple(int(n) for n in image.shape)


def check_shape(handles: tf.Tensor, expected: Sequence[int | None], where: str) -> None:
    """Check that the images and bags behind handles fit an input; nothing is known of them while tracing.

    Args:
        handles: String `[N]`.
        expected: Shape `[N, ...]` of the input.
        where: Model and input, for the message.

    Raises:
        SourceError: A source has another number of axes, or another length along an axis of fixed length.
        ValueError: The sources differ in shape.
    """
    if not tf.is_tensor(handles) or not hasattr(handles, "numpy"):
        return
    shape, readables = tuple(expected[1:]), resolved(handles.numpy())
    for source in readables:
        lengths = zip(source.shape, shape, strict=False)
        if len(source.shape) != len(shape) or any(b not in (None, a) for a, b in lengths):
            raise SourceError(
                f"{where}: {source.what} {source.name} is {source.shape}, expected {shape}.",
                Advice.OPEN_AS,
            )
    shape_of_all(readables)


def source_shape(handles: tf.Tensor, rank: int = 4) -> tf.Tensor:
    """Return the shape `[N, H, W, C]` (int64) of a batch of images behind handles; `[N, n, ...]` of bags.

    A step begins with it, so rows that a failed step before has left unread are dropped.

    Args:
        handles: String `[N]`.
        rank: Length of the shape.
    """

    def shape(names: np.ndarray) -> np.ndarray:
        AHEAD.forget(_names(names))
        return np.array(shape_of_all(resolved(names)), np.int64)

    return tf.ensure_shape(callbacks.numpy_function(shape, [handles], tf.int64), [rank])


def resolved(handles: np.ndarray) -> list[sources.Readable]:
    """Return the images and bags behind handles, string `[N]`."""
    return [sources.resolve(name) for name in _names(handles)]


def shape_of_all(readables: Sequence[sources.Readable]) -> tuple[int, ...]:
    """Return the shape of a batch of images or bags, `(N, ...)`."""
    first = readables[0]
    if any(readable.shape != first.shape for readable in readables):
        raise ValueError(
            f"the {first.what}s of a batch have different shapes {[r.shape for r in readables]}; expected one shape. "
            "Use batches of one, and gradient_accumulation_steps of the optimizer for steps on several."
        )
    return len(readables), *first.shape


Part = tuple[tuple[int, int], ...]
"""First row and row after the last; then the same of the columns, unless all of them are read."""


def read_source(
    handles: tf.Tensor,
    part: Sequence[tuple[tf.Tensor, tf.Tensor]],
    dtype: tf.DType,
    ahead: Sequence[tuple[tf.Tensor, tf.Tensor]] | None = None,
) -> tf.Tensor:
    """Return rows, or a rectangle, of a batch of images behind handles, `[N, rows, columns, C]`.

    Args:
        handles: String `[N]`.
        part: First row and row after the last; then the same of the columns, unless all of them are read.
        dtype: Element type of the images.
        ahead: The part of the next request, which threads start to read; None or no rows if there is none.
    """
    numpy_dtype, count = dtype.as_numpy_dtype, len(part)
    soon = [(0, 0)] * count if ahead is None else ahead

    def read(names: np.ndarray, *numbers: int) -> np.ndarray:
        pairs = list(zip(*[map(int, numbers)] * 2, strict=True))
        return _read_source(names, tuple(pairs[:count]), tuple(pairs[count:]), numpy_dtype)

    bounds = [number for pair in (*part, *soon) for number in pair]
    return callbacks.numpy_function(read, [handles, *bounds], dtype, stateful=False)


def _read_source(handles: np.ndarray, part: Part, soon: Part, dtype: Any) -> np.ndarray:
    names, readables = _names(handles), resolved(handles)
    for source in readables:
        if source.dtype != dtype:
            raise SourceError(
                f"{source.name}: has dtype {source.dtype}; expected {np.dtype(dtype)}.",
                Advice.DTYPE,
                found=source.dtype,
            )
    reading = AHEAD.take(names, part)
    if soon[0][1] > soon[0][0]:
        AHEAD.begin(names, readables, soon)
    return _read_part(readables, part) if reading is None else reading.result()


def _names(handles: np.ndarray) -> tuple[str, ...]:
    return tuple(h.decode() for h in np.ravel(handles))


def _read_part(readables: Sequence[sources.Readable], part: Part) -> np.ndarray:
    images = [_part_of(readable, *part) for readable in readables]
    return images[0][None] if len(images) == 1 else np.stack(images)


def _part_of(
    readable: sources.Readable, rows: tuple[int, int], *columns: tuple[int, int]
) -> np.ndarray:
    if not columns:
        return readable.read(*rows)
    assert isinstance(readable, sources.Source)  # bags have no columns
    return readable.read_window(rows, *columns)


@final
class ReadAhead:
    """Reads and decodes rows of images in threads, before the engine requests them.

    At most a few strips are held, so that rows that are never requested, after an error, do not use up memory.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(AT_ONCE, "tfbig-ahead")
        self._lock = threading.Lock()
        self._begun: OrderedDict[tuple[tuple[str, ...], Part], Future[np.ndarray]]
        self._begun = OrderedDict()

    def begin(
        self, names: tuple[str, ...], readables: Sequence[sources.Readable], part: Part
    ) -> None:
        """Start to read a part of images that will be requested.

        Args:
            names: Handles of the images.
            readables: The images.
            part: The rows, and the columns unless all of them are read.
        """
        with self._lock:
            if (names, part) not in self._begun:
                self._begun[names, part] = self._threads.submit(_read_part, readables, part)
            same = [key for key in self._begun if key[0] == names]
            others = [key for key in self._begun if key[0] != names]
            for key in (*same[:-IN_FLIGHT], *others[:-MAX_OTHERS]):
                self._begun.pop(key).cancel()

    def take(self, names: tuple[str, ...], part: Part) -> Future[np.ndarray] | None:
        """Remove and return the pending read that `begin` started, a future of the rows; None if there is none."""
        with self._lock:
            return self._begun.pop((names, part), None)

    def forget(self, names: tuple[str, ...]) -> None:
        """Drop all rows of these images."""
        with self._lock:
            for key in [key for key in self._begun if key[0] == names]:
                self._begun.pop(key).cancel()


AHEAD = ReadAhead()

"""Rows of images and bags given by handle, read by threads before the engine asks for them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, final

import numpy as np
import tensorflow as tf

from tfbig import sources
from tfbig.errors import SourceError
from tfbig.network.graph import AT_ONCE

MAX_OTHERS: Final = 2 * AT_ONCE
"""Strips of other images that wait: labels beside the image."""


def shape_of(image: tf.Tensor) -> tuple[int, ...]:
    """`(N, H, W, C)` of an eager tensor, or of a batch of handles, string `[N]`; `(N, n, ...)` of bags."""
    shape = _source_shape(image.numpy()) if image.dtype == tf.string else image.shape
    return tuple(int(n) for n in shape)


def check_sources(handles: tf.Tensor, expected: Sequence[int | None], where: str) -> None:
    """Refuses images and bags, string `[N]`, that an input `[N, ...]` cannot be; nothing where they are not known yet.

    Raises:
        SourceError: one has another number of axes, or another length along an axis that is given.
    """
    if not tf.is_tensor(handles) or not hasattr(handles, "numpy"):
        return
    wanted = tuple(expected[1:])
    for handle in np.ravel(handles.numpy()):
        source = sources.resolve(handle.decode())
        same = zip(source.shape, wanted, strict=False)
        if len(source.shape) != len(wanted) or any(b not in (None, a) for a, b in same):
            raise SourceError(
                f"{where}: {source.what} {source.name} is {source.shape}, expected {wanted}. Images [H, W, C] are from "
                "tfbig.open, bags [n, ...] from tfbig.sources.open_bag."
            )


def source_shape(handles: tf.Tensor, rank: int = 4) -> tf.Tensor:
    """`[N, H, W, C]` (int64) of a batch of images given by handle, string `[N]`; of bags `[N, n, ...]`.

    A step begins with it: rows that a step before it did not come for, as it failed, are forgotten.

    Args:
        handles: string `[N]`.
        rank: numbers of the shape.
    """

    def shape(names: np.ndarray) -> np.ndarray:
        AHEAD.forget(_names(names))
        return _source_shape(names)

    return tf.ensure_shape(tf.numpy_function(shape, [handles], tf.int64), [rank])


def _source_shape(handles: np.ndarray) -> np.ndarray:
    opened = [sources.resolve(h.decode()) for h in np.ravel(handles)]
    first = opened[0]
    if any(source.shape != first.shape for source in opened):
        raise ValueError(
            f"the {first.what}s of a batch have different shapes {[s.shape for s in opened]}; use batches of one, "
            "and gradient_accumulation_steps of the optimizer for steps of several."
        )
    return np.array([len(opened), *first.shape], np.int64)


def read_source(
    handles: tf.Tensor,
    start: tf.Tensor,
    stop: tf.Tensor,
    dtype: tf.DType,
    ahead: tuple[tf.Tensor, tf.Tensor] | None = None,
) -> tf.Tensor:
    """Rows of a batch of images given by handle, `[N, stop - start, W, C]`.

    Args:
        handles: string `[N]`.
        start, stop: which rows.
        dtype: of the samples.
        ahead: rows that will be asked for soon; threads read them until then. None, or an empty range: none.
    """
    wanted = dtype.as_numpy_dtype
    soon = (0, 0) if ahead is None else ahead

    def read(names: np.ndarray, *rows: int) -> np.ndarray:
        return _read_source(names, rows[0:2], rows[2:4], wanted)

    return tf.numpy_function(read, [handles, start, stop, *soon], dtype, stateful=False)


def _read_source(
    handles: np.ndarray, rows: Sequence[int], soon: Sequence[int], dtype: Any
) -> np.ndarray:
    names = _names(handles)
    for name in names:
        source = sources.resolve(name)
        if source.dtype != dtype:
            raise SourceError(
                f"{source.name}: its samples are {source.dtype}, expected {np.dtype(dtype)}. Convert the image, "
                f"or pass source_dtype='{source.dtype}' to tfbig.stream."
            )
    (start, stop), (next_start, next_stop) = map(int, rows), map(int, soon)
    found = AHEAD.take(names, start, stop)
    if next_stop > next_start:
        AHEAD.begin(names, next_start, next_stop)
    return _read_rows(names, start, stop) if found is None else found.result()


def _names(handles: np.ndarray) -> tuple[str, ...]:
    return tuple(h.decode() for h in np.ravel(handles))


def _read_rows(names: tuple[str, ...], start: int, stop: int) -> np.ndarray:
    images = [sources.resolve(name).read(start, stop) for name in names]
    return images[0][None] if len(images) == 1 else np.stack(images)


@final
class Ahead:
    """Rows of images that are read, and decoded, before they are asked for.

    A few strips wait at most, so that rows that nobody comes for, after an error, do not stay.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(AT_ONCE, "tfbig-ahead")
        self._lock = threading.Lock()
        self._begun: OrderedDict[tuple[tuple[str, ...], int, int], Future[np.ndarray]]
        self._begun = OrderedDict()

    def begin(self, names: tuple[str, ...], start: int, stop: int) -> None:
        """Rows that will be asked for."""
        with self._lock:
            if (names, start, stop) not in self._begun:
                reading = self._threads.submit(_read_rows, names, start, stop)
                self._begun[names, start, stop] = reading
            own = [key for key in self._begun if key[0] == names]
            others = [key for key in self._begun if key[0] != names]
            for key in (*own[:-AT_ONCE], *others[:-MAX_OTHERS]):
                self._begun.pop(key).cancel()

    def take(self, names: tuple[str, ...], start: int, stop: int) -> Future[np.ndarray] | None:
        """Rows that were begun, once; None for others."""
        with self._lock:
            return self._begun.pop((names, start, stop), None)

    def forget(self, names: tuple[str, ...]) -> None:
        """Rows of images that nobody comes for."""
        with self._lock:
            for key in [key for key in self._begun if key[0] == names]:
                self._begun.pop(key).cancel()


AHEAD = Ahead()

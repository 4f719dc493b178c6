"""Functions that receive an image by whole rows, in place of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

import numpy as np
import tensorflow as tf

from tfbig.stores.image_store import StripPart
from tfbig.stores.row_bands import Bands, Writer
from tfbig.stores.transfers import Changes

_SINKS: dict[int, Bands] = {}


@contextmanager
def sink(writer: Writer) -> Iterator[int]:
    """Register a function that receives whole rows.

    Args:
        writer: Function of the first row and the rows `[r, W, C]`.

    Yields:
        Key of the writer for a `Sink`, valid in this context.
    """
    key = id(writer)
    bands = _SINKS[key] = Bands(writer)
    try:
        yield key
        bands.finish()
    finally:
        del _SINKS[key]


class Sink(NamedTuple):
    """A registered writer, which receives rows once they are complete, in order.

    Args:
        key: Key from `sink`, integer scalar.
    """

    key: tf.Tensor

    @property
    def state(self) -> tuple[()]:
        """`()`."""
        return ()

    def with_state(self, state: Any) -> Self:
        """Return the sink."""
        return self

    def map(self, function: Callable[[tf.Tensor], Any]) -> Self:
        """Return the sink, which holds no image."""
        return self

    def write(self, changes: Changes, part: StripPart, rows: tf.Tensor) -> Self:
        """Pass a part `[1, r, ..., C]` on; the writer receives it once its rows are complete."""
        is_pattern = tf.constant(0) if part.is_pattern is None else part.is_pattern
        axes = len(part.size)

        def write(key: int, is_pattern: int, rows: np.ndarray, *numbers: np.ndarray) -> None:
            size, firsts = np.split(np.array(numbers, int), [axes])
            bands = _SINKS[int(key)]
            bands.write(firsts.tolist(), rows[0], size.tolist(), bool(is_pattern))

        changes.run(write, [self.key, is_pattern, rows, *part.size, *part.firsts])
        return self

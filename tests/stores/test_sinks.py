"""Registered functions that receive the rows of an image instead of a store."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfbig.stores import sinks
from tfbig.stores.image_store import StripPart
from tfbig.stores.sinks import Sink
from tfbig.stores.transfers import Changes


def numbers(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def written(
    key: int, tile: np.ndarray, firsts: list[int], size: list[int], before: tf.Tensor
) -> tf.Tensor:
    """Pass a tile to a writer, and return `before` of the next one."""
    changes = Changes(before, tf.constant("sweep"), tf.constant(0), tf.constant(1))
    stops = [first + n for first, n in zip(firsts, tile.shape[1:], strict=False)]
    intervals = [(tf.constant(a), tf.constant(b)) for a, b in zip(firsts, stops, strict=True)]
    part = StripPart(intervals, [*map(tf.constant, size)], [1, None, None, 1], tf.float32)
    Sink(tf.constant(key)).write(changes, part, tf.constant(tile))
    return changes.make()


def test_rows() -> None:
    received = []
    with sinks.sink(lambda start, rows: received.append((start, rows.copy()))) as key:
        rows = numbers(1, 2, 3, 1)
        tf.function(lambda: written(key, rows, [4], [6, 3], tf.constant(0)), autograph=False)()
    ((start, rows),) = received
    assert start == 4
    np.testing.assert_array_equal(rows, numbers(2, 3, 1))
    assert key not in sinks._SINKS


def test_tiles() -> None:
    """The writer receives whole rows."""
    image, received = numbers(1, 5, 7, 2), []

    @tf.function(autograph=False)
    def run() -> tf.Tensor:
        before = tf.constant(0)
        for top, bottom in ((0, 3), (3, 5)):
            for left, right in ((0, 4), (4, 7)):
                tile = image[:, top:bottom, left:right]
                before = written(key, tile, [top, left], [5, 7], before)
        return before

    with sinks.sink(lambda start, rows: received.append((start, rows))) as key:
        run()
    assert [start for start, _ in received] == [0, 3]
    np.testing.assert_array_equal(np.concatenate([rows for _, rows in received]), image[0])

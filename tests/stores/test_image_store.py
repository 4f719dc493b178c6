"""Every kind of store: what strips write and add to it, and read from it, against an array.

Stores are shared with NumPy only in a graph; eager calls would copy them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfbig.stores import device_store, host_store, tiled_store, transfers
from tfbig.stores.device_store import DeviceImage, StripImage
from tfbig.stores.host_store import HostImage, StoreRequest
from tfbig.stores.image_store import StripPart
from tfbig.stores.tiled_store import TiledGradient, TiledImage
from tfbig.stores.transfers import Changes, Reads

SHAPE = (2, 9, 7, 3)
"""Shape of the images."""

Rectangle = tuple[tuple[int, int], ...]
"""First row and the one after the last, then the same of the columns if a tile has not all of them."""

ROWS: list[Rectangle] = [((0, 2),), ((2, 6),), ((6, 9),)]
TILES: list[Rectangle] = [(rows, columns) for (rows,) in ROWS for columns in ((0, 4), (4, 7))]
WHOLE: list[Rectangle] = [((0, 9),)]


def numbers(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-8, 8, SHAPE).astype(np.float32)


def index(rectangle: Rectangle) -> tuple[slice, ...]:
    return (slice(None), *(slice(*interval) for interval in rectangle))


def part(rectangle: Rectangle, is_pattern: bool | None = None, **options: Any) -> StripPart:
    intervals = [(tf.constant(a), tf.constant(b)) for a, b in rectangle]
    size, shape = [tf.constant(9), tf.constant(7)], [2, None, None, 3]
    mark = None if is_pattern is None else tf.constant(int(is_pattern))
    return StripPart(intervals, size, shape, tf.float32, None, mark, **options)


def arrays(folder: str | None) -> tuple[tf.Tensor, tf.Tensor, list[StoreRequest]]:
    """Arguments of `allocate` for one image."""
    request = StoreRequest(0, tf.float32, folder)
    return tf.constant([SHAPE], tf.int64), tf.constant([-1], tf.int64), [request]


def host_image(folder: str | None, _: Sequence[Rectangle]) -> HostImage:
    (array,) = host_store.allocate(*arrays(folder))
    return HostImage(tf.ensure_shape(array, [2, None, None, 3]))


def tiled(folder: str | None, tiles: Sequence[Rectangle], sums: bool) -> tf.Tensor:
    """Tiles of the whole image, and none of background."""
    table = [[*(n for interval in tile for n in interval), 0] for tile in tiles]
    (array,) = tiled_store.allocate(*arrays(folder), [tf.constant(table)], sums)
    return tf.ensure_shape(array, [None])


def tiled_image(folder: str | None, tiles: Sequence[Rectangle]) -> TiledImage:
    return TiledImage(tiled(folder, tiles, False))


def tiled_gradient(folder: str | None, tiles: Sequence[Rectangle]) -> TiledGradient:
    return TiledGradient(tiled(folder, tiles, True))


def device_image(_: str | None, __: Sequence[Rectangle]) -> DeviceImage:
    (shapes,) = device_store.device_shapes(tf.constant([SHAPE]), [4])
    return DeviceImage(device_store.allocate(shapes.shape), shapes)


def strip_image(_: str | None, __: Sequence[Rectangle]) -> StripImage:
    return StripImage(tf.zeros([]))


Make = Callable[[str | None, Sequence[Rectangle]], Any]
CASES: list[tuple[Make, list[Rectangle]]] = [
    (host_image, ROWS),
    (host_image, TILES),
    (tiled_image, ROWS),
    (tiled_image, TILES),
    (tiled_gradient, ROWS),
    (tiled_gradient, TILES),
    (device_image, ROWS),
    (strip_image, WHOLE),
]
HAS_BACKGROUND = (tiled_image, tiled_gradient)


class Strips:
    """A sweep in which each strip makes one change of a store, in order."""

    def __init__(self, store: Any, has_background: bool) -> None:
        self.store = store
        self.mark = False if has_background else None
        self._before = transfers.begin(tf.constant(0))

    def change(self, name: str, rectangle: Rectangle, rows: np.ndarray, **options: Any) -> None:
        """Write or add rows."""
        changes = Changes(self._before, tf.constant("sweep"), tf.constant(0), tf.constant(1))
        place = part(rectangle, self.mark, **options)
        self.store = getattr(self.store, name)(changes, place, tf.constant(rows))
        self._before = changes.make()

    def end(self) -> Any:
        """Return the store when all changes are made."""
        return self.store.after(transfers.finish(self._before))


def read(store: Any, rectangles: Sequence[Rectangle], mark: bool | None) -> list[tf.Tensor]:
    reads = Reads()
    results = [store.read(reads, part(rectangle, mark)) for rectangle in rectangles]
    reads.make()
    return [result() for result in results]


@pytest.mark.parametrize("spilled", [False, True])
@pytest.mark.parametrize(("make", "tiles"), CASES)
def test_what_is_written_is_read(
    make: Make, tiles: list[Rectangle], spilled: bool, tmp_path: Path
) -> None:
    """Strips are written in order; then parts of them, and across them, are read at once."""
    image, has_background = numbers(0), make in HAS_BACKGROUND
    others: list[Rectangle] = [((1, 7), (2, 6))] if len(tiles[0]) > 1 else [((1, 7),)]

    @tf.function(autograph=False)
    def run() -> list[tf.Tensor]:
        strips = Strips(make(str(tmp_path) if spilled else None, tiles), has_background)
        for tile in tiles:
            strips.change("write", tile, image[index(tile)])
        return read(strips.end(), [*tiles, *others], strips.mark)

    for rectangle, rows in zip([*tiles, *others], run(), strict=True):
        np.testing.assert_array_equal(rows, image[index(rectangle)])


@pytest.mark.parametrize("spilled", [False, True])
@pytest.mark.parametrize(("make", "tiles"), [case for case in CASES if case[0] is not tiled_image])
def test_what_is_added_is_summed(
    make: Make, tiles: list[Rectangle], spilled: bool, tmp_path: Path
) -> None:
    """Strips that overlap are added to a store of sums, a second time to each of them."""
    first, second, has_background = numbers(1), numbers(2), make in HAS_BACKGROUND
    wide = [
        tuple((max(a - 1, 0), min(b + 1, n)) for (a, b), n in zip(tile, (9, 7), strict=False))
        for tile in tiles
    ]
    expected = first.copy()
    for rectangle in wide:
        expected[index(rectangle)] += second[index(rectangle)]

    @tf.function(autograph=False)
    def run() -> list[tf.Tensor]:
        strips = Strips(make(str(tmp_path) if spilled else None, tiles), has_background)
        for tile in tiles:
            strips.change("write", tile, first[index(tile)])
        for rectangle in wide:
            strips.change("add", rectangle, second[index(rectangle)])
        return read(strips.end(), tiles, strips.mark)

    for tile, rows in zip(tiles, run(), strict=True):
        np.testing.assert_array_equal(rows, expected[index(tile)])


@pytest.mark.parametrize("make", [host_image, device_image])
def test_rows_that_contain_anything_become_sums(make: Make) -> None:
    """Strips of 4 rows with a halo of one: rows that no strip covers are zero, shared rows are sums."""
    expected = np.zeros(SHAPE, np.float32)
    additions = []
    for start, stop, covered, until in ((1, 4, 0, 4), (3, 6, 4, 6), (7, 8, 6, 9)):
        rows = numbers(start)[:, start:stop]
        expected[:, start:stop] += rows
        additions.append((start, stop, covered, until, rows))

    @tf.function(autograph=False)
    def run() -> list[tf.Tensor]:
        strips = Strips(make(None, []), False)
        strips.change("write", ((0, 9),), np.full(SHAPE, np.nan, np.float32))
        for start, stop, covered, until, rows in additions:
            uncovered = tf.constant(covered), tf.constant(until)
            strips.change("add", ((start, stop),), rows, uninitialised=uncovered)
        return read(strips.end(), [((0, 9),)], None)

    np.testing.assert_array_equal(run()[0], expected)


@pytest.mark.parametrize("is_fresh", [False, True])
def test_one_strip_is_added(is_fresh: bool) -> None:
    """The only strip may have read a part of the image."""
    uncovered = (tf.constant(0), tf.constant(9)) if is_fresh else None
    before, rows = numbers(3), numbers(4)[:, 2:9]
    store = StripImage(tf.zeros([]) if is_fresh else tf.constant(before))
    changes = Changes(tf.constant(0), tf.constant(""), tf.constant(0), tf.constant(1))
    place = part(((2, 9),), uninitialised=uncovered)
    expected = np.zeros(SHAPE) if is_fresh else before.copy()
    expected[:, 2:9] += rows
    np.testing.assert_array_equal(store.add(changes, place, tf.constant(rows)).rows, expected)


@pytest.mark.parametrize("make", [host_image, tiled_image, device_image, strip_image])
def test_whole_image(make: Make) -> None:
    image, rows = numbers(5), WHOLE if make is strip_image else ROWS

    @tf.function(autograph=False)
    def run() -> tf.Tensor:
        strips = Strips(make(None, rows), make in HAS_BACKGROUND)
        for tile in rows:
            strips.change("write", tile, image[index(tile)])
        return strips.end().whole(tf.float32, 4)

    np.testing.assert_array_equal(run(), image)


def test_error_of_a_change_is_raised() -> None:
    """A copy that fails in the background raises when the sweep has ended."""

    @tf.function(autograph=False)
    def failing() -> tf.Tensor:
        strips = Strips(host_image(None, []), False)
        strips.change("write", ((0, 2),), np.zeros((2, 2, 8, 3), np.float32))  # too wide
        return strips.end().array

    with pytest.raises(tf.errors.OpError, match="could not broadcast input array"):
        failing()
    assert len(transfers.COPIES) == 0


def test_nothing_is_read_without_a_call() -> None:
    with tf.Graph().as_default() as graph:
        Reads().make()
    assert not graph.get_operations()

"""Tests of `tfbig.stores.tiling`, against arrays of whole images."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tfbig.geometry.windows import partition
from tfbig.stores import tiling as tilings
from tfbig.stores.tiling import Tiling

SHAPE = (2, 24, 16, 3)
COUNTS = (4, 3)


def _high(tiles: list[list[int]]) -> list[list[int]]:
    """Join tiles of the first two columns with those below them."""
    joined: list[list[int]] = []
    for tile in tiles:
        above = next((t for t in joined if t[1:] == [tile[0], *tile[2:]] and tile[2] < 11), None)
        if above:
            above[1] = tile[1]
        else:
            joined.append(list(tile))
    return joined


def _tiles(
    active: np.ndarray, step: int, pattern: bool = True, high: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    edges = [
        np.stack(partition(n, count, np.arange(count), step), 1)
        for n, count in zip(SHAPE[1:], COUNTS, strict=False)
    ]
    tiles = [[*edges[0][i], *edges[1][j]] for i, j in np.argwhere(active)]
    if high:
        tiles = _high(tiles)
    first = [[8, 8 + step, 4, 4 + step]] if pattern else []
    return np.array(first + tiles).reshape(-1, 4), np.arange(len(tiles) + pattern) < pattern


def _store(
    active: np.ndarray, step: int, sums: bool, high: bool = False
) -> tuple[Tiling, np.ndarray]:
    tiling = Tiling(SHAPE, *_tiles(active, step, high=high), sums)
    return tiling, np.full(tiling.elements, np.nan)


def _image(active: np.ndarray, step: int, high: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return an image whose inactive tiles repeat a pattern, and the pattern."""
    random = np.random.default_rng(0)
    pattern = random.standard_normal((2, step, step, 3))
    image = np.tile(pattern, (1, -(-24 // step), -(-16 // step), 1))[:, :24, :16]
    for top, bottom, left, right in _tiles(active, step, high=high)[0][1:]:
        shape = image[:, top:bottom, left:right].shape
        image[:, top:bottom, left:right] = random.standard_normal(shape)
    return image, pattern


def _rectangle(data: st.DataObject) -> tuple[list[int], list[int]]:
    pairs = [
        sorted(data.draw(st.lists(st.integers(0, n), min_size=2, max_size=2, unique=True)))
        for n in SHAPE[1:3]
    ]
    starts, stops = zip(*pairs, strict=True)
    return list(starts), list(stops)


active_tiles = st.lists(st.booleans(), min_size=12, max_size=12).map(
    lambda flags: np.array(flags).reshape(COUNTS)
)


@given(active_tiles, st.sampled_from([1, 2, 4]), st.booleans(), st.data())
def test_reads_the_image(active: np.ndarray, step: int, high: bool, data: st.DataObject) -> None:
    tiling, store = _store(active, step, False, high)
    image, pattern = _image(active, step, high)
    tiling.write(store, pattern, [8, 4], is_pattern=True)
    for top, bottom, left, right in _tiles(active, step, high=high)[0][1:]:
        tiling.write(store, image[:, top:bottom, left:right], [top, left], is_pattern=False)
    starts, stops = _rectangle(data)
    expected = image[:, starts[0] : stops[0], starts[1] : stops[1]]
    np.testing.assert_array_equal(tiling.read(store, starts, stops), expected)
    np.testing.assert_array_equal(tiling.dense(store), image)


@given(active_tiles, st.sampled_from([1, 2, 4]), st.booleans(), st.data())
def test_sums_are_in_tiles_and_rest(
    active: np.ndarray, step: int, high: bool, data: st.DataObject
) -> None:
    tiling, store = _store(active, step, True, high)
    total, random = np.zeros(SHAPE), np.random.default_rng(1)
    for _ in range(data.draw(st.integers(0, 4))):
        starts, stops = _rectangle(data)
        part = (slice(None), slice(starts[0], stops[0]), slice(starts[1], stops[1]))
        added = random.standard_normal(total[part].shape)
        total[part] += added
        tiling.add(store, added, starts)
    inside = np.zeros(SHAPE[1:3], bool)
    for top, bottom, left, right in _tiles(active, step, high=high)[0][1:]:
        inside[top:bottom, left:right] = True
        tile = tiling.read(store, [top, left], [bottom, right])
        np.testing.assert_allclose(tile, total[:, top:bottom, left:right], atol=1e-14)
    outside = np.where(inside[None, ..., None], 0, total)
    rest = outside.reshape(2, 24 // step, step, 16 // step, step, 3).sum((1, 3))
    sums = tiling.read(store, [8, 4], [8 + step, 4 + step], is_pattern=True)
    np.testing.assert_allclose(sums, rest, atol=1e-13)


def test_one_tile_is_read_without_a_copy() -> None:
    tiling, store = _store(np.ones(COUNTS, bool), 1, sums=False)
    top, bottom, left, right = _tiles(np.ones(COUNTS, bool), 1)[0][5]
    tile = tiling.read(store, [top, left], [bottom, right])
    assert np.shares_memory(tile, store)
    assert tile.shape == (2, bottom - top, right - left, 3)


def test_holds_no_more_than_its_tiles() -> None:
    active = np.zeros(COUNTS, bool)
    active[1, 2] = True
    tiling, _ = _store(active, 2, sums=False)
    top, bottom, left, right = _tiles(active, 2)[0][1]
    sizes = 2 * 3 * 2 * 2, 2 * 3 * (bottom - top) * (right - left)
    assert tiling.elements == sum(-(-n // 64) * 64 for n in sizes)


def test_sums_of_the_background_can_be_replaced() -> None:
    tiling, store = _store(np.zeros(COUNTS, bool), 2, sums=True)
    tiling.write(store, np.full((2, 2, 2, 3), 7.0), [8, 4], is_pattern=True)
    np.testing.assert_array_equal(tiling.read(store, [8, 4], [10, 6], is_pattern=True), 7)


def test_signals_are_cut_along_one_axis() -> None:
    tiling = Tiling((1, 10, 2), np.array([[4, 5], [0, 3], [8, 10]]), np.arange(3) == 0, False)
    store = np.zeros(tiling.elements)
    tiling.write(store, np.full((1, 1, 2), 5.0), [4], is_pattern=True)
    tiling.write(store, np.full((1, 3, 2), 1.0), [0], is_pattern=False)
    tiling.write(store, np.full((1, 2, 2), 2.0), [8], is_pattern=False)
    assert tiling.read(store, [1], [10])[0, :, 0].tolist() == [1, 1, 5, 5, 5, 5, 5, 2, 2]


def test_stores_are_found_by_address() -> None:
    first, store = _store(np.ones(COUNTS, bool), 1, False)
    second, _ = _store(np.ones(COUNTS, bool), 1, True)
    for each in (first, second):
        tilings.remember(store, each)
        assert tilings.of(store[:]) is each

"""Outlines: valid polygons with the area of their pixels, their holes, and a limit on their number."""

from __future__ import annotations

import numpy as np
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st

from tfbig import SourceError, Stopped
from tfbig.results import outlines
from tfbig.sources import ArraySource
from tfbig.system import signals


def test_outlines_follow_pixels_and_holes() -> None:
    labels = np.zeros((40, 60), np.uint8)
    labels[5:35, 10:50] = 1
    labels[15:25, 20:40] = 2
    labels[18:22, 28:32] = 0
    regions = outlines.regions(labels, 2.0)
    assert (regions.left_out, regions.filled) == (0, 0)
    assert list(regions.polygons) == [1, 2]
    (outer,), (inner,) = regions.polygons.values()
    assert outer.equals(shapely.box(20, 10, 100, 70) - shapely.box(40, 30, 80, 50))
    assert inner.equals(shapely.box(40, 30, 80, 50) - shapely.box(56, 36, 64, 44))


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 12), st.integers(2, 4))
def test_outlines_of_random_labels(seed: int, rows: int, columns: int, classes: int) -> None:
    """Each outline is within a pixel and a half of the union of its pixels, computed one by one."""
    labels = np.random.default_rng(seed).integers(0, classes, (rows, columns))
    found = outlines.regions(labels).polygons
    assert set(found) == set(np.unique(labels)) - {0}
    for number, polygons in found.items():
        pixels = [shapely.box(x, y, x + 1, y + 1) for y, x in np.argwhere(labels == number)]
        assert all(p.is_valid for p in polygons)
        assert shapely.union_all(polygons).hausdorff_distance(shapely.union_all(pixels)) <= 1.5


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 12))
def test_area_before_smoothing_is_exact(seed: int, rows: int, columns: int) -> None:
    labels = np.random.default_rng(seed).integers(0, 2, (rows, columns))
    parts, _ = outlines._largest(labels, 0)
    assert sum(p.area for p, *_ in outlines._polygons(parts)) == labels.sum()


def test_outlines_are_smooth_and_small_regions_are_dropped() -> None:
    rows, columns = np.ogrid[:200, :200]
    labels = ((rows - 100) ** 2 + (columns - 100) ** 2 < 80**2).astype(np.uint8)
    labels[:2, :3] = 1
    regions = outlines.regions(labels, smallest=10)
    assert regions.left_out == 0  # it was not asked for
    ((disk,),) = regions.polygons.values()
    assert disk.area == pytest.approx(np.pi * 80**2, rel=0.01)
    assert len(disk.exterior.coords) < 200  # 640 along the edges of pixels
    assert outlines.regions(labels * 0) == outlines.Regions({})


def test_largest_regions_and_holes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit, the largest regions have outlines; small holes belong to the region around them."""
    monkeypatch.setattr(outlines, "MOST_REGIONS", 2)
    labels = np.zeros((20, 60), np.uint8)
    labels[2:18, 2:20] = 1
    labels[2:18, 22:50] = 2
    labels[8:12, 52:58] = 1  # the third largest
    labels[4:9, 25:30] = 0  # beside the background, the largest hole
    labels[5:7, 5:8] = labels[12, 40] = 0
    regions = outlines.regions(labels)
    assert (regions.left_out, regions.filled) == (1, 2)
    assert regions.polygons[1][0].equals(shapely.box(2, 2, 20, 18))
    assert regions.polygons[2][0].equals(shapely.box(22, 2, 50, 18) - shapely.box(25, 4, 30, 9))
    assert [len(p) for p in regions.polygons.values()] == [1, 1]


def test_small_gap_at_the_left_edge_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlines, "MOST_REGIONS", 1)
    labels = np.ones((6, 9), np.uint8)
    labels[:, 7:] = 0
    labels[3, 0] = 0
    regions = outlines.regions(labels)
    assert regions.filled == 1
    assert regions.polygons[1][0].area == pytest.approx(6 * 7 - 1, abs=1)


def test_long_outlines_are_not_smoothed(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.tri(30, dtype=np.uint8)
    assert len(outlines.regions(labels).polygons[1][0].exterior.coords) < 10
    monkeypatch.setattr(outlines, "MOST_POINTS", 50)
    assert len(outlines.regions(labels).polygons[1][0].exterior.coords) > 60


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 0.7])
def test_noise(share: float) -> None:
    """A mask of noise has hundreds of thousands of regions and holes."""
    labels = (np.random.default_rng(0).random((1024, 1024)) < share).astype(np.uint8)
    regions = outlines.regions(labels)
    assert sum(map(len, regions.polygons.values())) + regions.left_out > 5000
    assert sum(len(p.interiors) for p in regions.polygons[1]) <= 2 * outlines.MOST_REGIONS
    assert all(p.is_valid for p in regions.polygons[1])


def test_small_labels_are_the_most_frequent() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, (2050, 131, 1), np.uint8)
    small, factor = outlines.small_labels(ArraySource(labels), 500)
    assert factor == 5
    assert small.shape == (410, 27)
    for i, j in ((0, 0), (409, 26), (204, 13), (100, 26)):
        block = labels[5 * i : 5 * i + 5, 5 * j : 5 * j + 5]
        assert small[i, j] == np.bincount(block.ravel(), minlength=4).argmax()
    whole, factor = outlines.small_labels(ArraySource(labels), 5000)
    assert factor == 1
    np.testing.assert_array_equal(whole, labels[..., 0])
    for wrong in (labels.astype(np.float32), np.repeat(labels, 2, 2)):
        with pytest.raises(SourceError, match=r"array: has .* expected one channel of integer"):
            outlines.small_labels(ArraySource(wrong))


def test_signal_ends_the_outlines(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.indices((9, 9)).sum(0) % 2
    monkeypatch.setattr(signals, "_requested", 15)
    with pytest.raises(Stopped, match="SIGTERM"):
        outlines.regions(labels)

"""Instances by strips are those of scikit-image on the whole image, with the same numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from graphs import for_examples
from hypothesis import strategies as st
from scipy import ndimage
from skimage.measure import label
from skimage.segmentation import watershed

from tfbig import BudgetError, SourceError, sources
from tfbig.results import instances
from tfbig.results.instances import Thresholds, label_strips

Maps = npt.NDArray[np.uint8]


def of_whole(maps: Maps, thresholds: Thresholds) -> npt.NDArray[np.int64]:
    """Return the instances of the whole image, numbered in the order of their first pixels."""
    mask = maps[..., 0] > thresholds.foreground
    markers = label(mask & (maps[..., 1] > thresholds.marker), connectivity=1)
    heights = -maps[..., 1].astype(float)
    heights[markers > 0] = heights.min() - 1 - np.arange(np.count_nonzero(markers))[::-1]
    found = watershed(heights, markers, mask=mask)
    numbers, first = np.unique(found, return_index=True)
    order = numbers[np.argsort(first)]
    final = np.zeros(found.max() + 1, int)
    order = order[order > 0]
    final[order] = np.arange(1, len(order) + 1)
    return final[found]


def strips_of(maps: Maps, heights: list[int]) -> Iterator[Maps]:
    """Yield strips of the given heights in turn."""
    start, number = 0, 0
    while start < len(maps):
        height = heights[number % len(heights)]
        yield maps[start : start + height]
        start, number = start + height, number + 1


def blobs(rows: int, columns: int, seed: int, smooth: float, levels: int) -> Maps:
    """Return smooth random maps, whose components have several markers and whose distances are often equal."""
    rng = np.random.default_rng(seed)
    maps = np.stack([ndimage.gaussian_filter(rng.random((rows, columns)), smooth) for _ in "fd"], 2)
    low, high = maps.min((0, 1)), maps.max((0, 1))
    scaled = (maps - low) / np.maximum(high - low, 1e-9)
    return (np.rint(scaled * levels) * (255 / levels)).astype(np.uint8)


@for_examples(
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(0, 10**6),
    st.sampled_from([0.0, 0.7, 1.5, 3.0]),
    st.sampled_from([2, 5, 255]),
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.sampled_from([(100, 120), (60, 150), (-1, 128), (150, 90)]),
    fast=15,
    slow=60,
)
def test_any_strips(
    rows: int,
    columns: int,
    seed: int,
    smooth: float,
    levels: int,
    heights: list[int],
    limits: tuple[int, int],
) -> None:
    maps, thresholds = blobs(rows, columns, seed, smooth, levels), Thresholds(*limits)
    found = list(label_strips(strips_of(maps, heights), thresholds))
    assert [len(strip) for strip in found] == [len(s) for s in strips_of(maps, heights)]
    np.testing.assert_array_equal(np.concatenate(found), of_whole(maps, thresholds))
    floats = maps.astype(np.float32)
    again = np.concatenate(list(label_strips(strips_of(floats, heights), thresholds)))
    np.testing.assert_array_equal(again, np.concatenate(found))


def test_spirals_join_late() -> None:
    """Arms that look like components of their own for many strips are one, and two spirals stay two."""
    maps = np.zeros((60, 60, 2), np.uint8)
    rows, columns = np.mgrid[:60, :60] - 29.5
    angle, radius = np.arctan2(rows, columns), np.hypot(rows, columns)
    phase = (radius - 3 * angle / np.pi * 2) % 12
    maps[(phase < 4) & (radius < 28), 0] = 255
    maps[..., 1] = (radius * 9).astype(np.uint8)
    for limits in ((100, 200), (100, 0)):
        thresholds = Thresholds(*limits)
        expected = of_whole(maps, thresholds)
        for height in (1, 2, 7, 60):
            found = list(label_strips(strips_of(maps, [height]), thresholds))
            np.testing.assert_array_equal(np.concatenate(found), expected)


def test_strips_are_yielded_when_they_are_complete() -> None:
    """An object in rows 2 to 4 delays these rows alone, and what is complete is forgotten."""
    maps = np.zeros((12, 5, 2), np.uint8)
    maps[2:5, 2] = 255
    read: list[int] = []

    def strips() -> Iterator[Maps]:
        for row in range(12):
            read.append(row)
            yield maps[row : row + 1]

    read_at = [len(read) for _ in label_strips(strips(), Thresholds(0, 0))]
    assert read_at == [1, 2, 6, 6, 6, 6, 7, 8, 9, 10, 11, 12]


def test_no_foreground_and_no_markers() -> None:
    maps = np.zeros((9, 7, 2), np.uint8)
    assert not any(s.any() for s in label_strips(strips_of(maps, [2]), Thresholds(0, 0)))
    maps[..., 0] = 255
    assert not any(s.any() for s in label_strips(strips_of(maps, [2]), Thresholds(0, 0)))


def test_foreground_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances, "MOST_OPEN", 100)
    maps = np.full((40, 10, 2), 255, np.uint8)
    with pytest.raises(
        BudgetError, match=r"have 105 pixels|have \d+ pixels, up to row 1\d; 100 are"
    ):
        list(label_strips(strips_of(maps, [5]), Thresholds(0, 0)))


def test_component_that_does_not_fit_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rectangle around the component counts, here that of a diagonal line of 30 pixels."""
    maps = np.zeros((40, 50, 2), np.uint8)
    maps[5:35, 10:40][np.arange(30), np.arange(30)] = 255
    maps[5:35, 10:40][np.arange(29), np.arange(1, 30)] = 255
    needed = 30 * 30 * instances.FLOODED_BYTES
    monkeypatch.setattr(instances.budget, "available_bytes", lambda: needed)
    assert [int(s.max()) for s in label_strips(strips_of(maps, [10]), Thresholds(0, 0))] == [1] * 4
    monkeypatch.setattr(instances.budget, "available_bytes", lambda: needed - 1)
    expected = r"connected across rows 5 to 34 and columns 10 to 39: .* takes 52\.8 KiB of host memory, but .* are free"
    with pytest.raises(BudgetError, match=expected):
        list(label_strips(strips_of(maps, [10]), Thresholds(0, 0)))


def test_source_is_read_once_in_any_bands() -> None:
    maps, thresholds = blobs(50, 40, 0, 1.5, 255), Thresholds(100, 150)
    expected = of_whole(maps, thresholds)
    source = instances.Instances(sources.open(maps), thresholds, strip_rows=7)
    for start, stop in ((0, 3), (3, 20), (20, 21), (21, 50)):
        np.testing.assert_array_equal(source.read(start, stop)[..., 0], expected[start:stop])
    with pytest.raises(SourceError, match="rows 0:3 of its instances were read before"):
        source.read(0, 3)

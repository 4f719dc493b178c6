"""Boxes of images and volumes that are cropped, padded and enlarged, in any order, equal those of NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfbig.sources import ArraySource, Padded, Resampled, Source, Upsampled, Volume, boxes
from tfbig.sources.volumes.raw import ArrayVolume
from tfbig.sources.volumes.views import PaddedVolume

FILL = 9


def cropped(draw: Any, source: Any, model: np.ndarray) -> tuple[Source, np.ndarray]:
    """Take a box."""
    box = draw(boxes_of(model.shape[:-1]))
    return source.crop(*box), model[slices(box)]


def padded(draw: Any, source: Any, model: np.ndarray) -> tuple[Source, np.ndarray]:
    """Pad the end of each axis to a multiple."""
    multiples = [draw(st.integers(1, 5))] * (model.ndim - 1)
    if isinstance(source, Volume):
        multiples = [draw(st.integers(1, 5)) for _ in multiples]
        view: Source = PaddedVolume(source, multiples, FILL)
    else:
        view = Padded(source, multiples[0], FILL)
    added = [(0, -n % m) for n, m in zip(model.shape, multiples, strict=False)]
    return view, np.pad(model, [*added, (0, 0)], constant_values=FILL)


def enlarged(draw: Any, source: Any, model: np.ndarray) -> tuple[Source, np.ndarray]:
    """Repeat each sample along every axis."""
    factor = draw(st.integers(1, 3))
    for axis in range(model.ndim - 1):
        model = model.repeat(factor, axis)
    size = model.shape[:-1]
    if isinstance(source, Volume):
        return Resampled(source, size, nearest=True), model
    return Upsampled(source, factor, (size[0], size[1])), model


def boxes_of(shape: tuple[int, ...]) -> Any:
    """Boxes inside a shape that are not empty."""
    ends = [st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)) for n in shape]
    return st.tuples(*(pair.map(lambda p: (min(p), max(p) + 1)) for pair in ends))


def slices(box: Any) -> tuple[slice, ...]:
    return tuple(slice(*each) for each in box)


@given(st.data(), st.sampled_from([2, 3]))
def test_views_of_images_and_volumes(data: st.DataObject, axes: int) -> None:
    shape = data.draw(st.tuples(*[st.integers(1, 5)] * axes, st.integers(1, 2)))
    model = np.random.default_rng(0).integers(0, 9, shape).astype("uint8")
    source: Source = ArrayVolume(model) if axes == 3 else ArraySource(model)
    for change in data.draw(st.lists(st.sampled_from([cropped, padded, enlarged]), max_size=4)):
        source, model = change(data.draw, source, model)
    assert source.shape == model.shape
    np.testing.assert_array_equal(source.read(0, model.shape[0]), model)
    box = data.draw(boxes_of(model.shape[:-1]))
    part = source.read_box(*box) if isinstance(source, Volume) else source.read_window(*box)
    np.testing.assert_array_equal(part, model[slices(box)])
    assert part.dtype == model.dtype
    assert part.flags.c_contiguous


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(1, 9)), min_size=1, max_size=3))
def test_boxes_beyond_an_array(places: list[tuple[int, int]]) -> None:
    """Also before its begin, and outside of it; other axes are whole."""
    array = np.arange(3**4).reshape(3, 3, 3, 3)
    box = [(start, start + size) for start, size in places]

    def read(*ranges: tuple[int, int]) -> np.ndarray:
        assert all(0 <= start < stop <= 3 for start, stop in ranges)
        return array[slices(ranges)]

    wide = np.pad(array, [(9, 18)] * len(box) + [(0, 0)] * (4 - len(box)), constant_values=-1)
    expected = wide[slices(boxes.moved(box, [9] * len(box)))]
    np.testing.assert_array_equal(boxes.padded(read, box, array.shape, -1, int), expected)


def test_nothing_is_copied_inside() -> None:
    array = np.zeros((4, 4, 1))
    part = boxes.padded(lambda rows: array[slice(*rows)], [(1, 3)], array.shape, 0, float)
    assert part.base is array


def test_boxes_have_a_step_for_each_axis() -> None:
    with pytest.raises(ValueError, match="shorter"):
        boxes.moved([(0, 1), (2, 3)], [1])

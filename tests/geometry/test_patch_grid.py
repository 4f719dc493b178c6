"""Patch grids cover every pixel of an image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfbig.geometry.patch_grid import PatchGrid, num_cells, per_axis


@given(patch=st.integers(1, 9), more=st.integers(0, 40), data=st.data())
def test_patches_cover_the_image(patch: int, more: int, data: Any) -> None:
    stride = data.draw(st.integers(1, patch))
    grid = PatchGrid((patch + more,), (patch,), (stride,))
    (starts,) = grid.corners(np.arange(grid.count)).T
    seen = np.zeros(patch + more, int)
    for start in starts:
        assert 0 <= start <= more
        seen[start : start + patch] += 1
    assert seen.min() >= 1
    assert (np.diff(starts) > 0).all()  # strictly increasing: no patch is repeated
    assert (starts[:-1] == stride * np.arange(grid.count - 1)).all()


def test_published_grids() -> None:
    assert PatchGrid((2048, 2048), (128, 128), (128, 128)).cells == (16, 16)
    assert PatchGrid((512, 512), (32, 32), (32, 32)).count == 256
    assert PatchGrid((224, 224), (40, 40), (20, 20)).cells == (11, 11)
    assert PatchGrid((128,), (16,), (16,)).cells == (8,)
    assert num_cells(128, 16, 16) == 8


@pytest.mark.parametrize(
    ("extents", "patch", "stride", "message"),
    [
        ((7, 9), (8, 8), (8, 8), r"the image is \(7, 9\), smaller than a patch of \(8, 8\)"),
        ((9, 9), (4, 4), (4, 5), r"a stride of \(4, 5\) leaves pixels out"),
        ((9,), (4, 4), (4, 4), r"the image \(9,\) has 1 axes, but the patch \(4, 4\) has 2"),
    ],
)
def test_invalid_grid(extents: Any, patch: Any, stride: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PatchGrid(extents, patch, stride)


@pytest.mark.parametrize("sizes", [0, (3, -1), (3, 3, 3)])
def test_invalid_sizes(sizes: Any) -> None:
    with pytest.raises(ValueError, match=r"patch=.*expected a positive number"):
        per_axis(sizes, 2, "patch")

"""Spacing, orientation and affine of boxes, turned and resampled volumes."""

from __future__ import annotations

import itertools

import nibabel
import numpy as np
import pytest
from volume_files import OBLIQUE, SIZE

from tfbig.sources.volumes import grid as grids
from tfbig.sources.volumes.grid import VoxelGrid

GRID = VoxelGrid.of_affine(OBLIQUE[:, [2, 1, 0, 3]])


def place(grid: VoxelGrid, *index: float) -> np.ndarray:
    return (np.array(grid.affine) @ [*index, 1])[:3]


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
@pytest.mark.parametrize("flips", [(False, False, False), (True, False, True)])
def test_turned_voxels_stay_in_place(order: tuple[int, ...], flips: tuple[bool, ...]) -> None:
    turned = GRID.turned(order, flips, SIZE)
    index = (1, 2, 4)
    moved = [
        SIZE[old] - 1 - index[old] if flip else index[old]
        for old, flip in zip(order, flips, strict=True)
    ]
    np.testing.assert_allclose(place(turned, *moved), place(GRID, *index), atol=1e-12)
    assert turned.spacing == tuple(GRID.spacing[axis] for axis in order)
    codes = nibabel.aff2axcodes(np.array(turned.affine))
    assert turned.orientation == "".join(codes)
    back = grids.turn_to(turned.orientation, GRID.orientation, "x")
    size = tuple(SIZE[axis] for axis in order)
    np.testing.assert_allclose(turned.turned(*back, size).affine, GRID.affine, atol=1e-12)


def test_boxes_and_larger_voxels() -> None:
    np.testing.assert_allclose(place(GRID.cropped((1, 2, 3)), 0, 0, 0), place(GRID, 1, 2, 3))
    scaled = GRID.scaled((2, 1, 0.5))
    # the corner of the first voxel stays where it is
    np.testing.assert_allclose(place(scaled, -0.5, -0.5, -0.5), place(GRID, -0.5, -0.5, -0.5))
    np.testing.assert_allclose(scaled.spacing, np.multiply(GRID.spacing, (2, 1, 0.5)))
    np.testing.assert_allclose(
        np.linalg.norm(np.array(scaled.affine)[:3, :3], axis=0), scaled.spacing
    )


def test_distance_of_grids() -> None:
    assert GRID.differs(GRID, SIZE) == 0
    assert GRID.differs(GRID.cropped((0, 0, 2)), SIZE) == pytest.approx(2 * 0.8)
    assert VoxelGrid((3, 1, 1)).differs(VoxelGrid((2, 1, 1)), SIZE) == 4
    assert VoxelGrid((3, 1, 1)).differs(VoxelGrid(), SIZE) == 0


@pytest.mark.parametrize(
    "affine", [np.zeros((4, 4)), np.full((4, 4), np.nan), np.diag([1, 1, 0, 1])]
)
def test_affines_that_are_none(affine: np.ndarray) -> None:
    assert VoxelGrid.of_affine(affine) == VoxelGrid()
    assert (
        VoxelGrid.of_affine(np.array([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]))
        == VoxelGrid()
    )


def test_names_of_orientations() -> None:
    assert grids.is_orientation("SAR") and grids.is_orientation("LIP")
    assert not any(map(grids.is_orientation, ("SA", "SAL1", "RLS", "XYZ", "sar")))
    assert grids.spacing_of((1, -2, 3)) == (1.0, 2.0, 3.0)
    assert grids.spacing_of((0, 1, 1)) is None

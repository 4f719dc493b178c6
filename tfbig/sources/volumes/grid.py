"""Where the voxels of a volume are: spacing, and the affine to millimetres of the patient."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tfbig.choices import DIRECTIONS
from tfbig.errors import SourceError

Spacing: TypeAlias = tuple[float, float, float]
Affine: TypeAlias = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class VoxelGrid:
    """Place of the voxels of a volume in space, or as much of it as a file says.

    Args:
        spacing: Millimetres from plane to plane, row to row and column to column; None if unknown.
        affine: Four rows of four numbers; map `(plane, row, column, 1)` to `(x, y, z, 1)` in millimetres, x to the
            right, y to the front and z to the top of the patient. None if the file does not place the volume.

    Example:
        >>> affine = [[0, 0, 0.5, 0], [0, 0.5, 0, 0], [3, 0, 0, 0], [0, 0, 0, 1]]  # columns grow to the right
        >>> grid = tfbig.sources.VoxelGrid.of_affine(affine)
        >>> grid.spacing, grid.orientation
        ((3.0, 0.5, 0.5), 'SAR')
    """

    spacing: Spacing | None = None
    affine: Affine | None = None

    @classmethod
    def of_affine(cls, affine: npt.ArrayLike) -> VoxelGrid:
        """The grid of an affine; one that maps an axis to a point, or is not finite, is none.

        Args:
            affine: `[4, 4]`, as in `VoxelGrid`.
        """
        matrix = np.asarray(affine, np.float64)
        with np.errstate(all="ignore"):  # of infinite numbers and NaN
            lengths = np.linalg.norm(matrix[:3, :3], axis=0)
            skewed = abs(np.linalg.det(matrix[:3, :3] / lengths))
        if not np.isfinite([*matrix.ravel(), *lengths]).all() or not skewed >= 1e-6:
            return cls()
        return cls(_triple(lengths), tuple(tuple(map(float, row)) for row in matrix))

    @property
    def orientation(self) -> str | None:
        """Direction of the patient in which planes, rows and columns grow, such as `'SAR'`; None if unknown.

        The letters are R and L (right, left), A and P (anterior, posterior), S and I (superior, inferior).
        """
        if self.affine is None:
            return None
        matrix = np.asarray(self.affine)[:3, :3]
        matrix = matrix / np.linalg.norm(matrix, axis=0)
        best = max(
            itertools.permutations(range(3)),
            key=lambda axes: sum(abs(matrix[world, n]) for n, world in enumerate(axes)),
        )
        return "".join(DIRECTIONS[world][int(matrix[world, n] > 0)] for n, world in enumerate(best))

    def cropped(self, starts: Sequence[int]) -> VoxelGrid:
        """The grid of a box.

        Args:
            starts: First plane, row and column of the box.
        """
        return self._mapped(np.eye(3), np.asarray(starts, float))

    def turned(
        self, order: Sequence[int], flipped: Sequence[bool], size: Sequence[int]
    ) -> VoxelGrid:
        """The grid with its axes in another order, and some of them reversed.

        Args:
            order: For each axis of the result, the axis of this grid.
            flipped: For each axis of the result, whether it is reversed.
            size: Planes, rows and columns of this grid.
        """
        matrix, start = np.zeros((3, 3)), np.zeros(3)
        for new, (old, reverse) in enumerate(zip(order, flipped, strict=True)):
            matrix[old, new] = -1 if reverse else 1
            start[old] = size[old] - 1 if reverse else 0
        turned = self._mapped(matrix, start)
        spacing = None if self.spacing is None else _triple([self.spacing[i] for i in order])
        return VoxelGrid(spacing, turned.affine)

    def scaled(self, factors: Sequence[float]) -> VoxelGrid:
        """The grid of a volume of the same extent whose voxels are larger.

        Args:
            factors: Factors of the size of a voxel, along planes, rows and columns.
        """
        scale = np.asarray(factors, float)
        scaled = self._mapped(np.diag(scale), (scale - 1) / 2)
        spacing = None if self.spacing is None else _triple(scale * self.spacing)
        return VoxelGrid(spacing, scaled.affine)

    def _mapped(self, matrix: npt.NDArray[Any], start: npt.NDArray[Any]) -> VoxelGrid:
        """The grid whose index `i` is the index `matrix @ i + start` of this one, with this spacing."""
        if self.affine is None:
            return self
        step = np.eye(4)
        step[:3, :3], step[:3, 3] = matrix, start
        affine = np.asarray(self.affine) @ step
        return VoxelGrid(self.spacing, tuple(tuple(map(float, row)) for row in affine))

    def differs(self, other: VoxelGrid, size: Sequence[int]) -> float:
        """The largest distance between the same corners of two volumes, in millimetres.

        Args:
            other: Grid of the other volume.
            size: Planes, rows and columns of both.

        Returns:
            The distance; if only spacing is known of one of them, that of the ends of an axis; 0 if nothing is known.
        """
        if self.affine is None or other.affine is None:
            if self.spacing is None or other.spacing is None:
                return 0.0
            pairs = zip(self.spacing, other.spacing, size, strict=True)
            return max(abs(a - b) * (n - 1) for a, b, n in pairs)
        corners = np.array([*itertools.product(*[(0, n - 1) for n in size])], float)
        corners = np.concatenate([corners, np.ones((8, 1))], axis=1)
        apart = corners @ (np.asarray(self.affine) - np.asarray(other.affine)).T
        return float(np.linalg.norm(apart[:, :3], axis=1).max())


def turn_to(
    orientation: str | None, wanted: str, name: str
) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """Find the order and flips with which `VoxelGrid.turned` gives a volume another orientation.

    Raises:
        SourceError: The orientation of the volume is unknown.
    """
    if orientation is None:
        raise SourceError(
            f"{name}: does not say how it is oriented; expected an affine in its header, to turn it to {wanted}. Use "
            "--orientation stored for files without one."
        )
    axes = [_world_axis(letter) for letter in orientation]
    order = tuple(axes.index(_world_axis(letter)) for letter in wanted)
    flipped = tuple(orientation[old] != letter for old, letter in zip(order, wanted, strict=True))
    return order, flipped


def is_orientation(text: str) -> bool:
    """Tell whether a text such as `'SAR'` names a direction of each axis of the patient."""
    found = [n for letter in text for n, pair in enumerate(DIRECTIONS) if letter in pair]
    return len(text) == 3 and sorted(found) == [0, 1, 2]


def spacing_of(values: Sequence[float]) -> Spacing | None:
    """A spacing in millimetres of planes, rows and columns; None if a number is not positive and finite."""
    numbers = _triple([abs(value) for value in values])
    return numbers if all(0 < n < math.inf for n in numbers) else None


def _world_axis(letter: str) -> int:
    return next(n for n, pair in enumerate(DIRECTIONS) if letter in pair)


def _triple(values: Any) -> Spacing:
    first, second, third = map(float, values)
    return first, second, third

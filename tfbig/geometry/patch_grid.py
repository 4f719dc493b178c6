"""Patches of one size on a regular grid over an image; integer arithmetic only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tfbig.errors import Advice, SmallImageError

Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PatchGrid:
    """Patches at every multiple of a stride; the last patch of an axis ends where the image ends.

    Cell `i` of an axis is `[s, s + patch)` with `s = min(i * stride, extent - patch)`, so every pixel is in a patch.
    If the stride does not divide the extent evenly, the last patch overlaps the previous one by more than the
    others do. Cells are numbered with the last axis varying fastest.

    Args:
        extents: Image size along each axis, without channels.
        patch: Patch size along each axis.
        stride: Distance between the starts of consecutive patches along each axis, at most `patch`.

    Raises:
        ValueError: The numbers of axes differ, or a stride is larger than the patch, which would leave pixels out.
        SmallImageError: The image is smaller than a patch; a ValueError.

    Example:
        >>> grid = tfbig.patchgd.PatchGrid((100, 60), (40, 40), (40, 40))
        >>> grid.cells
        (3, 2)
        >>> grid.corners([0, 5]).tolist()
        [[0, 0], [60, 20]]
    """

    extents: tuple[int, ...]
    patch: tuple[int, ...]
    stride: tuple[int, ...]

    def __post_init__(self) -> None:
        check(self.patch, self.stride)
        if len(self.extents) != len(self.patch):
            raise ValueError(
                f"the image {self.extents} has {len(self.extents)} axes, but the patch {self.patch} has "
                f"{len(self.patch)}; expected equal numbers of axes."
            )
        if any(extent < size for extent, size in zip(self.extents, self.patch, strict=True)):
            raise SmallImageError(
                f"the image is {self.extents}, smaller than a patch of {self.patch}.",
                Advice.SMALLER_PATCH,
            )

    @property
    def cells(self) -> tuple[int, ...]:
        """Number of patches along each axis."""
        axes = zip(self.extents, self.patch, self.stride, strict=True)
        return tuple(num_cells(extent, size, step) for extent, size, step in axes)

    @property
    def count(self) -> int:
        """Number of patches of the image."""
        return prod(self.cells)

    def corners(self, places: npt.ArrayLike) -> Places:
        """Return the first pixels of patches.

        Args:
            places: Numbers of the patches, integers `[k]`.

        Returns:
            Int64 coordinates `[k, axes]`.
        """
        index = np.stack(np.unravel_index(np.asarray(places, np.int64), self.cells), -1)
        last = np.subtract(self.extents, self.patch)
        corners: Places = np.minimum(index * np.asarray(self.stride, np.int64), last)
        return corners


def num_cells(extent: Any, patch: int, stride: int) -> Any:
    """Return the number of patches along an axis; `extent` may be a tensor."""
    return 1 - (patch - extent) // stride


def per_axis(sizes: int | Sequence[int], axes: int, what: str) -> tuple[int, ...]:
    """Expand a number, or a sequence with one number per axis, to a tuple with one number per axis.

    Args:
        sizes: A positive number for all axes, or one for each.
        axes: Number of axes.
        what: Name of the argument, for the error message.

    Raises:
        ValueError: The sequence has another length, or a number is not positive.
    """
    result = (sizes,) * axes if isinstance(sizes, int) else tuple(int(n) for n in sizes)
    if len(result) != axes or min(result) < 1:
        raise ValueError(
            f"{what}={sizes}: expected a positive number, or one for each of {axes} axes."
        )
    return result


def check(patch: Sequence[int], stride: Sequence[int]) -> None:
    """Check that a stride leaves no pixels out.

    Args:
        patch: Patch size along each axis.
        stride: Stride along each axis.

    Raises:
        ValueError: A stride is larger than the patch, or the numbers of axes differ.
    """
    if len(patch) != len(stride) or any(b > a for a, b in zip(patch, stride, strict=True)):
        raise ValueError(
            f"a stride of {tuple(stride)} leaves pixels out between patches of {tuple(patch)}; expected one stride "
            "for each axis, at most the patch size."
        )

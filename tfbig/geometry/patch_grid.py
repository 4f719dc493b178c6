"""Patches of one size on a regular grid over an image: where they lie, integers only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PatchGrid:
    """Patches at every multiple of a stride; the last one of an axis ends where the image does.

    Cell `i` of an axis is `[s, s + patch)` with `s = min(i * stride, extent - patch)`, so every pixel is in a patch,
    and where the stride does not divide, the last patch overlaps the one before by more. Cells are numbered along the
    last axis first.

    Args:
        extents: of the image, without its channels.
        patch: of a patch, as many numbers.
        stride: from patch to patch; by default the patch, so that none overlap.

    Raises:
        ValueError: the numbers do not go together, the image is smaller than a patch, or a stride is larger than the
            patch, which would leave pixels out.
    """

    extents: tuple[int, ...]
    patch: tuple[int, ...]
    stride: tuple[int, ...]

    def __post_init__(self) -> None:
        check(self.patch, self.stride)
        if len(self.extents) != len(self.patch):
            raise ValueError(
                f"an image of {len(self.extents)} axes, {self.extents}, and a patch of {len(self.patch)}, "
                f"{self.patch}; expected as many."
            )
        if any(extent < size for extent, size in zip(self.extents, self.patch, strict=True)):
            raise ValueError(
                f"the image is {self.extents}, smaller than a patch of {self.patch}. Take smaller patches, pad the "
                "image (tfbig.sources.Padded), or leave it out."
            )

    @property
    def cells(self) -> tuple[int, ...]:
        """Patches along each axis."""
        axes = zip(self.extents, self.patch, self.stride, strict=True)
        return tuple(num_cells(extent, size, step) for extent, size, step in axes)

    @property
    def count(self) -> int:
        """All patches."""
        return prod(self.cells)

    def corners(self, places: npt.ArrayLike) -> Places:
        """First pixels of the patches with these numbers, `[k]` to `[k, axes]`."""
        index = np.stack(np.unravel_index(np.asarray(places, np.int64), self.cells), -1)
        last = np.subtract(self.extents, self.patch)
        found: Places = np.minimum(index * np.asarray(self.stride, np.int64), last)
        return found


def num_cells(extent: Any, patch: int, stride: int) -> Any:
    """Patches along an axis; `extent` may be a tensor."""
    return 1 - (patch - extent) // stride


def per_axis(sizes: int | Sequence[int], axes: int, what: str) -> tuple[int, ...]:
    """A number, or one for each axis, as one for each.

    Raises:
        ValueError: it is another number of them, or not positive.
    """
    found = (sizes,) * axes if isinstance(sizes, int) else tuple(int(n) for n in sizes)
    if len(found) != axes or min(found) < 1:
        raise ValueError(
            f"{what}={sizes}: expected a positive number, or one for each of {axes} axes."
        )
    return found


def check(patch: Sequence[int], stride: Sequence[int]) -> None:
    """Refuses strides that leave pixels out.

    Raises:
        ValueError: one is larger than the patch, or there are not as many.
    """
    if len(patch) != len(stride) or any(b > a for a, b in zip(patch, stride, strict=True)):
        raise ValueError(
            f"a stride of {tuple(stride)} leaves pixels out between patches of {tuple(patch)}; expected one of the "
            "patch at most, for each axis."
        )

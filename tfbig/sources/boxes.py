"""Boxes along the axes of images, volumes and bags: moved, and read where they reach beyond what there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Range: TypeAlias = tuple[int, int]
"""First place along an axis, and the place after the last."""


def moved(box: Sequence[Range], by: Sequence[int]) -> list[Range]:
    """Move a box, a range for each axis, by a number of places along each."""
    return [(start + step, stop + step) for (start, stop), step in zip(box, by, strict=True)]


def padded(
    read: Callable[..., npt.NDArray[Any]],
    box: Sequence[Range],
    shape: Sequence[int],
    value: float,
    dtype: npt.DTypeLike,
) -> npt.NDArray[Any]:
    """Read a box that may reach beyond an array at both ends of each axis, or lie outside of it.

    `read` returns the part of the array in a range for each axis of the box, none of them empty. The box has a
    range for each of the first axes; the others are whole. What lies outside has `value`.
    """
    inside = [
        (max(start, 0), min(stop, extent))
        for (start, stop), extent in zip(box, shape[: len(box)], strict=True)
    ]
    if inside == list(box):
        return read(*inside)
    size = [stop - start for start, stop in box]
    out = np.full((*size, *shape[len(box) :]), value, dtype)
    if all(start < stop for start, stop in inside):
        pairs = zip(inside, box, strict=True)
        place = tuple(slice(start - first, stop - first) for (start, stop), (first, _) in pairs)
        out[place] = read(*inside)
    return out

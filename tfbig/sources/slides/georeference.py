"""Location of the pixels of an image on Earth, from the tags of GeoTIFF (OGC 19-008r4, section 7)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import tifffile

PIXEL_SCALE: Final = 33550
TIEPOINTS: Final = 33922
TRANSFORMATION: Final = 34264
_KEYS: Final = {34735: "H", 34736: "d", 34737: "s"}
"""Tags of the coordinate system (directory, numbers, text) and their types; they are copied unchanged."""


@dataclass(frozen=True)
class Georeference:
    """Mapping from pixels to coordinates, by a scale and tie points, or by a matrix.

    Attributes:
        scale: ModelPixelScale, along columns, rows and height; or None.
        tiepoints: ModelTiepoint: column, row, 0 and their x, y, z, one point after the other.
        matrix: ModelTransformation, 4 x 4, row after row; or None.
        keys: Code and value of each tag of the coordinate system.
    """

    scale: tuple[float, ...] | None
    tiepoints: tuple[float, ...]
    matrix: tuple[float, ...] | None
    keys: tuple[tuple[int, Any], ...]

    def scaled(self, rows: float, columns: float) -> Georeference:
        """The georeference of the same image with pixels of so many rows and columns of this one."""
        steps = np.array([columns, rows, 1.0])
        points = np.array(self.tiepoints).reshape(-1, 6)
        points[:, :3] /= steps
        scale = None if self.scale is None else tuple(map(float, self.scale * steps))
        matrix = None
        if self.matrix is not None:
            matrix = tuple(map(float, np.ravel(np.reshape(self.matrix, (4, 4)) * [*steps, 1.0])))
        return replace(
            self, scale=scale, tiepoints=tuple(map(float, points.ravel())), matrix=matrix
        )

    def tags(self) -> list[tuple[int, str, int, Any, bool]]:
        """The tags as `extratags` of `tifffile.TiffWriter.write`."""
        numbers = {PIXEL_SCALE: self.scale, TIEPOINTS: self.tiepoints, TRANSFORMATION: self.matrix}
        mapping = [(code, "d", len(value), value, True) for code, value in numbers.items() if value]
        keys = [(code, _KEYS[code], _count(value), value, True) for code, value in self.keys]
        return [*mapping, *keys]


def georeference_of_page(page: tifffile.TiffPage) -> Georeference | None:
    """Read the georeference in the tags of a page, or None if there is no usable one."""
    values = {
        code: getattr(page.tags.get(code), "value", None)
        for code in (PIXEL_SCALE, TIEPOINTS, TRANSFORMATION)
    }
    scale, points, matrix = (_numbers(value) for value in values.values())
    by_points = len(scale) == 3 and len(points) >= 6 and len(points) % 6 == 0
    if not by_points and len(matrix) != 16:
        return None
    keys = [(code, getattr(page.tags.get(code), "value", None)) for code in _KEYS]
    return Georeference(
        scale if by_points else None,
        points if by_points else (),
        matrix if len(matrix) == 16 else None,
        tuple((code, value) for code, value in keys if value is not None),
    )


def _numbers(value: Any) -> tuple[float, ...]:
    """Finite numbers as a tuple, which is empty for anything else."""
    try:
        numbers = np.asarray(() if value is None else value, np.float64).ravel()
    except (TypeError, ValueError):
        return ()
    return tuple(map(float, numbers)) if np.isfinite(numbers).all() else ()


def _count(value: Any) -> int:
    return 0 if isinstance(value, str) else len(np.ravel(value))

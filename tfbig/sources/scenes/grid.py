"""The grid of the pixels of a scene on Earth: its coordinate system, and the map from pixels to coordinates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tfbig.sources.files import Package

if TYPE_CHECKING:
    from rasterio.crs import CRS
    from rasterio.transform import Affine

rasterio = Package("rasterio")


@dataclass(frozen=True)
class MapGrid:
    """Grid of the pixels of an image on a map.

    Attributes:
        wkt: Coordinate system as WKT, or None if the file has none.
        matrix: `(a, b, c, d, e, f)`: the corner of pixel (row, column) is at `x = a * column + b * row + c`,
            `y = d * column + e * row + f`.

    Example:
        >>> from tfbig.sources.scenes.grid import MapGrid
        >>> grid = MapGrid(None, (10.0, 0.0, 500000.0, 0.0, -10.0, 6000000.0))
        >>> grid.window(2, 3).matrix
        (10.0, 0.0, 500030.0, 0.0, -10.0, 5999980.0)
    """

    wkt: str | None
    matrix: tuple[float, float, float, float, float, float]

    @classmethod
    def of(cls, crs: CRS | None, transform: Affine) -> MapGrid:
        """Read the grid of a dataset of rasterio.

        Args:
            crs: Its coordinate system.
            transform: Its transform.
        """
        return cls(crs.to_wkt() if crs else None, tuple(transform)[:6])

    @cached_property
    def crs(self) -> CRS | None:
        """Coordinate system for rasterio."""
        return None if self.wkt is None else rasterio.crs.CRS.from_wkt(self.wkt)

    @property
    def transform(self) -> Affine:
        """Map from (column, row) to coordinates, for rasterio."""
        return rasterio.Affine(*self.matrix)

    @property
    def is_placed(self) -> bool:
        """True if the pixels have coordinates: a file without any has the identity as transform."""
        return self.wkt is not None or self.transform != rasterio.Affine.identity()

    def at(self, column: float, row: float) -> tuple[float, float]:
        """The coordinates x and y of the corner of a pixel.

        Args:
            column: Column, which may be a fraction.
            row: Row.
        """
        a, b, c, d, e, f = self.matrix
        return a * column + b * row + c, d * column + e * row + f

    def window(self, row: float, column: float) -> MapGrid:
        """The grid of a rectangle of the image.

        Args:
            row: First row.
            column: First column.
        """
        a, b, _, d, e, _ = self.matrix
        x, y = self.at(column, row)
        return MapGrid(self.wkt, (a, b, x, d, e, y))

    def scaled(self, rows: float, columns: float) -> MapGrid:
        """The grid of the same image with larger pixels.

        Args:
            rows: Rows of this image in one pixel.
            columns: Columns of this image in one pixel.
        """
        a, b, c, d, e, f = self.matrix
        return MapGrid(self.wkt, (a * columns, b * rows, c, d * columns, e * rows, f))

    def equals(self, other: MapGrid, shape: tuple[int, int]) -> bool:
        """Tell whether pixels of both grids are at the same places, to a hundredth of a pixel over an image.

        Args:
            other: The other grid.
            shape: Rows and columns of the image.
        """
        if self.crs != other.crs:
            return False
        a, b, _, d, e, _ = self.matrix
        pixel = min((a * a + d * d) ** 0.5, (b * b + e * e) ** 0.5)
        corners = ((0, 0), (shape[1], 0), (0, shape[0]), (shape[1], shape[0]))
        pairs = (zip(self.at(*corner), other.at(*corner), strict=True) for corner in corners)
        return all(abs(first - second) <= 0.01 * pixel for pair in pairs for first, second in pair)

    @property
    def square_metres(self) -> float | None:
        """Area of a pixel in square metres, or None if coordinates are not lengths."""
        if self.crs is None or not self.crs.is_projected:
            return None
        _, metres = self.crs.linear_units_factor
        a, b, _, d, e, _ = self.matrix
        return abs(a * e - b * d) * float(metres) ** 2

    def describe(self) -> str:
        """Describe the coordinate system and the size of pixels."""
        if self.crs is None:
            return "no coordinate system"
        code = self.crs.to_epsg()
        name = f"EPSG:{code}" if code else self.crs.to_string().partition("[")[0]
        (a, b, _, d, e, _) = self.matrix
        width, height = (a**2 + d**2) ** 0.5, (b**2 + e**2) ** 0.5
        unit = self.crs.linear_units if self.crs.is_projected else "degree"
        size = f"{width:g}" if abs(width - height) < 1e-9 * width else f"{height:g} x {width:g}"
        units = f"{unit[:-4]}feet" if unit.endswith("foot") else f"{unit}s"
        return f"{name}, pixels of {size} {unit if size == '1' else units}"

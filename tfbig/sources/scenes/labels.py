"""Labels of scenes, read by windows: of rasters on any grid, and of polygons, lines and points."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import shapely

from tfbig.errors import SourceError, reason_of
from tfbig.sources import boxes, number_text, rasterizing, untrusted
from tfbig.sources.boxes import Range
from tfbig.sources.files import Package, PathLike
from tfbig.sources.scenes import vectors
from tfbig.sources.scenes.grid import MapGrid
from tfbig.sources.scenes.measured import FilledScene
from tfbig.sources.scenes.raster import RasterSource
from tfbig.sources.source import RowArray, View
from tfbig.units import counted

warp = Package("rasterio.warp")

VECTORS: Final = vectors.SUFFIXES
"""Suffixes of files of outlines."""
_NUMBERS: Final = ("id", "fid", "ogc_fid", "objectid")
"""Columns in which files number their outlines."""
_MOST_COORDINATE: Final = 1e12
_FAR: Final = 2**16
"""Pixels around a window within which outlines are drawn as they are."""
_MOST_CROSSED: Final = 2e9
"""Pixels that all lines near a window may cross: some seconds."""
Bounds = tuple[float, float, float, float]
"""Least x and y, greatest x and y."""
Window = tuple[tuple[int, int], tuple[int, int]]
Part = tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]
"""Values of a window, `[rows, columns]`, and where they are known."""


class Labels(ABC):
    """Labels of a scene, on its pixels."""

    @abstractmethod
    def read(self, window: Window) -> Part:
        """Read the labels of a window of the scene, `(start, stop)` of rows and columns, and where they are known."""


@final
class RasterLabels(Labels):
    """Labels in a raster: of the same grid, or resampled to it by the nearest pixel as they are read.

    Args:
        path: The file, of one band.
        scene: The scene.

    Attributes:
        is_warped: Whether the labels are resampled.

    Raises:
        SourceError: The file cannot be read, has several bands, does not overlap the scene, or one of them has no
            coordinate system and they differ in size.
    """

    def __init__(self, path: PathLike, scene: RasterSource) -> None:
        with untrusted.reading(path, "cannot be placed on the scene"):
            self._open(path, scene)

    def _open(self, path: PathLike, scene: RasterSource) -> None:
        source = RasterSource(path)
        if source.shape[2] != 1:
            raise SourceError(
                f"{path}: has {counted(source.shape[2], 'band')}; expected one, the labels. Write one band."
            )
        shape = scene.shape[0], scene.shape[1]
        placed = source.grid.wkt is not None and scene.grid.wkt is not None
        same = source.grid.equals(scene.grid, shape) if placed else True
        self.is_warped = not (same and source.shape[:2] == shape)
        if self.is_warped:
            if not placed:
                raise SourceError(
                    f"{path}: is {source.shape[0]} x {source.shape[1]} pixels and {scene.name} {shape[0]} x "
                    f"{shape[1]}, and not both have a coordinate system. Write it to both files, or labels of the same "
                    "size."
                )
            _check_overlap(path, _bounds(source.grid, source.shape), source.grid, scene)
            source = RasterSource(path, onto=(scene.grid, shape))
        self.source = source

    def read(self, window: Window) -> Part:
        """Read the labels of a window, and where they are measurements."""
        pixels = self.source.read_window(*window)
        known = self.source.valid(*window, pixels)
        return np.where(known, pixels[..., 0], 0).astype(np.float32), known

    def values(self) -> set[int]:
        """Find the class numbers that occur; all labels are read.

        Raises:
            SourceError: A label is no whole number, or negative.
        """
        found: set[int] = set()
        rows, columns, _ = self.source.shape
        for top in range(0, rows, 512):
            values, known = self.read(((top, min(top + 512, rows)), (0, columns)))
            found |= {float(v) for v in np.unique(values[known])}  # type: ignore[misc]
        wrong = sorted(v for v in found if v < 0 or v != int(v))
        if wrong:
            raise SourceError(
                f"{self.source.name}: has the label {wrong[0]:g}; expected class numbers from 0. If these are values, "
                "use --target regression; if it stands for no label, set it as the nodata of the file."
            )
        return {int(v) for v in found}


@final
class VectorLabels(Labels):
    """Outlines of classes or values, drawn on the pixels of a scene window by window.

    A pixel has the label of the last outline that contains its centre. The outlines are reprojected to the coordinate
    system of the scene, vertex by vertex.

    Args:
        path: GeoJSON, GeoPackage, shapefile or FlatGeobuf.
        scene: The scene, which must have a coordinate system.
        column: Column of the classes or values; None: all outlines are class 1.
        numbers: Class number of each class in the column; None: the column has numbers, which are the values, and
            pixels without an outline have none.

    Raises:
        SourceError: The file cannot be read, has no such column or a class without a number, or does not overlap the
            scene; or a coordinate system is missing; or geopandas is not installed.
    """

    def __init__(
        self,
        path: PathLike,
        scene: RasterSource,
        column: str | None = None,
        numbers: Mapping[str, int] | None = None,
    ) -> None:
        if scene.grid.crs is None:
            raise SourceError(
                f"{scene.name}: has no coordinate system, which the outlines of {path} need. Write it to the file, as "
                "by rio edit-info --crs, or use a raster of labels."
            )
        table = read_outlines(path, scene, column)
        _check_coordinates(path, table)
        self.name, self.grid, self.is_value = str(path), scene.grid, numbers is None
        with untrusted.reading(path, "cannot be placed on the scene"):
            self.shapes: npt.NDArray[Any] = np.asarray(table.geometry.to_numpy())
            self.burned = _burned(path, table, column, numbers)
            self.tree = shapely.STRtree(self.shapes)

    def read(self, window: Window) -> Part:
        """Draw the labels of a window; all are known of classes, those with an outline of values."""
        (top, bottom), (left, right) = window
        shape, grid = (bottom - top, right - left), self.grid.window(top, left)
        area = shapely.box(*_bounds(grid, shape))
        inside = np.sort(self.tree.query(area))
        shapes = _clipped(self.name, self.shapes[inside], grid, shape)
        fill = np.nan if self.is_value else 0
        values = np.full(shape, fill, np.float32)
        if len(inside):
            pairs = zip(shapes, self.burned[inside].tolist(), strict=True)
            drawn = ((s, value) for s, value in pairs if not s.is_empty)
            with untrusted.reading(self.name, "cannot be drawn"):
                rasterizing.draw(drawn, values, grid.transform)
        known = ~np.isnan(values)
        return np.where(known, values, np.float32(0)), known


def read_outlines(
    path: PathLike, scene: RasterSource | None = None, column: str | None = None
) -> Any:
    """Read the outlines of a file as a GeoDataFrame, without missing and empty ones.

    With a scene, those in its area are read, in its coordinate system. No column but `column` is read.

    Raises:
        SourceError: The file cannot be read, has no such column or no coordinate system, or does not overlap the scene;
            or geopandas is not installed.
    """
    info = vectors.information(path, bounds=True)
    if column is not None and column not in info["fields"]:
        names = reason_of(", ".join(map(str, info["fields"])))
        raise SourceError(
            f"{path}: has no column {column}; expected one of {names or 'none at all'}. Check --label-column."
        )
    area = None
    if scene is not None:
        if not info["crs"]:
            raise SourceError(
                f"{path}: has no coordinate system, as a shapefile without .prj; expected one, to place the "
                "outlines on the scene. Add it, as by geopandas' set_crs and to_file."
            )
        with untrusted.reading(path, "cannot be placed on the scene"):
            area = _area_in(info["crs"], scene)
    table = vectors.table(path, [] if column is None else [column], area)
    if scene is not None and table.empty:
        bounds = "nothing" if info["total_bounds"] is None else _numbers(info["total_bounds"])
        raise SourceError(
            f"{path}: its outlines do not overlap {scene.name}: they cover {bounds} ({info['crs']}), the scene is "
            f"within {_numbers(area or ())} there. Check that both are of the same place and have the right "
            "coordinate system."
        )
    with untrusted.reading(path, "cannot be placed on the scene"):
        table = table if scene is None else table.to_crs(scene.grid.wkt)
        return table[~(table.geometry.isna() | table.geometry.is_empty)]


def columns_of(path: PathLike) -> list[str]:
    """List the columns of a file of outlines that may hold classes or values: all but numbers of the outlines.

    Raises:
        SourceError: The file cannot be read.
    """
    fields = vectors.information(path)["fields"]
    return [name for name in map(str, fields) if name.lower() not in _NUMBERS]


@final
class LabelSource(View):
    """Labels of a scene, or their weights, as a network reads them: `[H, W, 1]`, float32.

    The scene is filled and padded.

    The weight of a pixel is 1 where its label is known and the scene has a measurement, else 0.
    """

    def __init__(self, image: FilledScene, labels: Labels, weights: bool = False) -> None:
        name = f"{'weights' if weights else 'labels'} of {image.name}"
        super().__init__(image, (*image.shape[:2], 1), np.float32, name)
        self._scene, self._labels, self._weights = image, labels, weights

    def close(self) -> None:
        """Do nothing: the scene stays open."""

    def _read_window(self, start: int, stop: int, left: int, right: int) -> RowArray:
        window, shape = ((start, stop), (left, right)), (*self._scene.scene.shape[:2], 1)
        return boxes.padded(self._inside, window, shape, 0, self.dtype)

    def _inside(self, rows: Range, columns: Range) -> RowArray:
        values, known = self._labels.read((rows, columns))
        chosen = known & self._scene.valid(rows, columns) if self._weights else values
        return chosen[..., None].astype(np.float32)


def _burned(
    path: PathLike, table: Any, column: str | None, numbers: Mapping[str, int] | None
) -> npt.NDArray[np.float64]:
    """The number that each outline is drawn with."""
    if column is None:
        return np.ones(len(table))
    if numbers is None:
        try:
            return _values(table[column])
        except (TypeError, ValueError) as error:
            raise SourceError(
                f"{path}: its column {column} does not hold numbers ({reason_of(error)}); expected values. "
                "Use --target class."
            ) from error
    classes = class_names(path, column, table[column])
    unknown = sorted({name for name in classes if name not in numbers})
    if unknown:
        raise SourceError(
            f"{path}: has the class {reason_of(unknown[0])} in column {column}; expected "
            f"{', '.join(numbers)}. Add it to --class-names."
        )
    return np.array([numbers[name] for name in classes], np.float64)


def _values(column: Any) -> npt.NDArray[np.float64]:
    """Read a column as numbers, which may be written in text.

    Raises:
        ValueError: A cell is something else.
    """
    texts = number_text.Column()
    cells = (texts.number(cell) if isinstance(cell, str) else cell for cell in column)
    return np.array([*cells], np.float64)


def class_names(path: PathLike, column: str, values: Sequence[Any]) -> list[str]:
    """Read the classes of a column as text; 3.0, of a column of numbers, is "3".

    `path` and `column` are for the error.

    Raises:
        SourceError: A cell is empty or no number.
    """
    names = []
    for value in values:
        if value is None or value != value or value in (np.inf, -np.inf):
            raise SourceError(
                f"{path}: has an outline without a class in column {column} ({value}); expected one in each row. Fill "
                "in the class, or remove the outline."
            )
        whole = isinstance(value, float) and value.is_integer()
        names.append(str(int(value)) if whole else str(value))
    return names


def _area_in(crs: str, scene: RasterSource) -> Bounds:
    """The area of a scene in another coordinate system."""
    bounds = _bounds(scene.grid, scene.shape)
    area: Bounds = warp.transform_bounds(scene.grid.crs, crs, *bounds, densify_pts=21)
    return area


def _check_coordinates(path: PathLike, table: Any) -> None:
    """Raise SourceError where outlines have vertices without a place on the scene's map."""
    with untrusted.reading(path, "cannot be placed on the scene"):
        bounds = shapely.bounds(table.geometry.to_numpy())
    if not (np.abs(bounds) < _MOST_COORDINATE).all():  # also refuses NaN
        raise SourceError(
            f"{path}: an outline reaches beyond the map of the scene, to coordinates that are no numbers or larger "
            f"than {_MOST_COORDINATE:g}. Cut the outlines to the area of the scene."
        )


def _clipped(path: str, shapes: npt.NDArray[Any], grid: MapGrid, shape: Sequence[int]) -> Any:
    """Clip what is far from a window: GDAL follows each line through all pixels that it crosses.

    Raises:
        SourceError: Lines cross too many pixels in and around the window.
    """
    rows, columns = shape
    near = _bounds(grid.window(-_FAR, -_FAR), (rows + 2 * _FAR, columns + 2 * _FAR))
    bounds = shapely.bounds(shapes).reshape(-1, 4)
    far = (bounds[:, :2] < near[:2]).any(1) | (bounds[:, 2:] > near[2:]).any(1)
    with untrusted.reading(path, "cannot be drawn"):
        if far.any():
            shapes = shapes.copy()
            shapes[far] = shapely.clip_by_rect(shapes[far], *near)
        lines = shapely.get_dimensions(shapes) != 2
        pixel = abs(grid.transform.determinant) ** 0.5
        crossed = float(shapely.length(shapes[lines]).sum()) / pixel
    if crossed > _MOST_CROSSED:
        raise SourceError(
            f"{path}: its lines cross {crossed:.3g} pixels around a window of the scene; expected at most "
            f"{_MOST_CROSSED:g}. Cut the lines to the area of the scene."
        )
    return shapes


def _check_overlap(path: PathLike, bounds: Bounds, grid: MapGrid, scene: RasterSource) -> None:
    """Raise SourceError if labels are of another place than a scene."""
    area = _area_in(grid.wkt or "", scene)
    if not shapely.box(*bounds).intersects(shapely.box(*area)):
        raise SourceError(
            f"{path}: does not overlap {Path(scene.name).name}: it covers {_numbers(bounds)}, the scene is within "
            f"{_numbers(area)} in its coordinates. Check that both are of the same place and have the right coordinate "
            "system."
        )


def _bounds(grid: MapGrid, shape: Sequence[int]) -> Bounds:
    """The smallest rectangle with sides along the axes of coordinates around a grid of pixels."""
    rows, columns = shape[:2]
    corners = [grid.at(*corner) for corner in ((0, 0), (columns, 0), (0, rows), (columns, rows))]
    x, y = zip(*corners, strict=True)
    return min(x), min(y), max(x), max(y)


def _numbers(bounds: Sequence[float]) -> str:
    return " ".join(f"{number:.6g}" for number in bounds)

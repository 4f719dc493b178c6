"""Tissue and other objects outlined by hand, in GeoJSON as QuPath and `tfbig tile` write it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import shapely
from affine import Affine

from tfbig.errors import SourceError
from tfbig.sources import Slide, Source, rasterizing
from tfbig.sources.files import PathLike
from tfbig.tissue.masks import Tissue, small_step


def read_tissue(path: PathLike, slide: Slide) -> Tissue:
    """Read the tissue of a slide from outlines.

    Args:
        path: GeoJSON file: a FeatureCollection, a list of features or one feature, with polygons in pixels of level 0.
        slide: The slide.

    Returns:
        A mask of the pixels, at the size that `find_tissue` uses, whose centre is in a polygon.

    Raises:
        SourceError: The file is not GeoJSON, has no polygon, or its polygons are not on the slide.

    Example:
        >>> np.save("slide.npy", np.zeros((100, 80, 3), "uint8"))
        >>> import json
        >>> square = {"type": "Polygon", "coordinates": [[[0, 0], [40, 0], [40, 50], [0, 50], [0, 0]]]}
        >>> with open("slide.geojson", "w") as file:
        ...     json.dump({"type": "Feature", "geometry": square, "properties": {}}, file)
        >>> tfbig.tissue.read_tissue("slide.geojson", tfbig.open_slide("slide.npy")).share
        0.25
    """
    rows, columns = slide.shape[:2]
    polygons = _polygons_on(path, rows, columns, slide.name)
    height, width = slide.scaled(small_step(slide)).shape[:2]
    to_slide = Affine.scale(columns / width, rows / height)
    mask = np.zeros((height, width), np.uint8)
    rasterizing.draw([(polygon, 1) for polygon in polygons], mask, to_slide)
    if not mask.any():
        raise SourceError(
            f"{path}: its polygons are smaller than a pixel of the mask. Draw larger ones."
        )
    return Tissue(mask > 0, (rows, columns))


class Outlined(Source):
    """Labels `[H, W, 1]`, uint8, of an image whose objects are outlined: 1 where the centre of a pixel is in a polygon.

    Args:
        path: As for `read_tissue`.
        image: The image; polygons are in its pixels.

    Raises:
        SourceError: As for `read_tissue`.
    """

    def __init__(self, path: PathLike, image: Source) -> None:
        rows, columns = image.shape[:2]
        super().__init__((rows, columns, 1), np.uint8, Path(path).name)
        polygons = _polygons_on(path, rows, columns, image.name)
        self._tree = shapely.STRtree(polygons)

    def _read(self, start: int, stop: int) -> npt.NDArray[Any]:
        return self._read_window(start, stop, 0, self.shape[1])

    def _read_window(self, start: int, stop: int, left: int, right: int) -> npt.NDArray[Any]:
        found = self._tree.query(shapely.box(left, start, right, stop))
        labels = np.zeros((stop - start, right - left), np.uint8)
        if len(found):
            polygons = self._tree.geometries.take(found)
            rasterizing.draw([(p, 1) for p in polygons], labels, Affine.translation(left, start))
        return labels[..., None]


def _polygons_on(path: PathLike, rows: int, columns: int, name: str) -> list[shapely.Geometry]:
    """Return the polygons of a file, at least one of which is on an image.

    Raises:
        SourceError: The file is not GeoJSON, or none is.
    """
    polygons = _polygons(Path(path))
    if not any(polygon.intersects(shapely.box(0, 0, columns, rows)) for polygon in polygons):
        raise SourceError(
            f"{path}: none of its {len(polygons)} polygons is on {name}, {rows} x {columns}; expected coordinates in "
            "pixels of level 0. Use the outlines of this slide."
        )
    return polygons


def _polygons(path: Path) -> list[shapely.Geometry]:
    """Return the polygons and multipolygons of a file."""
    try:
        shapes = [shapely.from_geojson(json.dumps(each)) for each in _geometries(path)]
    except Exception as error:  # whatever the document holds
        raise SourceError(
            f"{path}: is not a GeoJSON file ({type(error).__name__}: {error}). Export the annotations again."
        ) from error
    polygons = [shape for shape in shapes if shape.geom_type in ("Polygon", "MultiPolygon")]
    if not polygons:
        raise SourceError(
            f"{path}: has no polygons; expected outlines. Draw at least one, and export it as GeoJSON."
        )
    return [shapely.make_valid(polygon) for polygon in polygons]


def _geometries(path: Path) -> Iterator[Any]:
    """Yield the geometries of a FeatureCollection, a list of features, a feature, or a geometry."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(content, dict):
        content = content.get("features", [content])
    for feature in content:
        yield feature.get("geometry", feature)

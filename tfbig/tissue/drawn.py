"""Tissue and other objects outlined by hand, in GeoJSON as QuPath and `tfbig tile` write it."""

from __future__ import annotations

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
from tfbig.tissue.outline_file import OutlineRule, read_outlines


def read_tissue(path: PathLike, slide: Slide, rule: OutlineRule | None = None) -> Tissue:
    """Read the tissue of a slide from outlines.

    Args:
        path: GeoJSON file, as QuPath exports it: a FeatureCollection, a list of features or one feature, with polygons
            in pixels of level 0, counted from the corner of the scanned area, `Slide.origin`.
        slide: The slide.
        rule: Which outlines count, and where they are counted from; by default `OutlineRule()`.

    Returns:
        A mask of the pixels, at the size that `find_tissue` uses, whose centre is in a polygon. Its `note` says which
        outlines do not count, and by how much they were shifted.

    Raises:
        SourceError: The file is not GeoJSON, has no polygon that counts, several classes could count, or its polygons
            are not on the slide.

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
    polygons, note = read_outlines(path, (rows, columns), slide.origin, rule, slide.name)
    height, width = slide.scaled(small_step(slide)).shape[:2]
    to_slide = Affine.scale(columns / width, rows / height)
    mask = np.zeros((height, width), np.uint8)
    rasterizing.draw([(polygon, 1) for polygon in polygons], mask, to_slide)
    if not mask.any():
        raise SourceError(
            f"{path}: its polygons are smaller than a pixel of the mask. Draw larger ones."
        )
    return Tissue(mask > 0, (rows, columns), note=note)


class Outlined(Source):
    """Labels `[H, W, 1]`, uint8, of an image whose objects are outlined: 1 where the centre of a pixel is in a polygon.

    Args:
        path: As for `read_tissue`.
        image: The image; polygons are in its pixels, counted from `origin`.
        rule: As for `read_tissue`.
        origin: Row and column that count as 0; by default `image.origin`, that of the slide whose level 0 it is.

    Attributes:
        note: As of `read_tissue`.

    Raises:
        SourceError: As for `read_tissue`.
    """

    def __init__(
        self,
        path: PathLike,
        image: Source,
        rule: OutlineRule | None = None,
        origin: tuple[int, int] | None = None,
    ) -> None:
        rows, columns = image.shape[:2]
        super().__init__((rows, columns, 1), np.uint8, Path(path).name)
        first = image.origin if origin is None else origin
        polygons, self.note = read_outlines(path, (rows, columns), first, rule, image.name)
        self._tree = shapely.STRtree(polygons)

    def _read_window(self, start: int, stop: int, left: int, right: int) -> npt.NDArray[Any]:
        found = self._tree.query(shapely.box(left, start, right, stop))
        labels = np.zeros((stop - start, right - left), np.uint8)
        if len(found):
            polygons = self._tree.geometries.take(found)
            rasterizing.draw([(p, 1) for p in polygons], labels, Affine.translation(left, start))
        return labels[..., None]

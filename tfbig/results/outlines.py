"""Outlines of regions in an image of class numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import shapely
from rasterio import features
from skimage import measure

from tfbig.errors import SourceError
from tfbig.sources import Source
from tfbig.system import progress
from tfbig.units import ceil_div, counted

REDUCED_SIDE: Final = 4096
"""Longer side of the reduced image from which outlines are computed."""
SMOOTHING: Final = 0.75
"""Maximum distance in pixels of an outline from the edges of pixels: steps of one pixel become slopes."""
MOST_REGIONS: Final = 10_000
"""Most regions that are outlined, and most holes in them: the largest."""
MOST_POINTS: Final = 50_000
"""Most points of an outline that is smoothed; the time grows with the square of the number of holes."""

Labels = npt.NDArray[Any]


class Regions(NamedTuple):
    """Outlines of the regions of each class.

    Args:
        polygons: Valid polygons by class, in pixels of the slide: x and y.
        left_out: Number of regions without an outline, because there are `MOST_REGIONS` larger ones.
        filled: Number of holes that are filled, because there are `MOST_REGIONS` larger ones.
    """

    polygons: dict[int, list[shapely.Polygon]]
    left_out: int = 0
    filled: int = 0


def small_labels(labels: Source, side: int = REDUCED_SIDE) -> tuple[Labels, int]:
    """Reduce labels to the most frequent class of each block of pixels, the lower class in a tie.

    `labels` are class numbers `[H, W, 1]` of an integer dtype, read once, strip by strip. The result, `[h, w]`, has
    a longer side of at most `side`; the side of a block in pixels follows.

    Raises:
        SourceError: The labels have several channels, are not integers, or cannot be read.
    """
    if labels.shape[2] != 1 or labels.dtype.kind not in "bui":
        raise SourceError(
            f"{labels.name}: has {counted(labels.shape[2], 'channel')} of {labels.dtype}; expected one channel of "
            "integer class numbers."
        )
    factor = max(math.ceil(max(labels.shape[:2]) / side), 1)
    height = max(1024 // factor, 1) * factor
    starts = range(0, labels.shape[0], height)
    strips = (labels.read(i, min(i + height, labels.shape[0]))[..., 0] for i in starts)
    return np.concatenate([_majority(strip, factor) for strip in strips]), factor


def regions(
    labels: Labels, step: float | tuple[float, float] = 1.0, smallest: float = 0.0
) -> Regions:
    """Outline regions: along the edges of pixels, then smoothed by `SMOOTHING`.

    `labels` are class numbers `[h, w]`; 0 is background. `step` is the side of a pixel of `labels` in pixels of the
    slide, or its height and width. Regions of less than `smallest` pixels of `labels` are dropped.

    A region is a set of pixels of one class that are connected along their edges.

    Raises:
        Stopped: The process was requested to stop, by a signal.
    """
    steps = step if isinstance(step, tuple) else (step, step)
    parts, left_out = _largest(measure.label(labels, background=0, connectivity=1), smallest)
    filled = _fill_small_holes(parts)
    polygons: dict[int, list[shapely.Polygon]] = {}
    count = len(np.unique(parts[parts > 0]))
    with progress.reporting("outlining", "region") as ticked:
        for index, (polygon, row, column) in enumerate(_polygons(parts), 1):
            ticked(index, count)
            outline = placed(_smooth(polygon), steps)
            polygons.setdefault(int(labels[row, column]), []).extend(outline.geoms)
    return Regions(dict(sorted(polygons.items())), left_out, filled)


def placed(shape: shapely.Geometry, steps: tuple[float, float]) -> shapely.Geometry:
    """Scale a shape of an image, x and y, to pixels of the slide.

    `steps` are height and width of a pixel of the image in pixels of the slide.
    """
    rows, columns = steps
    return shapely.transform(shape, lambda xy: xy * (columns, rows))


def _largest(parts: Labels, smallest: float) -> tuple[npt.NDArray[np.int32], int]:
    """Keep the parts of at least an area, at most `MOST_REGIONS`, and count how many more there are."""
    areas = np.bincount(parts.ravel())
    areas[0] = 0
    large = np.flatnonzero(areas >= max(smallest, 1))
    chosen = large[np.argsort(-areas[large], kind="stable")[:MOST_REGIONS]]
    numbers = np.zeros(len(areas), np.int32)
    numbers[chosen] = chosen
    return numbers[parts], len(large) - len(chosen)


def _fill_small_holes(parts: npt.NDArray[np.int32]) -> int:
    """Give holes besides the largest the number of the region on their left, and return how many there are."""
    gaps = measure.label(parts == 0, background=0, connectivity=1)
    kept, count = _largest(gaps, 0)
    if not count:
        return 0
    places = np.flatnonzero((kept == 0) & (gaps > 0))
    numbers = gaps.ravel()[places]
    first = np.zeros(gaps.max() + 1, np.intp)
    first[numbers[::-1]] = places[::-1]  # where numbers are equal, the last assignment counts
    inside = first % parts.shape[1] > 0
    left = np.where(inside, parts.ravel()[first - 1], 0)
    parts.ravel()[places] = left[numbers]
    return count


def _polygons(parts: npt.NDArray[np.int32]) -> Iterator[tuple[shapely.Polygon, int, int]]:
    """Yield the outline of each part along the edges of pixels, and the row and column of one of its pixels."""
    first = dict(zip(*np.unique(parts, return_index=True), strict=True))
    for shape, number in features.shapes(parts, mask=parts > 0, connectivity=4):
        exterior, *holes = shape["coordinates"]
        row, column = divmod(int(first[int(number)]), parts.shape[1])
        yield shapely.Polygon(exterior, holes), row, column


def _smooth(polygon: shapely.Polygon) -> shapely.MultiPolygon:
    """A valid outline with fewer points; very long ones stay as they are."""
    if shapely.get_num_coordinates(polygon) > MOST_POINTS:
        return shapely.MultiPolygon([polygon])
    valid = shapely.make_valid(polygon.simplify(SMOOTHING, preserve_topology=True))
    parts = shapely.get_parts(shapely.get_parts(valid))
    return shapely.MultiPolygon([part for part in parts if part.geom_type == "Polygon"])


def _majority(rows: Labels, factor: int) -> Labels:
    """The most frequent class of each block of `[r, W]`."""
    if factor == 1:
        return rows.copy()
    height, width = rows.shape
    best = np.zeros((ceil_div(height, factor), ceil_div(width, factor)), rows.dtype)
    most = np.zeros(best.shape, np.int64)
    # With few classes, trying all numbers is faster than finding those that occur.
    few = rows.dtype.itemsize == 1 and rows.max() < 16
    for number in range(int(rows.max()) + 1) if few else np.unique(rows):
        same = rows == number
        whole = height // factor * factor
        down = [same[:whole].reshape(-1, factor, width).sum(1, dtype=np.uint32)]
        if whole < height:
            down.append(same[whole:].sum(0, dtype=np.uint32)[None])
        across = np.arange(0, width, factor)
        counts = np.add.reduceat(np.concatenate(down), across, axis=1)
        wins = counts > most
        best[wins], most[wins] = number, counts[wins]
    return best

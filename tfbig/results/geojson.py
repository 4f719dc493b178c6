"""GeoJSON in the format of QuPath: regions as annotations, tiles with scores as detections."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import shapely

from tfbig.errors import SourceError
from tfbig.sources import Source
from tfbig.sources.files import PathLike
from tfbig.sources.writing import atomic_write

COLOURS: Final = (
    *((0, 158, 115), (213, 94, 0), (0, 114, 178), (204, 121, 167)),
    *((230, 159, 0), (86, 180, 233), (240, 228, 66), (110, 110, 110)),
)
"""Colours of classes, in turn: the palette for colour-blind readers of Okabe and Ito."""
SIDE: Final = 4096
"""Longer side of the reduced image from which outlines are computed."""
SMOOTHING: Final = 0.75
"""Maximum distance in pixels of an outline from the edges of pixels: steps of one pixel become slopes."""

Labels = npt.NDArray[Any]


def hex_of(colour: Any) -> str:
    """Format a colour: `(0, 158, 115)` as `'#009e73'`."""
    return "#" + bytes(int(part) for part in colour).hex()


def small_labels(labels: Source, side: int = SIDE) -> tuple[Labels, int]:
    """Reduce labels to the most frequent class of each block of pixels, the lower class in a tie.

    Args:
        labels: Class numbers `[H, W, 1]` of an integer dtype; read once, strip by strip.
        side: Maximum of the longer side of the result.

    Returns:
        Class numbers `[h, w]`, and the side of a block in pixels.

    Raises:
        SourceError: The labels have several channels, are not integers, or cannot be read.
    """
    if labels.shape[2] != 1 or labels.dtype.kind not in "bui":
        raise SourceError(
            f"{labels.name}: has {labels.shape[2]} channels of {labels.dtype}; expected one channel of integer class "
            "numbers."
        )
    factor = max(math.ceil(max(labels.shape[:2]) / side), 1)
    height = max(1024 // factor, 1) * factor
    starts = range(0, labels.shape[0], height)
    strips = (labels.read(i, min(i + height, labels.shape[0]))[..., 0] for i in starts)
    return np.concatenate([_majority(strip, factor) for strip in strips]), factor


def regions(
    labels: Labels, step: float = 1.0, smallest: float = 0.0
) -> dict[int, shapely.MultiPolygon]:
    """Return outlines of classes: along the edges of pixels, then smoothed by `SMOOTHING`.

    Args:
        labels: Class numbers `[h, w]`, integers; 0 is background.
        step: Side of a pixel of `labels` in pixels of the slide.
        smallest: Minimum area of a polygon in pixels of `labels`; smaller ones are dropped.

    Returns:
        A valid multipolygon for each class that occurs, in pixels of the slide: x and y.
    """
    outlines = {}
    for number in np.unique(labels):
        if number:
            parts = shapely.get_parts(_outline(labels == number))
            kept = [part for part in parts if part.area >= max(smallest, 1)]
            if kept:
                whole = shapely.MultiPolygon(kept).simplify(SMOOTHING, preserve_topology=True)
                valid = shapely.transform(shapely.make_valid(whole), lambda xy: xy * step)
                parts = shapely.get_parts(shapely.get_parts(valid))
                outlines[int(number)] = shapely.MultiPolygon(
                    [part for part in parts if part.geom_type == "Polygon"]
                )
    return outlines


def region_features(
    shapes: Mapping[int, shapely.MultiPolygon], names: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield one GeoJSON feature for each polygon of each class.

    Args:
        shapes: Outlines from `regions`.
        names: Names of the classes, by number.

    Yields:
        GeoJSON features.
    """
    for number, shape in shapes.items():
        for part in shape.geoms:
            yield _feature(part, "annotation", number, names)


def tile_features(
    coords: npt.ArrayLike,
    size: float,
    classes: npt.ArrayLike,
    names: Sequence[str],
    measurements: Mapping[str, npt.ArrayLike] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one GeoJSON feature for each tile.

    Args:
        coords: x and y of the upper left corners at level 0, `[n, 2]`.
        size: Side of a tile at level 0.
        classes: Class numbers of the tiles `[n]`.
        names: Names of the classes, by number.
        measurements: Numbers of the tiles `[n]` by name, such as attention and probabilities.

    Yields:
        GeoJSON features.
    """
    columns = {key: np.asarray(values, float) for key, values in (measurements or {}).items()}
    places = np.asarray(coords)
    for index, ((x, y), number) in enumerate(zip(places, np.asarray(classes), strict=True)):
        square = shapely.box(x, y, x + size, y + size)
        row = {key: float(values[index]) for key, values in columns.items()}
        yield _feature(square, "detection", int(number), names, row)


def write_geojson(path: PathLike, features: Iterable[Mapping[str, Any]]) -> int:
    """Write a FeatureCollection with one feature per line; the file appears when it is complete.

    Args:
        path: File to write.
        features: GeoJSON features.

    Returns:
        The number of features.

    Raises:
        SourceError: The file cannot be written.
    """
    count = 0
    try:
        with atomic_write(path) as part, part.open("w", encoding="utf-8") as file:
            file.write('{"type": "FeatureCollection", "features": [')
            for feature in features:
                text = json.dumps(feature, allow_nan=False, separators=(",", ":"))
                file.write((",\n" if count else "\n") + text)
                count += 1
            file.write("\n]}\n")
    except SourceError:
        raise
    except OSError as error:
        raise SourceError(f"{path}: cannot be written: {error}.") from error
    return count


def _feature(
    shape: Any,
    kind: str,
    number: int,
    names: Sequence[str],
    measurements: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Return a feature as QuPath writes it, with the type of object in the properties."""
    colour = COLOURS[(number - 1) % len(COLOURS)]
    properties: dict[str, Any] = {
        "objectType": kind,
        "classification": {"name": names[number], "color": list(colour)},
    }
    if measurements:
        finite = {key: value for key, value in measurements.items() if math.isfinite(value)}
        properties["measurements"] = finite
    geometry = json.loads(shapely.to_geojson(shape))
    return {"type": "Feature", "geometry": geometry, "properties": properties}


def _outline(mask: npt.NDArray[np.bool_]) -> Any:
    """Return the union of the pixels of a mask, computed from runs along rows."""
    edges = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, first = np.nonzero(edges == 1)
    _, last = np.nonzero(edges == -1)
    return shapely.union_all(shapely.box(first, rows, last, rows + 1))


def _majority(rows: Labels, factor: int) -> Labels:
    """Return the most frequent class of each block of `[r, W]`."""
    if factor == 1:
        return rows.copy()
    height, width = rows.shape
    best = np.zeros((-(-height // factor), -(-width // factor)), rows.dtype)
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

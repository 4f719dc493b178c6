"""GeoJSON in the format of QuPath: regions as annotations, tiles with scores as detections."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import shapely

from tfbig.sources.files import PathLike
from tfbig.sources.writing import atomic_write
from tfbig.system import signals

COLOURS: Final = (
    *((0, 158, 115), (213, 94, 0), (0, 114, 178), (204, 121, 167)),
    *((230, 159, 0), (86, 180, 233), (240, 228, 66), (110, 110, 110)),
)
"""Colours of classes, in turn: the palette for colour-blind readers of Okabe and Ito."""
_NAMESPACE: Final = uuid.UUID("6d1f0b0e-5c58-4c0f-9d0c-6f1c2d0a7b41")
"""Namespace of the ids of features: equal features have equal ids."""


def hex_of(colour: Any) -> str:
    """Format a colour: `(0, 158, 115)` as `'#009e73'`."""
    return "#" + bytes(int(part) for part in colour).hex()


def region_features(
    polygons: Mapping[int, Iterable[shapely.Polygon]], names: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield one GeoJSON feature for each polygon of each class, as of `tfbig.results.outlines.regions`.

    `names` are by class number.
    """
    for number, parts in polygons.items():
        for polygon in parts:
            yield _feature(polygon, "annotation", number, names)


def tile_features(
    coords: npt.ArrayLike,
    size: float | tuple[float, float],
    classes: npt.ArrayLike,
    names: Sequence[str],
    measurements: Mapping[str, npt.ArrayLike] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one GeoJSON feature for each tile.

    `coords` are x and y of the upper left corners at level 0, `[n, 2]`; `size` is the side of a tile at level 0, or
    its height and width. `classes` are class numbers `[n]`, `names` are by class number. `measurements` are numbers
    of the tiles `[n]` by name, such as attention and probabilities.
    """
    columns = {key: np.asarray(values, float) for key, values in (measurements or {}).items()}
    places = np.asarray(coords)
    height, width = size if isinstance(size, tuple) else (size, size)
    for index, ((x, y), number) in enumerate(zip(places, np.asarray(classes), strict=True)):
        square = shapely.box(x, y, x + width, y + height)
        row = {key: float(values[index]) for key, values in columns.items()}
        yield _feature(square, "detection", int(number), names, row)


def instance_features(
    instances: Iterable[tuple[shapely.Geometry, Mapping[str, float]]], name: str
) -> Iterator[dict[str, Any]]:
    """Yield one GeoJSON feature for each instance, a detection, from its outline and measurements.

    `name` is that of their class.
    """
    for polygon, measurements in instances:
        yield _feature(polygon, "detection", 1, ("background", name), measurements)


def write_geojson(
    path: PathLike,
    features: Iterable[Mapping[str, Any]],
    origin: tuple[int, int] = (0, 0),
    counted_from: str | None = None,
) -> int:
    """Write a FeatureCollection with one feature per line, and return their number.

    The file appears when it is complete. Features are in pixels of level 0; the row and column `origin` of level 0
    become 0: `Slide.origin` for QuPath. With `counted_from`, "scanned" or "level-0", the file says what its origin
    is, so that it is read as it is meant.

    Raises:
        SourceError: The file cannot be written.
        Stopped: The process was requested to stop, by a signal.
    """
    count = 0
    said = "" if counted_from is None else f'"origin": "{counted_from}", '
    with atomic_write(path) as part, part.open("w", encoding="utf-8") as file:
        file.write(f'{{"type": "FeatureCollection", {said}"features": [')
        for feature in features:
            signals.check()
            placed = _shifted(feature, origin) if any(origin) else feature
            text = json.dumps(placed, allow_nan=False, separators=(",", ":"))
            file.write((",\n" if count else "\n") + text)
            count += 1
        file.write("\n]}\n")
    return count


def _shifted(feature: Mapping[str, Any], origin: tuple[int, int]) -> dict[str, Any]:
    """Shift the coordinates of a feature, so that they count from another row and column."""
    row, column = origin

    def moved(coordinates: Any) -> Any:
        if isinstance(coordinates[0], list | tuple):
            return [moved(each) for each in coordinates]
        x, y = coordinates
        return [x - column, y - row]

    geometry = feature["geometry"]
    return {**feature, "geometry": {**geometry, "coordinates": moved(geometry["coordinates"])}}


def _feature(
    shape: Any,
    kind: str,
    number: int,
    names: Sequence[str],
    measurements: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Build a feature as QuPath writes it, with an id, and the type of object in the properties."""
    colour = COLOURS[(number - 1) % len(COLOURS)]
    properties: dict[str, Any] = {
        "objectType": kind,
        "classification": {"name": names[number], "color": list(colour)},
    }
    if measurements:
        finite = {key: value for key, value in measurements.items() if math.isfinite(value)}
        properties["measurements"] = finite
    geometry = json.loads(shapely.to_geojson(shape))
    feature = {"type": "Feature", "geometry": geometry, "properties": properties}
    identity = uuid.uuid5(_NAMESPACE, json.dumps(feature, sort_keys=True))
    return {"type": "Feature", "id": str(identity), **feature}

"""Measurements and outlines of instances, in one pass over an image and its labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import shapely
from rasterio import features

from tfbig.results.instances import strip_height
from tfbig.sources import Source

Rows = npt.NDArray[Any]


class Instance(NamedTuple):
    """An instance that is complete.

    Args:
        outline: Outline along the edges of pixels, x and y in pixels.
        measured: Measurements with the names of `skimage.measure.regionprops_table`: `label`, `centroid-0` and
            `centroid-1` (row and column of the mean of its pixels), `area` in pixels, `bbox-0` to `bbox-3` (first row
            and column, row and column after the last), and `intensity_mean-NAME` for each channel.
    """

    outline: shapely.Geometry
    measured: Mapping[str, float]


def measured_instances(
    labels: Source,
    image: Source,
    channel_names: Sequence[str],
    strip_rows: int | None = None,
    ticked: Callable[[int, int], None] = lambda done, count: None,
) -> Iterator[Instance]:
    """Yield every instance as soon as its last row was read.

    Pixels with one label are one instance, whether they touch or not, as long as no strip between them lacks it.

    Args:
        labels: Instances `[H, W, 1]`, integers from 1; 0 is background. Read once, strip by strip.
        image: Image `[H, W, C]` of intensities, read likewise.
        channel_names: Names of its channels.
        strip_rows: Rows of a strip; by default as in `Instances`.
        ticked: Called with the number of strips that are read and the number of all strips.

    Yields:
        Instances, sorted by label within those that end in the same strip.
    """
    open_sums: dict[int, Rows] = {}
    open_shapes: dict[int, list[shapely.Geometry]] = {}
    strip_rows = strip_rows or strip_height(labels.shape[1])
    starts = range(0, labels.shape[0], strip_rows)
    for number, start in enumerate(starts, 1):
        rows = start, min(start + strip_rows, labels.shape[0])
        strip = labels.read(*rows)[..., 0]
        numbers, sums = _sums(strip, image.read(*rows), start)
        shapes = _shapes(strip, start)
        last = rows[1] == labels.shape[0]
        growing = set() if last else set(np.unique(strip[-1]).tolist())
        places = {label: index for index, label in enumerate(numbers.tolist())}
        for label in sorted(places.keys() | open_sums.keys()):
            merged = _merged(
                open_sums.pop(label, None), sums[places[label]] if label in places else None
            )
            parts = open_shapes.pop(label, []) + shapes.get(label, [])
            if label in growing:
                open_sums[label], open_shapes[label] = merged, parts
            else:
                outline = parts[0] if len(parts) == 1 else shapely.union_all(parts)
                yield Instance(outline, _row(label, merged, channel_names))
        ticked(number, len(starts))


def _sums(strip: Rows, image: Rows, start: int) -> tuple[Rows, Rows]:
    """The labels of a strip, and for each: pixels, sums of rows, columns and intensities, then its box."""
    rows, columns = np.nonzero(strip)
    found = strip[rows, columns]
    numbers, places = np.unique(found, return_inverse=True)
    count = len(numbers)
    rows = rows + start
    weights = [np.ones(len(rows)), rows, columns]
    inside = image[rows - start, columns].astype(np.float64)
    weights += [inside[:, channel] for channel in range(image.shape[2])]
    sums = [np.bincount(places, weight, count) for weight in weights]
    box = [
        np.full(count, np.iinfo(np.int64).max),
        np.full(count, np.iinfo(np.int64).max),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
    ]
    for extreme, values, line in (
        (np.minimum, rows, box[0]),
        (np.minimum, columns, box[1]),
        (np.maximum, rows + 1, box[2]),
        (np.maximum, columns + 1, box[3]),
    ):
        extreme.at(line, places, values)
    return numbers, np.stack([*sums, *box], axis=1) if count else np.zeros((0, len(sums) + 4))


def _merged(before: Rows | None, now: Rows | None) -> Rows:
    """Add the sums of an instance in two strips, either of which may lack it."""
    if before is None or now is None:
        only = now if before is None else before
        assert only is not None
        return only
    merged = before + now
    merged[-4:-2] = np.minimum(before[-4:-2], now[-4:-2])
    merged[-2:] = np.maximum(before[-2:], now[-2:])
    return merged


def _shapes(strip: Rows, start: int) -> dict[int, list[shapely.Geometry]]:
    """Outline the parts of each instance in a strip."""
    found: dict[int, list[shapely.Geometry]] = {}
    for shape, label in features.shapes(strip.astype(np.int32), mask=strip > 0, connectivity=4):
        exterior, *holes = shape["coordinates"]
        moved = [[(x, y + start) for x, y in ring] for ring in (exterior, *holes)]
        found.setdefault(int(label), []).append(shapely.Polygon(moved[0], moved[1:]))
    return found


def _row(label: int, sums: Rows, channel_names: Sequence[str]) -> dict[str, float]:
    area, rows, columns = sums[:3]
    row = {
        "label": label,
        "centroid-0": rows / area,
        "centroid-1": columns / area,
        "area": int(area),
    }
    row |= {f"bbox-{n}": int(value) for n, value in enumerate(sums[-4:])}
    means = sums[3:-4] / area
    named = zip(channel_names, means, strict=True)
    return row | {f"intensity_mean-{name}": float(mean) for name, mean in named}

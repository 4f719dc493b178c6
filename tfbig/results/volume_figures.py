"""PNG figures of volumes: three orthogonal planes, with masks over them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tfbig.results.figures import save
from tfbig.results.geojson import COLOURS
from tfbig.sources import Volume
from tfbig.units import ceil_div

MAX_SIDE = 512
"""Most voxels along a side of a drawn plane."""
OPACITY = 0.5
RANGE = (1.0, 99.0)
"""Percentiles of the values of a plane that are drawn black and white."""


def planes(
    path: str | Path,
    volume: Volume,
    masks: Mapping[str, Volume],
    classes: Sequence[str],
    title: str,
) -> None:
    """Draw the plane, row and column through the middle of what is labelled, in each of some masks.

    The first channel of the volume is drawn, with one row of pictures for each mask: classes `[D, H, W, 1]` by
    title, on the grid of the volume.

    Voxels are drawn with the sides that the spacing gives them; if the orientation is known, with the top of the
    patient up, else the front, and with the right side of the patient, or the front, on the left.
    """
    place = middle(masks)
    spacing = volume.spacing or (1.0, 1.0, 1.0)
    gray = [_gray(section(volume, axis, place[axis])) for axis in range(3)]
    figure = Figure(figsize=(10, 3.4 * len(masks) + 0.6), layout="constrained")
    panels = np.atleast_2d(figure.subplots(len(masks), 3, squeeze=False))
    seen: set[int] = set()
    for row, (name, mask) in zip(panels, masks.items(), strict=True):
        for axis, axes in enumerate(row):
            labels = section(mask, axis, place[axis])[..., 0]
            seen |= set(np.unique(labels).astype(int).tolist())
            picture = tint(gray[axis], labels)
            height, width = (
                n * side
                for n, side in zip(
                    np.delete(volume.shape[:3], axis), np.delete(spacing, axis), strict=True
                )
            )
            aspect = (height / len(picture)) / (width / picture.shape[1])
            shown = upright(picture, np.delete([*(volume.orientation or "???")], axis).tolist())
            axes.imshow(shown, aspect=aspect, interpolation="nearest")
            axes.set_title(f"{name}, {('plane', 'row', 'column')[axis]} {place[axis]}", fontsize=9)
            axes.set_axis_off()
    figure.suptitle(title)
    handles = [
        Patch(color=_colour(label), label=classes[label])
        for label in sorted(seen - {0})
        if label < len(classes)
    ]
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 6))
    save(figure, path)


def middle(masks: Mapping[str, Volume]) -> tuple[int, int, int]:
    """The labelled voxel next to the mean of all, of the first mask that has any; else the voxel in the middle.

    Masks are classes `[D, H, W, 1]`; the voxel is its plane, row and column.
    """
    shape = next(iter(masks.values())).shape
    for mask in masks.values():
        count, sums = 0, np.zeros(3)
        for plane, found in labelled_voxels(mask):
            count += len(found)
            sums += [plane * len(found), *found.sum(0)]
        if not count:
            continue
        best, place = np.inf, (0, 0, 0)
        for plane, found in labelled_voxels(mask):
            distances = ((found - sums[1:] / count) ** 2).sum(1) + (plane - sums[0] / count) ** 2
            if len(found) and distances.min() < best:
                best = distances.min()
                row, column = found[distances.argmin()].tolist()
                place = plane, row, column
        return place
    return shape[0] // 2, shape[1] // 2, shape[2] // 2


def labelled_voxels(mask: Volume) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yield the number of each plane, and the rows and columns of its labelled voxels, `[n, 2]`.

    The mask has classes `[D, H, W, 1]`, 0 for no label.
    """
    for plane in range(mask.shape[0]):
        yield plane, np.argwhere(mask.read(plane, plane + 1)[0, ..., 0] > 0)


def upright(picture: npt.NDArray[Any], letters: Sequence[str]) -> npt.NDArray[Any]:
    """Turn a section as radiologists show it, given the directions in which its rows and columns grow."""
    down, across = letters
    picture = picture[::-1] if down in "SA" else picture
    return picture[:, ::-1] if across in "RA" else picture


def section(volume: Volume, axis: int, index: int) -> npt.NDArray[Any]:
    """A plane, row or column of a volume, `[rows, columns, C]`, every k-th voxel if it is large.

    `axis` is the one across the section: 0 for a plane. `index` is its number.
    """
    ranges = [(0, n) for n in volume.shape[:3]]
    ranges[axis] = index, index + 1
    part = volume.read_box(*ranges).squeeze(axis)
    steps = [ceil_div(n, MAX_SIDE) for n in part.shape[:2]]
    return part[:: steps[0], :: steps[1]]


def tint(gray: npt.NDArray[Any], labels: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Colour a gray picture by its classes, `[rows, columns, 3]`, 0 to 1.

    `gray` and `labels` are `[rows, columns]`; label 0 has no colour.
    """
    picture = np.repeat(gray[..., None], 3, axis=2)
    for label in np.unique(labels[labels > 0]).astype(int).tolist():
        where = labels == label
        picture[where] = (1 - OPACITY) * picture[where] + OPACITY * np.array(_colour(label))
    return picture


def _colour(label: int) -> tuple[float, float, float]:
    """The colour of a class, 0 to 1."""
    red, green, blue = COLOURS[(label - 1) % len(COLOURS)]
    return red / 255, green / 255, blue / 255


def _gray(section: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The first channel of a section, from 0 to 1."""
    values = np.nan_to_num(section[..., 0].astype(np.float64))
    low, high = np.percentile(values, RANGE)
    return np.clip((values - low) / max(high - low, 1e-12), 0, 1)

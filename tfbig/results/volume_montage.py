"""Planes of a volume side by side, with masks over them: the zoomable view of a volume in a report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from tfbig.results import slide_viewer
from tfbig.results.slide_viewer import Pixels
from tfbig.results.volume_figures import RANGE, labelled_voxels, upright
from tfbig.sources import Volume
from tfbig.units import ceil_div

PLANES: Final = 48
"""Most planes of a montage."""
PLANE_SIDE: Final = 320
"""Longer side of a plane of a montage, in pixels."""
GAP: Final = 4
"""Pixels between planes."""
_FONTS: Final = range(24, 8, -2)
"""Heights of the numbers of planes, in pixels; the first that fits is used."""
_FILE: Final = ".planes"
"""Ending of the names of the files, because `NAME.png` is the picture of three sections."""


def write_view(
    folder: str | Path,
    name: str,
    volume: Volume,
    masks: Mapping[str, Volume],
    classes: Sequence[str],
    title: str,
) -> None:
    """Write a montage of a volume, and one overlay for each mask, into `folder/views`.

    The first channel of the volume is drawn. Masks are classes `[D, H, W, 1]` by title, on the grid of the volume.

    Planes are evenly spaced from the first to the last plane with a label in any mask, and turned as in
    `volume_figures.planes`. All are drawn with the same grey scale.
    """
    size, turned = _size(volume), (volume.orientation or "???")[1:]
    numbers = evenly_spaced(*labelled(masks), PLANES)
    columns = _columns(len(numbers), size)

    def montage(planes: Iterable[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        return sheet([upright(plane, turned) for plane in planes], columns)

    overlays = [
        slide_viewer.class_overlay(about, montage(_labels(mask, n, size) for n in numbers), classes)
        for about, mask in masks.items()
    ]
    gray = montage(_gray([_plane(volume, n, size) for n in numbers]))
    picture = _numbered(gray, numbers, columns, size)
    mpp = volume.spacing and 1000 * volume.spacing[2] * volume.shape[2] / size[1]
    slide_viewer.write_view(folder, name + _FILE, picture, overlays, title=title, mpp=mpp)


def labelled(masks: Mapping[str, Volume]) -> tuple[int, int]:
    """The first plane with a label in any mask, and the plane after the last; all planes if there is no label.

    Masks are classes `[D, H, W, 1]`, 0 for no label.
    """
    count = next(iter(masks.values())).shape[0]
    found = [n for m in masks.values() for n, voxels in labelled_voxels(m) if len(voxels)]
    return (min(found), max(found) + 1) if found else (0, count)


def evenly_spaced(first: int, stop: int, most: int) -> list[int]:
    """At most `most` numbers from `first` to `stop - 1`, both included if `most` is above 1."""
    numbers = np.linspace(first, stop - 1, min(most, stop - first))
    return np.rint(numbers).astype(int).tolist()


def sheet(planes: Sequence[npt.NDArray[Any]], columns: int) -> npt.NDArray[Any]:
    """Join planes `[h, w]` of equal size in rows of `columns`, with gaps of zeros between them."""
    height, width = planes[0].shape
    rows = ceil_div(len(planes), columns)
    size = rows * (height + GAP) - GAP, columns * (width + GAP) - GAP
    joined = np.zeros(size, planes[0].dtype)
    for place, plane in enumerate(planes):
        top, left = _corner(place, columns, (height, width))
        joined[top : top + height, left : left + width] = plane
    return joined


def _corner(place: int, columns: int, size: tuple[int, int]) -> tuple[int, int]:
    """The row and column of the upper left pixel of a plane in a montage."""
    return place // columns * (size[0] + GAP), place % columns * (size[1] + GAP)


def _size(volume: Volume) -> tuple[int, int]:
    """The rows and columns of a plane in a montage, as its spacing shapes it."""
    spacing = volume.spacing or (1.0, 1.0, 1.0)
    tall, wide = (n * side for n, side in zip(volume.shape[1:3], spacing[1:], strict=True))
    scale = PLANE_SIDE / max(tall, wide)
    return max(round(tall * scale), 1), max(round(wide * scale), 1)


def _columns(count: int, size: tuple[int, int]) -> int:
    """The number of planes in a row that makes a montage about as wide as it is high, or wider."""
    return min(math.ceil(math.sqrt(count * size[0] / size[1])), count)


def _plane(volume: Volume, number: int, size: tuple[int, int]) -> npt.NDArray[np.float32]:
    """The first channel of a plane, resized."""
    plane = np.nan_to_num(volume.read(number, number + 1)[0, ..., 0].astype(np.float32))
    return np.asarray(Image.fromarray(plane).resize(size[::-1], Image.Resampling.BILINEAR))


def _labels(mask: Volume, number: int, size: tuple[int, int]) -> npt.NDArray[Any]:
    """The classes of a plane, resized to those of the nearest voxels."""
    plane = mask.read(number, number + 1)[0, ..., 0]
    rows, columns = (
        ((np.arange(wanted) + 0.5) * given / wanted).astype(int)
        for wanted, given in zip(size, plane.shape, strict=True)
    )
    return plane[np.ix_(rows, columns)]


def _gray(planes: Sequence[npt.NDArray[np.float32]]) -> list[Pixels]:
    """Scale planes to pixels, with the same scale for all."""
    low, high = np.percentile(np.stack(planes), RANGE)
    shares = (np.clip((plane - low) / max(high - low, 1e-12), 0, 1) for plane in planes)
    return [np.rint(255 * share).astype(np.uint8) for share in shares]


def _numbered(
    picture: Pixels, numbers: Sequence[int], columns: int, size: tuple[int, int]
) -> npt.NDArray[np.uint8]:
    """Draw the number of each plane of a montage `[h, w, 1]` into its corner, if it fits into the plane."""
    image = Image.fromarray(picture)
    draw, height = ImageDraw.Draw(image), _font(numbers, size)
    font = ImageFont.load_default(height or _FONTS[0])
    for place, number in enumerate(numbers if height else ()):
        top, left = _corner(place, columns, size)
        width = math.ceil(font.getlength(str(number)))
        draw.rectangle((left, top, left + width + 5, top + height + 5), 0)
        draw.text((left + 3, top + 2), str(number), 255, font)
    return np.asarray(image)[..., None]


def _font(numbers: Sequence[int], size: tuple[int, int]) -> int:
    """The height of the largest font whose numbers all fit into a plane, 0 if there is none."""
    for height in _FONTS:
        font = ImageFont.load_default(height)
        widest = max(math.ceil(font.getlength(str(number))) for number in numbers)
        if height + 6 <= size[0] and widest + 6 <= size[1]:
            return height
    return 0

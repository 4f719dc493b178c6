"""Thumbnails of slides with overlays: the files behind the zoomable view of a report.

The folder `views` contains, for each slide, `NAME.jpg`, one PNG per overlay, and `NAME.json`, written last, which
describes them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from PIL import Image

from tfbig.errors import SourceError
from tfbig.results.geojson import COLOURS, hex_of
from tfbig.sources.slides.slide import Slide
from tfbig.sources.writing import atomic_write
from tfbig.system.output_folder import file_in
from tfbig.units import ceil_div

FOLDER: Final = "views"
MAX_SIDE: Final = 4096
"""Maximum rows and columns of an image: some megabytes per slide."""
SMOOTH_SIDE: Final = 1024
"""Overlays with fewer rows and columns are enlarged, so that their pixels stay square when zoomed."""

LOWEST_OPACITY: Final = 0.3
"""Opacity of the smallest value."""
ATTENTION_TICKS: Final = (0.125, 0.5, 1, 2, 8)
"""Attention, relative to the mean of a slide, in the legend; colours end with the first and the last."""
_HEAT: Final = colormaps["YlOrRd"]
"""A sequential colour map unlike the stains: high values stand out on haematoxylin and eosin."""

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Overlay:
    """Colour overlay of a slide.

    Attributes:
        name: Title, such as "attention".
        image: RGBA image `[h, w, 4]`, uint8; its upper left pixel is on that of the slide.
        legend: Pairs of a colour (`#009e73`) and its meaning.
        share: Width as a share of the width of the slide: above 1 if tiles extend beyond it.
        opacity: Initial opacity, 0 to 1.
        height: Height as a share of the height of the slide; None if pixels are square on the slide.
    """

    name: str
    image: Pixels
    legend: tuple[tuple[str, str], ...] = ()
    share: float = 1.0
    opacity: float = 0.5
    height: float | None = None


def class_overlay(
    name: str,
    labels: npt.NDArray[Any],
    names: Sequence[str],
    share: float = 1.0,
    height: float | None = None,
    opacity: float = 0.5,
    colours: Sequence[tuple[int, int, int]] = COLOURS,
) -> Overlay:
    """Colour the classes `[h, w]` of an overlay; 0, the background, is transparent.

    `share` and `height` are those of the width and height of the slide; without `height`, pixels are square on the
    slide. `names` are by class number; `colours` are those of the classes from 1 on, in turn. `opacity`, 0 to 1, is
    the initial one.
    """
    table = np.zeros((max(len(names), int(labels.max(initial=0)) + 1), 4), np.uint8)
    foreground = range(1, len(names))
    for number in foreground:
        table[number] = (*colours[(number - 1) % len(colours)], 255)
    legend = tuple((hex_of(table[number, :3]), names[number]) for number in foreground)
    return Overlay(name, table[labels.astype(np.int64)], legend, share, opacity, height)


def attention_overlay(
    painted: npt.NDArray[Any], num_tiles: int, share: float = 1.0, height: float | None = None
) -> Overlay:
    """Colour attention relative to the mean of all tiles, with the same colours for all slides.

    The attention `[h, w]` adds up to 1 over the tiles, and is NaN where there is no tile. `share` and `height` are
    as in `class_overlay`.

    Colours are logarithmic, from pale and translucent to dark red and opaque.
    """
    finite = np.isfinite(painted)
    least, most = (math.log2(ATTENTION_TICKS[place]) for place in (0, -1))
    times = np.where(finite, painted, 0) * num_tiles
    places = (np.log2(np.maximum(times, ATTENTION_TICKS[0])) - least) / (most - least)
    image = np.rint(_HEAT(np.clip(places, 0, 1)) * 255).astype(np.uint8)
    opacity = LOWEST_OPACITY + (1 - LOWEST_OPACITY) * np.clip(places, 0, 1)
    image[..., 3] = np.where(finite, np.rint(255 * opacity), 0)
    ticks = (np.log2(ATTENTION_TICKS) - least) / (most - least)
    colours = map(hex_of, np.rint(np.array(_HEAT(ticks))[:, :3] * 255))
    texts = [f"{tick:g}" for tick in ATTENTION_TICKS]
    texts[0], texts[-1] = f"{texts[0]} or less", f"{texts[-1]} or more"
    legend = tuple(zip(colours, texts, strict=True))
    return Overlay("attention, times the mean", image, legend, share, 0.8, height)


def write_view(
    folder: str | Path,
    name: str,
    image: Pixels,
    overlays: Sequence[Overlay] = (),
    *,
    title: str | None = None,
    mpp: float | None = None,
) -> None:
    """Write a slide and its overlays into `folder/views`, in files called `name`.

    `image` is a thumbnail `[h, w, 1 or 3]`, uint8, at most `MAX_SIDE` on a side. Overlays that extend beyond the
    slide are cut off. `mpp` is the width of a pixel of the thumbnail in micrometres, for the scale bar.
    """
    place = Path(folder) / FOLDER
    place.mkdir(parents=True, exist_ok=True)
    rgb = np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image[..., :3]
    _save(file_in(place, f"{name}.jpg"), rgb)
    layers = []
    for number, overlay in enumerate(overlays):
        file = f"{name}.{number}.png"
        pixels, share = _inside(_enlarged(_square(overlay, rgb.shape)), overlay.share, rgb.shape)
        _save(place / file, pixels)
        facts = {"name": overlay.name, "legend": overlay.legend, "opacity": overlay.opacity}
        layers.append(facts | {"share": share, "file": file})
    view = {"title": title or name, "file": f"{name}.jpg", "mpp": mpp, "overlays": layers}
    with atomic_write(file_in(place, f"{name}.json")) as part:
        part.write_text(json.dumps(view, indent=2) + "\n", encoding="utf-8")


def write_slide_view(
    folder: str | Path, name: str, slide: Slide, overlays: Sequence[Overlay] = (), *, title: str
) -> None:
    """Write the thumbnail of a slide and overlays into `folder/views`, in files called `name`."""
    image = slide.thumbnail(MAX_SIDE)
    mpp = slide.mpp and slide.mpp[1] * slide.shape[1] / image.shape[1]
    write_view(folder, name, image, overlays, title=title, mpp=mpp)


@dataclass(frozen=True)
class Layer:
    """Overlay of a view, in a file.

    Attributes:
        name: Title.
        file: Path of the image.
        legend: Pairs of a colour (`#009e73`) and its meaning.
        share: Width as a share of the width of the slide.
        opacity: Initial opacity, 0 to 1.
    """

    name: str
    file: Path
    legend: tuple[tuple[str, str], ...]
    share: float
    opacity: float


@dataclass(frozen=True)
class View:
    """A slide with overlays, in files.

    Attributes:
        title: Title of the slide.
        file: Path of its thumbnail.
        mpp: Width of a pixel of the thumbnail in micrometres, or None.
        overlays: The overlays, in their order.
    """

    title: str
    file: Path
    mpp: float | None
    overlays: tuple[Layer, ...]


def read_views(folder: str | Path) -> list[View]:
    """Read what `write_view` wrote, by the names of the files.

    Raises:
        SourceError: A file is damaged, or names files outside the folder `views`.
    """
    return [_read_view(path) for path in sorted((Path(folder) / FOLDER).glob("*.json"))]


def _read_view(path: Path) -> View:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        mpp = facts["mpp"]
        return View(
            title=str(facts["title"]),
            file=_file_beside(path, facts["file"]),
            mpp=None if mpp is None else float(mpp),
            overlays=tuple(_layer(path, layer) for layer in facts["overlays"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SourceError(
            f"{path}: is damaged ({type(error).__name__}: {error}). Remove it, and run the command again."
        ) from error


def _layer(path: Path, facts: Mapping[str, Any]) -> Layer:
    legend = tuple((str(colour), str(text)) for colour, text in facts["legend"])
    for colour, _ in legend:
        if not re.fullmatch("#[0-9a-f]{6}", colour):
            raise ValueError(f"colour {colour!r}")
    share, opacity = float(facts["share"]), float(facts["opacity"])
    return Layer(str(facts["name"]), _file_beside(path, facts["file"]), legend, share, opacity)


def _file_beside(path: Path, name: Any) -> Path:
    """The path of a file in the same folder."""
    if not isinstance(name, str) or Path(name).name != name:
        raise ValueError(f"file {name!r} is not in the folder {path.parent.name}")
    return path.with_name(name)


def pyramid(image: Pixels, smallest: int) -> Iterator[Pixels]:
    """Yield an image `[h, w, 3 or 4]`, the image at half its size, and so on, until no side is above `smallest`.

    Sides are rounded up. With an opacity channel, colours are averages weighted by opacity.

    Yields:
        The images, the largest first.
    """
    yield image
    while max(image.shape[:2]) > smallest:
        image = _half(image)
        yield image


def _half(image: Pixels) -> Pixels:
    rows, columns, channels = image.shape
    even = np.pad(image, ((0, rows % 2), (0, columns % 2), (0, 0)), mode="edge")
    blocks = even.reshape(ceil_div(rows, 2), 2, ceil_div(columns, 2), 2, channels).astype(np.uint32)
    if channels == 3:
        return ((blocks.sum((1, 3)) + 2) // 4).astype(np.uint8)
    opacity = blocks[..., 3:]
    total = opacity.sum((1, 3))
    colours = (blocks[..., :3] * opacity).sum((1, 3)) // np.maximum(total, 1)
    return np.concatenate([colours, (total + 2) // 4], axis=-1).astype(np.uint8)


def _square(overlay: Overlay, shape: tuple[int, ...]) -> Pixels:
    """Repeat or leave out rows of an overlay so that its pixels are square on a slide of `shape`."""
    if overlay.height is None:
        return overlay.image
    num_rows, num_columns = overlay.image.shape[:2]
    side = overlay.share * shape[1] / num_columns  # side of a pixel of the overlay, in shown pixels
    rows = max(round(overlay.height * shape[0] / side), 1)
    places = ((np.arange(rows) + 0.5) * num_rows / rows).astype(int)
    return overlay.image if rows == num_rows else overlay.image[places]


def _enlarged(image: Pixels) -> Pixels:
    factor = max(SMOOTH_SIDE // max(image.shape[:2]), 1)
    return image.repeat(factor, axis=0).repeat(factor, axis=1)


def _inside(pixels: Pixels, share: float, shape: tuple[int, ...]) -> tuple[Pixels, float]:
    """The part of an overlay that is over an image of `shape`, and its share of the width, to half a pixel."""
    across = pixels.shape[1] / share  # columns over the whole image
    rows = max(round(across * shape[0] / shape[1]), 1)
    cut = pixels[:rows, : max(round(across), 1)]
    return cut, share * cut.shape[1] / pixels.shape[1]


def _save(path: Path, image: Pixels) -> None:
    with atomic_write(path) as part:
        Image.fromarray(image).save(part, format=_FORMATS[path.suffix], **_OPTIONS[path.suffix])


_FORMATS: Final = {".jpg": "JPEG", ".png": "PNG"}
_OPTIONS: Final[dict[str, dict[str, Any]]] = {".jpg": {"quality": 85}, ".png": {"optimize": True}}

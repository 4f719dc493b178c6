"""Pictures of slides, and what was found laid over them: the files behind the zoomable view of a report.

A folder `views` holds, for each slide, `NAME.jpg`, one PNG an overlay, and `NAME.json`, written last, which says what
they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from PIL import Image

from tfbig.results.geojson import COLOURS, hex_of
from tfbig.sources.writing import beside

FOLDER: Final = "views"
MAX_SIDE: Final = 4096
"""Most rows and columns of a picture: some megabytes a slide."""
SMOOTH_SIDE: Final = 1024
"""Overlays of fewer rows and columns are enlarged, so that their pixels stay squares when they are zoomed."""

CLEAREST: Final = 0.3
"""Opacity of the smallest number."""
TINY: Final = 1e-30

Picture = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Overlay:
    """Colours over a slide.

    Attributes:
        name: what they show.
        picture: red, green, blue, opacity, uint8 `[h, w, 4]`; its first pixel lies on the first of the slide.
        legend: colours (`#009e73`) and what they mean.
        share: columns of the picture, as a share of those of the slide: above 1 where tiles reach beyond it.
        opacity: at first, 0 to 1.
    """

    name: str
    picture: Picture
    legend: tuple[tuple[str, str], ...] = ()
    share: float = 1.0
    opacity: float = 0.5


def of_classes(
    name: str,
    labels: npt.NDArray[Any],
    names: Sequence[str],
    share: float = 1.0,
    opacity: float = 0.5,
) -> Overlay:
    """Classes `[h, w]` in colours; 0, the background, has none."""
    colours = np.zeros((max(len(names), int(labels.max(initial=0)) + 1), 4), np.uint8)
    shown = range(1, len(names))
    for number in shown:
        colours[number] = (*COLOURS[(number - 1) % len(COLOURS)], 255)
    legend = tuple((hex_of(colours[number, :3]), names[number]) for number in shown)
    return Overlay(name, colours[labels.astype(np.int64)], legend, share, opacity)


def of_values(name: str, values: npt.NDArray[Any], share: float = 1.0) -> Overlay:
    """Numbers `[h, w]` from dark and clear to bright and opaque; the largest hundredth is alike. NaN has no colour."""
    known = np.isfinite(values)
    most = float(np.percentile(values[known], 99)) if known.any() else 0.0
    shares = np.clip(np.where(known, values, 0) / max(most, TINY), 0, 1)
    picture = np.rint(colormaps["inferno"](shares) * 255).astype(np.uint8)
    picture[..., 3] = np.where(known, np.rint(255 * (CLEAREST + (1 - CLEAREST) * shares)), 0)
    ends = np.rint(np.array(colormaps["inferno"]([0.0, 1.0]))[:, :3] * 255)
    legend = tuple(zip(map(hex_of, ends), ("0", f"{most:.3g} or more"), strict=True))
    return Overlay(name, picture, legend, share, opacity=0.7)


def write_view(
    folder: str | Path,
    name: str,
    picture: Picture,
    overlays: Sequence[Overlay] = (),
    *,
    title: str | None = None,
    mpp: float | None = None,
) -> None:
    """Writes a slide and its overlays into `folder/views`.

    Args:
        folder: of a run.
        name: of the files.
        picture: of the slide, `[h, w, 1 or 3]`, uint8, at most `MAX_SIDE` on a side.
        overlays: what lies over it.
        title: of the slide, for people; by default `name`.
        mpp: micrometres that a pixel of the picture is wide, for a scale bar.
    """
    place = Path(folder) / FOLDER
    place.mkdir(parents=True, exist_ok=True)
    rgb = np.repeat(picture, 3, axis=2) if picture.shape[2] == 1 else picture[..., :3]
    _save(place / f"{name}.jpg", rgb)
    known = []
    for number, overlay in enumerate(overlays):
        file = f"{name}.{number}.png"
        _save(place / file, _enlarged(overlay.picture))
        facts = {key: getattr(overlay, key) for key in ("name", "legend", "share", "opacity")}
        known.append(facts | {"file": file})
    view = {"title": title or name, "file": f"{name}.jpg", "mpp": mpp, "overlays": known}
    with beside(place / f"{name}.json") as part:
        part.write_text(json.dumps(view, indent=2) + "\n", encoding="utf-8")


def read_views(folder: str | Path) -> list[dict[str, Any]]:
    """What `write_view` wrote, by name: `title`, `file`, `mpp`, `overlays`; file names become paths."""
    found = []
    for path in sorted((Path(folder) / FOLDER).glob("*.json")):
        facts = json.loads(path.read_text(encoding="utf-8"))
        for layer in (facts, *facts["overlays"]):
            layer["file"] = path.parent / layer["file"]
        found.append(facts)
    return found


def pyramid(picture: Picture, smallest: int) -> Iterator[Picture]:
    """A picture `[h, w, 3 or 4]`, its half, and so on, until no side is above `smallest`.

    Sides are rounded up. Where there is opacity, colours are averages by it.
    """
    yield picture
    while max(picture.shape[:2]) > smallest:
        picture = _half(picture)
        yield picture


def _half(picture: Picture) -> Picture:
    rows, columns, channels = picture.shape
    even = np.pad(picture, ((0, rows % 2), (0, columns % 2), (0, 0)), mode="edge")
    blocks = even.reshape(-(-rows // 2), 2, -(-columns // 2), 2, channels).astype(np.uint32)
    if channels == 3:
        return ((blocks.sum((1, 3)) + 2) // 4).astype(np.uint8)
    opacity = blocks[..., 3:]
    total = opacity.sum((1, 3))
    colours = (blocks[..., :3] * opacity).sum((1, 3)) // np.maximum(total, 1)
    return np.concatenate([colours, (total + 2) // 4], axis=-1).astype(np.uint8)


def _enlarged(picture: Picture) -> Picture:
    factor = max(SMOOTH_SIDE // max(picture.shape[:2]), 1)
    return picture.repeat(factor, axis=0).repeat(factor, axis=1)


def _save(path: Path, picture: Picture) -> None:
    with beside(path) as part:
        Image.fromarray(picture).save(part, format=_FORMATS[path.suffix], **_OPTIONS[path.suffix])


_FORMATS: Final = {".jpg": "JPEG", ".png": "PNG"}
_OPTIONS: Final[dict[str, dict[str, Any]]] = {".jpg": {"quality": 85}, ".png": {"optimize": True}}

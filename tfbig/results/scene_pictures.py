"""Pictures of satellite scenes and of their classes or values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tfbig.results import figures
from tfbig.results.geojson import COLOURS
from tfbig.results.slide_viewer import Overlay, hex_of
from tfbig.sources.scenes.raster import RasterSource

SIDE: Final = 1600
"""Most rows and columns of a picture."""
_RED_GREEN_BLUE: Final = (("red", "green", "blue"), ("b04", "b03", "b02"), ("b4", "b3", "b2"))
"""Names of the bands of a natural picture."""
_NUMBERED: Final = re.compile(r"^(?:.*[^a-z0-9])?(b[0-9]+)(?:_[0-9]+m)?$")
"""Names that end with the number of a band, and maybe the size of its pixels."""
_SHADES: Final = colormaps["viridis"]


def preview(scene: RasterSource, max_side: int = SIDE) -> npt.NDArray[np.uint8]:
    """Draw a small picture of a scene: red, green and blue, else its first three bands or its first.

    It is `[rows, columns, 3]`, uint8, with at most `max_side` rows and columns.

    Red, green and blue are known by their names, such as "red", "B04" or "T32UNC_20230615_B04", or are marked in the
    file as such. GDAL marks the first three of several bands of uint8 unless it is told otherwise, so names go first.
    Each band is stretched from its 2nd to its 98th percentile; where there is no measurement it is white.
    """
    pixels, known = scene.reduced(max_side)
    out = np.full((*known.shape, 3), 255, np.uint8)
    if not known.any():
        return out
    for place, band in enumerate(_shown_bands(scene)):
        samples = pixels[..., band].astype(np.float64)
        low, high = np.nanpercentile(samples[known & np.isfinite(samples)], (2, 98))
        stretched = np.clip((samples - low) / max(high - low, 1e-12), 0, 1) * 255
        out[known, place] = np.nan_to_num(stretched[known]).astype(np.uint8)
    return out


def class_colours(names: Sequence[str]) -> tuple[tuple[int, int, int], ...]:
    """The colour of each class in pictures, red, green and blue; a first class "background" is white."""
    first = int(bool(names) and names[0] == "background")
    turns = (COLOURS[number % len(COLOURS)] for number in range(len(names) - first))
    return (*((255, 255, 255),) * first, *turns)


def class_layer(
    labels: npt.NDArray[Any], known: npt.NDArray[np.bool_], names: Sequence[str], name: str
) -> Overlay:
    """Colour the classes `[h, w]` of an overlay; a first class "background" is transparent.

    `known` is true where there is a class; `names` are by class number, `name` is the title.
    """
    first = int(bool(names) and names[0] == "background")
    colours = np.array(COLOURS, np.uint8)
    image = np.zeros((*labels.shape, 4), np.uint8)
    shown = known & (labels >= first)
    image[shown, :3] = colours[(labels[shown].astype(np.int64) - first) % len(colours)]
    image[shown, 3] = 255
    found = [n for n in np.unique(labels[shown]).tolist() if n < len(names)][:20]
    legend = tuple((hex_of(colours[(int(n) - first) % len(colours)]), names[int(n)]) for n in found)
    return Overlay(name, image, legend, 1.0, 0.5)


def value_layer(
    values: npt.NDArray[Any], known: npt.NDArray[np.bool_], limits: tuple[float, float], name: str
) -> Overlay:
    """Colour the values `[h, w]` of an overlay, from dark blue to yellow.

    `known` is true where there is a value; `limits` are the values of the first and the last colour, `name` is the
    title.
    """
    low, high = limits
    shares = np.clip((np.where(known, values, low) - low) / max(high - low, 1e-12), 0, 1)
    image = (_SHADES(shares) * 255).astype(np.uint8)
    image[..., 3] = np.where(known, 255, 0)
    legend = tuple(
        (
            hex_of((np.array(_SHADES(share)[:3]) * 255).astype(np.uint8)),
            f"{low + share * (high - low):.4g}",
        )
        for share in (0.0, 0.5, 1.0)
    )
    return Overlay(name, image, legend, 1.0, 1.0)


def limits_of(values: npt.NDArray[Any], known: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """The 2nd and 98th percentile of values that are known; 0 and 1 if none is."""
    if not known.any():
        return 0.0, 1.0
    low, high = np.percentile(values[known], (2, 98))
    return float(low), float(high)


def draw(
    path: str | Path, picture: npt.NDArray[np.uint8], layers: Sequence[Overlay], title: str
) -> None:
    """Draw a scene `[h, w, 3]`, and beside it each of its layers, of the same size, over it."""
    rows, columns = picture.shape[:2]
    wide, count = columns > 1.3 * rows, 1 + len(layers)
    tall = min(max(rows / columns, 0.2), 5.0)  # limited, so that a narrow strip stays visible
    width, height = (9, 9 * tall * count) if wide else (5 * count, 5 * tall)
    figure = Figure(figsize=(width, height + 0.6), layout="constrained")
    places = np.ravel(figure.subplots(*((count, 1) if wide else (1, count))))
    figure.suptitle(title, fontsize=11)
    places[0].imshow(picture)
    for axes, layer in zip(places[1:], layers, strict=True):
        axes.imshow(_blended(picture, layer))
        axes.set_title(layer.name, fontsize=10)
        handles = [Patch(color=colour, label=text) for colour, text in layer.legend]
        if handles:
            below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.01)}
            axes.legend(handles=handles, ncols=min(len(handles), 4), fontsize=7, **below)
    for axes in places:
        axes.set_axis_off()
    figures.save(figure, path)


def _blended(picture: npt.NDArray[np.uint8], layer: Overlay) -> npt.NDArray[np.uint8]:
    """A picture with a layer over it."""
    share = layer.image[..., 3:].astype(np.float32) / 255 * layer.opacity
    gray = picture.mean(-1, keepdims=True)  # so that only classes have a colour
    mixed = (1 - share) * gray + share * layer.image[..., :3]
    return mixed.astype(np.uint8)


def _shown_bands(scene: RasterSource) -> tuple[int, int, int]:
    """The bands that are shown as red, green and blue."""
    names = [_NUMBERED.sub(r"\1", name.lower()) for name in scene.bands.names]
    for wanted in _RED_GREEN_BLUE:
        if all(name in names for name in wanted):
            first, second, third = (names.index(name) for name in wanted)
            return first, second, third
    if scene.bands.shown:
        first, second, third = scene.bands.shown
        return first, second, third
    return (0, 1, 2) if scene.shape[2] >= 3 else (0, 0, 0)

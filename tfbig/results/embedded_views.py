"""Slides with overlays as a page embeds them: images cut into tiles at several sizes, within a number of bytes."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from tfbig.errors import SourceError
from tfbig.results import slide_viewer
from tfbig.results.slide_viewer import Pixels, View

TILE: Final = 512
VIEW_BYTES: Final = 700_000
"""Largest size of a view in the page; eight with the scripts take at most 6 MB."""
TOTAL_BYTES: Final = 20_000_000
"""Largest size of all views."""
_OVERLAYS: Final = 0.25
"""Share of the bytes of a view that its overlays take at most."""
_FORMATS: Final = ["JPEG", "PNG"]


def embed(views: Sequence[View]) -> list[dict[str, Any]]:
    """Prepare views for the script of the page.

    Each has `title`, `width_um` (of the slide, or None), `image` and `overlays`. An image has `width`, `height`,
    `tile` (side of a tile) and `levels` of rows of tiles as data URLs, the smallest first.

    Raises:
        SourceError: An image is damaged or too large.
    """
    most = min(VIEW_BYTES, TOTAL_BYTES // max(len(views), 1))
    return [_embedded(view, most) for view in views]


def _embedded(view: View, most: int) -> dict[str, Any]:
    image = _opened(view.file, "RGB")
    each = int(_OVERLAYS * most / max(len(view.overlays), 1))
    overlays = [
        {
            **{name: getattr(overlay, name) for name in ("name", "legend", "share", "opacity")},
            "image": _tiled(_opened(overlay.file, "RGBA"), "PNG", each),
        }
        for overlay in view.overlays
    ]
    return {
        "title": view.title,
        "width_um": None if view.mpp is None else view.mpp * image.width,
        "image": _tiled(image, "JPEG", int((1 - _OVERLAYS) * most)),
        "overlays": overlays,
    }


def _opened(path: Path, mode: str) -> Image.Image:
    try:
        with Image.open(path, formats=_FORMATS) as file:
            if max(file.size) > 2 * slide_viewer.MAX_SIDE:
                raise ValueError(f"{file.height} x {file.width} pixels")
            return file.convert(mode)
    except Exception as error:  # each format raises its own exceptions
        raise SourceError(
            f"{path}: cannot be shown in a report ({error}); expected a JPEG or PNG of at most "
            f"{2 * slide_viewer.MAX_SIDE} pixels. Remove it, or write it again."
        ) from error


def _tiled(image: Image.Image, form: str, most: int) -> dict[str, Any]:
    """Cut an image into tiles, made smaller until these have at most `most` bytes."""
    while True:
        levels = [_tiles(level, form) for level in slide_viewer.pyramid(np.asarray(image), TILE)]
        size = sum(len(url) for level in levels for row in level for url in row)
        if size <= most or max(image.size) <= TILE:
            break
        factor = 0.95 * math.sqrt(most / size)
        image = image.resize(
            (max(round(image.width * factor), 1), max(round(image.height * factor), 1)),
            Image.Resampling.BOX,
        )
    width, height = image.size
    return {"width": width, "height": height, "tile": TILE, "levels": levels[::-1]}


def _tiles(level: Pixels, form: str) -> list[list[str]]:
    """The tiles of a level, as rows of data URLs."""
    return [
        [
            _data_url(level[row : row + TILE, column : column + TILE], form)
            for column in range(0, level.shape[1], TILE)
        ]
        for row in range(0, level.shape[0], TILE)
    ]


def _data_url(pixels: Pixels, form: str) -> str:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, form, **({"quality": 85} if form == "JPEG" else {}))
    return f"data:image/{form.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"

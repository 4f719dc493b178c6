"""Slides of which a part was scanned, as OpenSlide returns those of MRXS and SCN files, without such a file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tfbig.sources.slides import openslide

SIZE = 640, 800
"""Rows and columns of level 0."""
ORIGIN = 50, 100
"""Row and column of the corner of the scanned area."""
TISSUE = (150, 350), (300, 500)
"""Rows and columns of level 0 with tissue; the rest is white."""


class ScannedSlide:
    """A slide of white glass with a rectangle of tissue, with the properties of OpenSlide."""

    level_dimensions = (SIZE[::-1],)
    level_downsamples = (1.0,)

    def __init__(self, name: str) -> None:
        self.properties = {
            "openslide.vendor": "leica",
            "openslide.mpp-x": "0.5",
            "openslide.mpp-y": "0.5",
            "openslide.objective-power": "20",
            "openslide.bounds-x": str(ORIGIN[1]),
            "openslide.bounds-y": str(ORIGIN[0]),
            "openslide.bounds-width": "650",
            "openslide.bounds-height": "500",
        }

    @staticmethod
    def detect_format(name: str) -> str:
        return "leica"

    def set_cache(self, cache: object) -> None:
        pass

    def read_region(
        self, location: tuple[int, int], level: int, size: tuple[int, int]
    ) -> np.ndarray:
        rows, columns = np.ogrid[: size[1], : size[0]]
        rows, columns = rows + location[1], columns + location[0]
        (top, bottom), (left, right) = TISSUE
        inside = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
        colours = np.where(inside[..., None], (130, 70, 160, 255), (255, 255, 255, 255))
        return colours.astype(np.uint8)


def write_scanned(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let OpenSlide read every slide as a scanned one, and write a file that it is asked for.

    Args:
        path: The file, `*.scn`.
        monkeypatch: Fixture of the test.
    """
    fake = SimpleNamespace(
        missing="",
        OpenSlide=ScannedSlide,
        OpenSlideCache=lambda size: None,
        OpenSlideError=OSError,
    )
    monkeypatch.setattr(openslide, "openslide", fake)
    monkeypatch.setattr(openslide, "_shared_cache", [])
    monkeypatch.setattr(openslide.trial, "check", lambda kind, path: None)
    path.write_bytes(b"fake")
    return path

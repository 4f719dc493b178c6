"""Shapes drawn into arrays, from several threads at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, Final

import numpy.typing as npt

from tfbig.sources.files import Package

features = Package("rasterio.features")
_DRAWING: Final = threading.Lock()
"""Held while shapes are drawn: rasterio hides a warning meanwhile, in a way that several threads undo."""


def draw(shapes: Iterable[tuple[Any, float]], out: npt.NDArray[Any], transform: Any) -> None:
    """Write the value of each shape into the pixels of `out` whose centre is in it; later shapes are over earlier ones.

    `out`, `[H, W]`, is changed. `transform` is affine, from columns and rows to the coordinates of the shapes.
    """
    with _DRAWING:
        features.rasterize(shapes, out=out, transform=transform)

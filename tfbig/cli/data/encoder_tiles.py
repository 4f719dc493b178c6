"""Tiles as an encoder of pathology reads them: resized and cut as the authors of its weights do."""

from __future__ import annotations

from tfbig.models.pathology_encoders import PATHOLOGY_ENCODERS
from tfbig.sources import Bag, Resized


def prepared(tiles: Bag, encoder: str) -> Bag:
    """Resize and cut tiles as an encoder of pathology expects them; other encoders take them as they are.

    `tiles` are `[n, H, W, 3]` of uint8.
    """
    entry = PATHOLOGY_ENCODERS.get(encoder)
    if entry is None:
        return tiles
    how = entry.preprocessing
    shorter = None if how.stretched else entry.tile
    return Resized(tiles, (entry.size, entry.size), how.interpolation, shorter)


def size_of(encoder: str) -> int | None:
    """The rows and columns of the tiles of an encoder, or None if it accepts any."""
    entry = PATHOLOGY_ENCODERS.get(encoder)
    return None if entry is None else entry.size


def default_tiles(encoder: str, size: int, mpp: float) -> tuple[int, float]:
    """The rows and columns of a tile, and its micrometres per pixel, of an encoder of pathology; else those given."""
    entry = PATHOLOGY_ENCODERS.get(encoder)
    return (size, mpp) if entry is None else (entry.tile, entry.mpp)

"""Tiles of a slide on a grid: those that hold tissue, and those that are sharp and without ink."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from tfbig.errors import SourceError
from tfbig.geometry.patch_grid import PatchGrid
from tfbig.sources import Coords, Slide
from tfbig.tissue.masks import Tissue, gray, in_grey_range


def tile(
    slide: Slide,
    size: int = 256,
    *,
    step: float = 1.0,
    overlap: int = 0,
    tissue: Tissue | None = None,
    smallest_share: float = 0.6,
    keep: Callable[[npt.NDArray[Any]], npt.NDArray[np.bool_]] | None = None,
    at_once: int = 64,
    ticked: Callable[[int, int], object] | None = None,
) -> Coords:
    """Tiles of a slide that hold tissue.

    They lie on a regular grid; the last ones of a row or column end where the slide does.

    Args:
        slide: the slide.
        size: rows and columns of a tile.
        step: pixels of level 0 in one of a tile: `slide.step(mpp=0.5)`.
        overlap: of neighbours, in pixels of a tile.
        tissue: where it is; None for everywhere.
        smallest_share: of a tile that must be tissue.
        keep: from tiles `[k, size, size, C]` to which of them stay, `[k]`; for this they are read.
        at_once: tiles that `keep` sees together.
        ticked: called with how many tiles `keep` has seen, and of how many.

    Raises:
        ValueError: `overlap` is not below `size`, or the slide is smaller than a tile.
        SourceError: no tile holds so much tissue.
    """
    if not 0 <= overlap < size:
        raise ValueError(f"overlap={overlap} of tiles of {size}; expected 0 or more, below {size}.")
    image = slide.scaled(step)
    rows, columns = image.shape[:2]
    grid = PatchGrid((rows, columns), (size, size), (size - overlap,) * 2)
    corners = grid.corners(np.arange(grid.count))
    steps = [n / m for n, m in zip(slide.shape, (rows, columns), strict=False)]
    name = slide.title
    coords = Coords(name, np.rint(corners * steps).astype(np.int64)[:, ::-1], size, step, overlap)
    if tissue is not None:
        shares = tissue.shares(coords.coords, coords.size * coords.step)
        coords = _only(coords, shares >= smallest_share, slide, f"{smallest_share:.0%} tissue")
    if keep is not None:
        tiles, parts = coords.tiles(slide), []
        count = tiles.shape[0]
        for start in range(0, count, at_once):
            stop = min(start + at_once, count)
            parts.append(keep(tiles.read(start, stop)))
            if ticked is not None:
                ticked(stop, count)
        coords = _only(coords, np.concatenate(parts), slide, "the quality asked for")
    return coords


def grey_share(tiles: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Of tiles `[k, H, W, C]`, uint8, how many pixels have a grey value above 3 and below 230, `[k]`."""
    return np.array([in_grey_range(each).mean() for each in tiles])


def sharpness(tiles: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The variance of the Laplacian of the grey values of tiles `[k, H, W, C]`, uint8, `[k]`: low out of focus."""
    return np.array([ndimage.laplace(gray(each)).var() for each in tiles])


def pen_share(tiles: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Of RGB tiles `[k, H, W, 3]`, uint8, how many pixels have the colour of a pen, `[k]`.

    Green, blue and black ink: what haematoxylin and eosin do not make. A pixel counts whose green is 15 above its red
    (green ink and blue ink), or of which all channels are below 60 and differ by less than 15 (black ink).
    """
    red, green, blue = (tiles[..., c].astype(np.int16) for c in range(3))
    coloured = green - red > 15
    brightest, darkest = (
        function(function(red, green), blue) for function in (np.maximum, np.minimum)
    )
    black = (brightest < 60) & (brightest - darkest < 15)
    found: npt.NDArray[np.float64] = (coloured | black).mean((1, 2))
    return found


def _only(coords: Coords, kept: npt.NDArray[np.bool_], slide: Slide, what: str) -> Coords:
    if not kept.any():
        raise SourceError(
            f"{slide.name}: none of its {len(kept)} tiles has {what}. Ask for less, or leave the slide out."
        )
    return Coords(coords.name, coords.coords[kept], coords.size, coords.step, coords.overlap)

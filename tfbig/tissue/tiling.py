"""Tiles of a slide on a grid, selected by their tissue, sharpness and pen marks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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
    edge: int = 0,
    tissue: Tissue | None = None,
    smallest_share: float = 0.6,
    keep: Callable[[npt.NDArray[Any]], npt.NDArray[np.bool_]] | None = None,
    at_once: int = 64,
    ticked: Callable[[int, int], object] | None = None,
) -> Coords:
    """Select the tiles of a slide that contain tissue.

    The tiles lie on a regular grid; the last ones of a row or column end where the slide ends, if more than `edge`
    pixels are left there.

    Args:
        slide: The slide.
        size: Rows and columns of a tile.
        step: Width of a pixel of the tile in pixels of level 0, for example `slide.step(mpp=0.5)`.
        overlap: Overlap of neighbouring tiles in pixels of the tile.
        edge: Pixels of the tile that may be left at the end of a row or column without another tile.
        tissue: Mask of the tissue; None to select all tiles.
        smallest_share: Smallest fraction of tissue in a tile.
        keep: Function from tiles `[k, size, size, C]` to a mask `[k]` of those to select; the tiles are only read if
            it is set.
        at_once: Number of tiles passed to `keep` together.
        ticked: Called with the number of tiles that `keep` has seen, and of all tiles.

    Returns:
        Positions of the tiles.

    Raises:
        ValueError: `overlap` is not below `size`, or the slide is smaller than a tile.
        SourceError: No tile contains enough tissue, or `keep` selects none.

    Example:
        >>> from tfbig.tissue import tiling
        >>> np.save("slide.npy", np.zeros((100, 60, 3), "uint8"))
        >>> tiling.tile(tfbig.open_slide("slide.npy"), 50).coords.tolist()
        [[0, 0], [10, 0], [0, 50], [10, 50]]
    """
    if not 0 <= overlap < size:
        raise ValueError(
            f"overlap={overlap} for tiles of {size}; expected 0 or more, below {size}."
        )
    image = slide.scaled(step)
    rows, columns = image.shape[:2]
    covered = (_covered(extent, size, size - overlap, edge) for extent in (rows, columns))
    grid = PatchGrid((*covered,), (size, size), (size - overlap,) * 2)
    corners = grid.corners(np.arange(grid.count))
    steps = [n / m for n, m in zip(slide.shape, (rows, columns), strict=False)]
    name = slide.title
    coords = Coords(name, np.rint(corners * steps).astype(np.int64)[:, ::-1], size, step, overlap)
    if tissue is not None:
        shares = tissue.shares(coords.coords, coords.size * coords.step)
        coords = _select(coords, shares >= smallest_share, slide, f"{smallest_share:.0%} tissue")
    if keep is not None:
        tiles, masks = coords.tiles(slide), []
        count = tiles.shape[0]
        for start in range(0, count, at_once):
            stop = min(start + at_once, count)
            masks.append(keep(tiles.read(start, stop)))
            if ticked is not None:
                ticked(stop, count)
        coords = _select(coords, np.concatenate(masks), slide, "the required quality")
    return coords


def _covered(extent: int, size: int, stride: int, edge: int) -> int:
    """Count the pixels of an axis that tiles cover; at most `edge` are left."""
    left = (extent - size) % stride
    return extent - left if extent > size and left <= edge else extent


def grey_share(tiles: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The fraction of pixels with a grey value above 3 and below 230, `[k]`, of tiles `[k, H, W, C]`, uint8."""
    return np.array([in_grey_range(each).mean() for each in tiles])


def sharpness(tiles: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The variance of the Laplacian of the grey values, which is low out of focus.

    Tiles are `[k, H, W, C]`, uint8; the variances are `[k]`, in squared grey levels.
    """
    return np.array([ndimage.laplace(gray(each)).var() for each in tiles])


def pen_share(tiles: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The fraction of pixels with the colour of a pen: green, blue or black, unlike haematoxylin and eosin.

    Tiles are RGB `[k, H, W, 3]`, uint8; the fractions are `[k]`.

    A pixel counts if its green is more than 15 above its red (green and blue ink), or if all channels are below 60
    and differ by less than 15 (black ink).
    """
    red, green, blue = (tiles[..., c].astype(np.int16) for c in range(3))
    coloured = green - red > 15
    brightest, darkest = (
        function(function(red, green), blue) for function in (np.maximum, np.minimum)
    )
    black = (brightest < 60) & (brightest - darkest < 15)
    shares: npt.NDArray[np.float64] = (coloured | black).mean((1, 2))
    return shares


def _select(coords: Coords, mask: npt.NDArray[np.bool_], slide: Slide, requirement: str) -> Coords:
    """Choose the tiles in the mask; raise SourceError if there are none."""
    if not mask.any():
        raise SourceError(
            f"{slide.name}: none of its {len(mask)} tiles has {requirement}. Require less, or exclude the slide."
        )
    return replace(coords, coords=coords.coords[mask])

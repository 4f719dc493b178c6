"""Colours of the stains of a slide, from its tissue at a low resolution."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tfbig.errors import SourceError
from tfbig.sources import Macenko, Reinhard, Slide
from tfbig.sources.resolution import is_plausible
from tfbig.sources.stain import METHODS
from tfbig.tissue.masks import find_tissue
from tfbig.units import counted

MPP: Final = 2.0
"""Micrometres per pixel of the image whose colours are used, if the pixel size of the slide is known."""
LARGEST_SIDE: Final = 4096
"""Largest number of rows and columns of the image whose colours are used."""
MOST: Final = 2**20
"""Largest number of pixels that are used, evenly spaced in the order of rows."""


def find_stains(slide: Slide, method: str = "macenko") -> Macenko | Reinhard:
    """Find the colours of a slide, from its tissue at 2 um per pixel or 4096 pixels of its longer side.

    They normalise the slide at any resolution, and its tiles: see `tfbig.sources.StainNormalised`.

    Args:
        slide: The slide, uint8 with three channels.
        method: "macenko" for the directions of two stains, "reinhard" for the mean and deviation of colours.

    Returns:
        The colours.

    Raises:
        ValueError: `method` is unknown.
        SourceError: The slide is not in colour, cannot be read, or has no tissue; for "macenko", or has one stain only.

    Example:
        >>> image = np.full((300, 200, 3), 240, "uint8")
        >>> image[100:200, 50:150] = np.random.default_rng(0).integers(60, 200, (100, 100, 3))
        >>> np.save("slide.npy", image)
        >>> stains = tfbig.tissue.find_stains(tfbig.open_slide("slide.npy"), "reinhard")
        >>> len(stains.mean), len(stains.deviation)
        (3, 3)
    """
    if method not in METHODS:
        raise ValueError(f"received method '{method}'; expected 'macenko' or 'reinhard'.")
    if slide.dtype != np.uint8 or slide.shape[2] != 3:
        raise SourceError(
            f"{slide.name}: has {counted(slide.shape[2], 'channel')} of {slide.dtype}; stain normalisation expects 3 "
            "channels of uint8. Leave the slide out, or do without."
        )
    try:
        return (Macenko if method == "macenko" else Reinhard).of(_tissue_pixels(slide))
    except ValueError as error:
        raise SourceError(
            f"{slide.name}: {error} for stain normalisation by '{method}'. Leave the slide out, or use another method."
        ) from None


def _tissue_pixels(slide: Slide) -> npt.NDArray[Any]:
    """Take pixels `[n, 3]` of the tissue, at most `MOST`."""
    mask = find_tissue(slide).mask
    known = slide.mpp is not None and is_plausible(slide.mpp)
    finest = max(2 * MPP / sum(slide.mpp), 1.0) if slide.mpp and known else 1.0
    longer = max(slide.shape[:2])
    image = slide.thumbnail(min(round(longer / finest), LARGEST_SIDE))
    rows, columns = (
        np.minimum(((np.arange(n) + 0.5) * m / n).astype(int), m - 1)
        for n, m in zip(image.shape[:2], mask.shape, strict=True)
    )
    pixels = image[mask[rows[:, None], columns]]
    chosen = np.unique(np.linspace(0, len(pixels) - 1, min(MOST, len(pixels))).astype(int))
    return pixels[chosen]

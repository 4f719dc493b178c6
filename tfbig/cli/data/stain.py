"""Stain normalisation of the slides of a run, and of those that it predicts."""

from __future__ import annotations

from tfbig.sources import RGB, Slide, Source, StainNormalised
from tfbig.tissue import find_stains

NONE = "none"


def normalised(image: Source, slide: Slide, stain: str) -> Source:
    """Return an image of a slide with normalised colours.

    Args:
        image: The slide at any resolution.
        slide: The slide.
        stain: Value of `--stain`; "none" returns the image.

    Raises:
        SourceError: The slide is not in colour, or has too few stains.
    """
    if stain == NONE:
        return image
    return StainNormalised(RGB(image), find_stains(slide, stain))

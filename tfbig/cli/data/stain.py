"""Stain normalisation of the slides of a run, and of those that it predicts."""

from __future__ import annotations

from tfbig.sources import RGB, Slide, Source, StainNormalised
from tfbig.tissue import find_stains

NONE = "none"


def normalised(image: Source, slide: Slide, stain: str) -> Source:
    """Normalise the colours of an image of a slide; `stain` is the value of `--stain`, "none" for no change.

    Raises:
        SourceError: The slide is not in colour, or has too few stains.
    """
    if stain == NONE:
        return image
    return StainNormalised(RGB(image), find_stains(slide, stain))

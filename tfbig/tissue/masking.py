"""Slides whose background has one colour: by their tissue, by a mask, or by a colour."""

from __future__ import annotations

import math
import os
from typing import Any, final

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from tfbig.errors import SourceError
from tfbig.geometry.background import Background, BoolArray
from tfbig.sources import ArraySource, Masked, Slide, Source, open_labels
from tfbig.sources.files import PathLike
from tfbig.sources.masked import Colour, background_of_mask
from tfbig.sources.resolution import Resolution
from tfbig.tissue.drawn import read_tissue
from tfbig.tissue.masks import Tissue, find_tissue
from tfbig.tissue.outline_file import OutlineRule, is_outline_file

__all__ = ["masked"]

Mask = Tissue | Source | npt.NDArray[Any] | PathLike
"""Tissue, an image that is not 0 where foreground is, or a file: a picture, a TIFF file or GeoJSON."""


def masked(
    slide: Slide | Source,
    mask: Mask | None = None,
    colour: Colour | None = None,
    *,
    dilation: float = 0.0,
    leave_out: Colour | None = None,
    level: int | None = None,
    mpp: float | None = None,
    magnification: float | None = None,
    cell: int | None = None,
    outlines: OutlineRule | None = None,
) -> Masked:
    """Mask a slide, so that streamed models compute its tissue only.

    The result equals `where(mask, slide, colour)`, in cells of several pixels on large slides; a cell with any
    foreground is foreground. What is outside is not read.

    Args:
        slide: The slide, or an image.
        mask: Foreground of the whole slide: tissue of `find_tissue` or `read_tissue`; an array or image, of any size
            with the ratio of rows to columns of the slide, that is not 0 where foreground is; or the path of such an
            image, or of GeoJSON with outlines in pixels of level 0, as QuPath exports it; those of an image that is
            not level 0 of a slide are in its own pixels. Default: `find_tissue(slide)`.
        colour: Colour of the background, one number for all channels or one for each. Default: the median of pixels
            sampled there.
        dilation: Micrometres by which the foreground is enlarged.
        leave_out: Colour that is left out, instead of a mask, where whole cells have exactly this one. This reads the
            slide once, and changes no pixel of it.
        level: Pyramid level. Without any resolution, it is level 0.
        mpp: Micrometres per pixel, as in `Slide.at`.
        magnification: Magnification, as in `Slide.at`.
        cell: Side of a cell in pixels. Default: a pixel of the mask, rounded down to a power of two if it is not a
            whole number of pixels, and doubled until there are at most 2**22 cells.
        outlines: Which outlines of GeoJSON count, and where they are counted from; by default `OutlineRule()`.

    Returns:
        The image at the resolution. Its `background` is what streamed models leave out.

    Raises:
        SourceError: The mask has no foreground or another shape, cannot be read, or is of another slide; the slide does
            not have the colour to leave out, or cannot have the other one; the size of its pixels is unknown.
        ValueError: Arguments exclude each other, or `dilation` is negative.

    Example:
        >>> image = np.full((300, 200, 3), 240, "uint8")
        >>> image[100:200, 50:150] = (150, 80, 160)
        >>> np.save("slide.npy", image)
        >>> source = tfbig.masked(tfbig.open_slide("slide.npy"), colour=255)
        >>> source.fill.tolist(), round(source.background.share, 2)
        ([255, 255, 255], 0.17)
    """
    _check_arguments(mask, colour, leave_out, dilation)
    resolutions = {"level": level, "mpp": mpp, "magnification": magnification}
    given = {name: value for name, value in resolutions.items() if value is not None}
    if isinstance(slide, Slide):
        source = (
            slide.at(level=level, mpp=mpp, magnification=magnification) if given else slide.level()
        )
    elif given:
        raise ValueError(
            f"{slide.name}: received {given} for an image, which has one resolution. Pass a Slide."
        )
    else:
        source, slide = slide, _Image(slide)
    if leave_out is not None:
        found = Masked.without(source, leave_out, cell)
        background = found.background
        colour = found.fill
    else:
        background = background_of_mask(source, _image_of(mask, slide, outlines), cell)
    assert background is not None
    foreground = _dilated(background.foreground, _radius(source, dilation, background.cell))
    return Masked(source, Background(foreground, background.cell), colour)


@final
class _Image(Slide):
    """An image as a slide with one level."""

    def __init__(self, source: Source) -> None:
        rows, columns, channels = source.shape
        resolution = Resolution(source.mpp)
        super().__init__(
            source.name, [(rows, columns)], channels, source.dtype, resolution, "source"
        )
        self._source, self.origin = source, source.origin

    def _open(self, level: int) -> Source:
        return self._source


def _check_arguments(mask: Any, colour: Any, leave_out: Any, dilation: float) -> None:
    """Raise ValueError for arguments that exclude each other."""
    if leave_out is not None and not (mask is None and colour is None):
        raise ValueError(
            "received leave_out with a mask or a colour; expected leave_out alone, which is the colour of the "
            "background and where it is."
        )
    if not 0 <= dilation < math.inf:
        raise ValueError(
            f"received a dilation of {dilation}; expected micrometres, at least 0. To leave tissue out, pass a smaller "
            "mask."
        )


def _image_of(mask: Mask | None, slide: Slide, rule: OutlineRule | None) -> Source:
    """Turn a mask into an image that is not 0 where foreground is."""
    if isinstance(mask, str | os.PathLike):
        mask = read_tissue(mask, slide, rule) if is_outline_file(mask) else open_labels(mask)
    if mask is None:
        mask = find_tissue(slide)
        if not mask.mask.any():
            raise SourceError(
                f"{slide.name}: no tissue was found; expected some that differs in colour from glass. Pass a mask, or "
                "find_tissue(slide, method='otsu')."
            )
    if isinstance(mask, Source):
        return mask
    array = mask.mask if isinstance(mask, Tissue) else np.asarray(mask)
    return ArraySource(array, f"mask of {slide.name}")


def _radius(source: Source, dilation: float, cell: int) -> tuple[float, float]:
    """Convert a distance to sides of a cell, along rows and columns."""
    if not dilation:
        return 0.0, 0.0
    if source.mpp is None:
        raise SourceError(
            f"{source.name}: does not specify the size of its pixels, which a dilation of {dilation} um needs. Pass "
            "mpp=0.25 to open_slide, or set mpp=(0.25, 0.25) of the image."
        )
    rows, columns = source.mpp
    return dilation / rows / cell, dilation / columns / cell


def _dilated(foreground: BoolArray, radius: tuple[float, float]) -> BoolArray:
    """The cells that hold a pixel within a distance of a pixel of the foreground, in sides of a cell."""
    if not max(radius) or not foreground.any():
        return foreground
    touching = ndimage.binary_dilation(foreground, np.ones((3, 3), bool))
    distances = ndimage.distance_transform_edt(~touching, [1 / length for length in radius])
    return np.asarray(distances <= 1, bool)

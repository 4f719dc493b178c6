"""What TIFF tags say about samples, their place and the choice of an image: each is applied, refused or said."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from xml.etree import ElementTree

import tifffile

from tfbig.errors import Advice, SourceError, SourceWarning, reason_of
from tfbig.sources.rules import Rule

GDAL_METADATA: Final = 42112
"""Number of the tag of GDAL's metadata, XML."""
Check = Callable[[tifffile.TiffFile, tifffile.TiffPage], str]
"""Function that says what is wrong with a tag of a page, or returns an empty text."""


class ScaledError(SourceError):
    """Raised for GeoTIFF whose values are not what is stored, which `RasterSource` reads."""


@dataclass(frozen=True)
class Tag(Rule):
    """A rule for a tag, or for several of one purpose.

    Attributes:
        check: Function that finds what is not applied, or None if everything is.
        error: Error that is raised then; None for a `SourceWarning`.
        advice: What to do then, if the check does not say it.
    """

    check: Check | None = None
    error: type[SourceError] | None = None
    advice: tuple[Advice, ...] = ()


def check(path: str, tiff: tifffile.TiffFile, page: tifffile.TiffPage) -> None:
    """Refuse, or say, what the tags of a page ask for and is not applied.

    Raises:
        SourceError: A tag asks for what is refused.
        ScaledError: The values are not what is stored.
    """
    for tag in TAGS:
        text = tag.check(tiff, page) if tag.check else ""
        if text and tag.error:
            raise tag.error(f"{path}: {text}", *tag.advice)
        if text:
            warnings.warn(f"{path}: {text}", SourceWarning, stacklevel=2)


def scaling_of(text: str) -> dict[str, float]:
    """Read the scales and offsets in GDAL's XML that change values, such as `{"offset": -0.1}`."""
    try:
        items = ElementTree.fromstring(text).iter("Item")
    except ElementTree.ParseError:
        return {}
    neutral = {"scale": 1.0, "offset": 0.0}
    found = ((item.get("role", ""), _number(item.text)) for item in items)
    return {role: value for role, value in found if role in neutral and value != neutral[role]}


def _number(text: Any) -> float:
    try:
        return float(text)
    except (TypeError, ValueError):
        return float("nan")


def _orientation(tiff: tifffile.TiffFile, page: tifffile.TiffPage) -> str:
    value = page.tags.valueof(274, 1)
    if value == 1:
        return ""
    name = reason_of(getattr(value, "name", value))
    return (
        f"is stored rotated or mirrored (Orientation {name}); expected the first row at the "
        "top and the first column at the left. Rotate or flip its pixels, and write it again without the tag "
        "'Orientation'."
    )


def _scaling(tiff: tifffile.TiffFile, page: tifffile.TiffPage) -> str:
    found = scaling_of(str(page.tags.valueof(GDAL_METADATA, "")))
    if not found:
        return ""
    shown = ", ".join(f"{role} {found[role]:g}" for role in ("scale", "offset") if role in found)
    return f"its values are not what is stored ({shown})."


def _calibration(tiff: tifffile.TiffFile, page: tifffile.TiffPage) -> str:
    facts: Mapping[str, Any] = (tiff.imagej_metadata or {}) if tiff.is_imagej else {}
    coefficients = {key: value for key, value in facts.items() if re.fullmatch(r"c[0-9]", key)}
    if not coefficients or (facts.get("c0"), facts.get("c1")) == (0, 1):
        return ""
    shown = ", ".join(f"{key} {value:g}" for key, value in sorted(coefficients.items()))
    return (
        f"ImageJ calibrates its values ({shown}), which is not applied: samples are read as they are stored. To change "
        "them, save the image in 32 bits."
    )


def _response(tiff: tifffile.TiffFile, page: tifffile.TiffPage) -> str:
    curves = {291: "GrayResponseCurve", 301: "TransferFunction"}
    found = [name for number, name in curves.items() if number in page.tags]
    return f"not applied: its {' and '.join(found)}." if found else ""


TAGS: Final = (
    Tag("NewSubfileType, SubIFDs", "applied: reduced copies of the image are its levels"),
    Tag(
        "several images",
        "the one with the most pixels is read; others of more than half its sides are said, and labels, macros and "
        "thumbnails passed over",
    ),
    Tag(
        "PhotometricInterpretation",
        "gray where 0 is black, RGB, and YCbCr in JPEG are applied, others refused; a palette of a GeoTIFF colours "
        "class numbers, which are read",
    ),
    Tag(
        "Orientation", "refused, unless the first row is at the top left", _orientation, SourceError
    ),
    Tag("Predictor, FillOrder, PlanarConfiguration, SampleFormat", "applied"),
    Tag("ExtraSamples", "alpha is dropped, colours below it are kept; other samples are channels"),
    Tag("XResolution, YResolution, ResolutionUnit", "applied: the size of a pixel"),
    Tag(
        "ImageDescription",
        "applied: size of a pixel, objective and names of channels of OME, ImageJ and Aperio",
    ),
    Tag("calibration of ImageJ", "said, not applied", _calibration),
    Tag("GrayResponseCurve, TransferFunction", "said, not applied", _response),
    Tag("ModelPixelScale, ModelTiepoint, ModelTransformation", "applied: the place on the map"),
    Tag("GDAL_NODATA", "applied: the value of tiles that the file does not store"),
    Tag(
        "scale and offset in GDAL_METADATA",
        "applied, by rasterio: values are float32",
        _scaling,
        ScaledError,
        (Advice.RASTERIO,),
    ),
    Tag(
        "tiles of no bytes",
        "those of SVS are read by OpenSlide, from other levels; else they are not stored",
    ),
)
"""What is done with the tags that change samples, their place, or the choice of an image."""

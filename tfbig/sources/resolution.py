"""Pixel size and magnification of a slide, from its file or from a table."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from xml.etree import ElementTree

import tifffile

from tfbig.sources import number_text
from tfbig.sources.files import PathLike
from tfbig.sources.table import Table

Mpp = tuple[float, float]
"""Micrometres per pixel along rows and columns."""

COARSEST: Final = 40.0
"""Largest plausible um per pixel of a slide; coarser values in TIFF's tags are defaults such as 72 dots per inch."""
FINEST: Final = 0.02
"""Smallest plausible um per pixel of a slide: 100x is 0.1; finer ones are of electron microscopes, or a wrong unit."""
_SMALLEST: Final = math.ulp(0.0)
"""Smallest positive number."""
SAME_AXES: Final = 0.01
"""Largest difference of two axes, as a share, with which one number stands for both."""
UM_TIMES_POWER: Final = 10.0
"""Micrometres per pixel times magnification: 0.5 at 20x, 0.25 at 40x."""
CONTRADICTION: Final = 1.5
"""Factor between micrometres and magnification from which on they contradict each other."""
_UM_PER_TIFF_UNIT: Final = {2: 25400.0, 3: 10000.0}
_UM_PER_OME_UNIT: Final = {
    "m": 1e6,
    "dm": 1e5,
    "cm": 1e4,
    "mm": 1e3,
    "nm": 1e-3,
    "pm": 1e-6,
    "in": 25400.0,
    "\u00b5m": 1.0,
    "\u03bcm": 1.0,
    "um": 1.0,
    "\u00c5": 1e-4,
}


@dataclass(frozen=True)
class Resolution:
    """Resolution of a slide at level 0.

    Args:
        mpp: Micrometres per pixel along rows and columns, or None if unknown.
        magnification: Magnification of the objective, 40.0 for 40x, or None if unknown.

    Example:
        >>> tfbig.sources.Resolution(mpp=(0.25, 0.25), magnification=40.0)
        Resolution(mpp=(0.25, 0.25), magnification=40.0)
    """

    mpp: Mpp | None = None
    magnification: float | None = None


def one_size(sizes: tuple[float, float], rounding: float = 0.0) -> float | None:
    """The mean of a size along rows and columns, or None if they differ by more than 1 %.

    They may differ by the share `rounding` besides, because levels have whole numbers of rows and columns.
    """
    differs = abs(sizes[0] - sizes[1]) > (SAME_AXES + rounding) * max(sizes)
    return None if differs else sum(sizes) / 2


def is_plausible(mpp: Mpp) -> bool:
    """Tell whether micrometres per pixel, along rows and columns, are those of a slide: from `FINEST` to `COARSEST`."""
    return min(mpp) >= FINEST and max(mpp) <= COARSEST


def doubts(mpp: Mpp | None, magnification: float | None) -> dict[str, str]:
    """Say what is odd about the resolution of a slide, by the kind of it; empty if all is well.

    `mpp` is along rows and columns; either is None if unknown.
    """
    if mpp is None:
        return {}
    found = {}
    each = f"{mpp[0]:.4g} x {mpp[1]:.4g} um a pixel"
    if not is_plausible(mpp):
        found["pixels of an implausible size"] = (
            f"{each}; expected {FINEST:g} to {COARSEST:g}. Check it, or give the right size with --mpp-of"
        )
    if one_size(mpp) is None:
        found["pixels that are not square"] = f"{each}, rows x columns; both are used"
    power = UM_TIMES_POWER * 2 / sum(mpp)
    ratio = 1.0 if magnification is None else max(magnification / power, power / magnification)
    if ratio > CONTRADICTION:
        found["a magnification that contradicts the size of pixels"] = (
            f"{magnification:g}x, but {each}, which is {power:.3g}x; the micrometres are used"
        )
    return found


def resolution_from_openslide(properties: Mapping[str, str]) -> Resolution:
    """Read the resolution in the properties of OpenSlide, which reads the tags of a generic TIFF."""
    rows, columns = (_positive(properties.get(f"openslide.mpp-{axis}")) for axis in "yx")
    power = _positive(properties.get("openslide.objective-power"))
    mpp = (rows, columns) if rows and columns else None
    return Resolution(None if mpp and _is_default(properties, mpp) else mpp, power)


def resolution_from_tiff(tiff: tifffile.TiffFile, page: tifffile.TiffPage) -> Resolution:
    """Read the resolution in the OME-XML, the description of ImageJ or Aperio, or the tags of a page.

    `page` is the first of level 0.
    """
    if tiff.is_ome and tiff.ome_metadata:
        mpp = _mpp_from_ome(ome_pixels(tiff.ome_metadata, page))
        return Resolution(mpp or _mpp_from_tags(page))
    if tiff.is_imagej:
        return Resolution(_mpp_from_imagej(tiff.imagej_metadata or {}, page))
    facts = dict(re.findall(r"\|\s*(MPP|AppMag)\s*=([^|\r\n]*)", page.description or ""))
    aperio = _positive(facts.get("MPP"))
    mpp = (aperio, aperio) if aperio else _mpp_from_tags(page)
    return Resolution(mpp, _positive(facts.get("AppMag")))


def read_mpp_table(path: PathLike) -> dict[str, float]:
    """Read pixel sizes from a table `wsi,mpp`, the format of TRIDENT.

    Args:
        path: CSV file with the columns `wsi`, file name of a slide with or without its suffix, and
            `mpp`, micrometres per pixel at level 0. A decimal comma is understood where it can only be one.

    Returns:
        Dictionary `{wsi: mpp}`.

    Raises:
        SourceError: The file does not exist, a column is missing, an `mpp` is not a positive
            number, or a slide is listed twice.

    Example:
        >>> with open("mpp.csv", "w") as file:
        ...     print("wsi,mpp", "a.tif,0.25", "b.svs,0.5", sep=chr(10), file=file)
        >>> tfbig.sources.read_mpp_table("mpp.csv")
        {'a.tif': 0.25, 'b.svs': 0.5}
    """
    table = Table.read(path, ("wsi", "mpp"), flag="")
    table.check_unique("wsi", "slide")
    sizes = table.numbers("mpp", "micrometres per pixel, a positive number", least=_SMALLEST)
    return {row["wsi"]: size for row, size in zip(table.rows, sizes, strict=True)}


def ome_pixels(text: str, page: tifffile.TiffPage) -> ElementTree.Element | None:
    """Find what OME-XML says about the first image of the size of a page, or None."""
    try:
        images = ElementTree.fromstring(text).findall(".//{*}Pixels")
    except ElementTree.ParseError:
        return None
    size = str(page.imagelength), str(page.imagewidth)
    fitting = (each for each in images if (each.get("SizeY"), each.get("SizeX")) == size)
    return next(fitting, images[0] if len(images) == 1 else None)


def _mpp_from_ome(pixels: ElementTree.Element | None) -> Mpp | None:
    """Read `PhysicalSizeY` and `X`; micrometres if there is no unit."""
    if pixels is None:
        return None
    sizes = [_mpp_from_ome_axis(pixels, axis) for axis in "YX"]
    return (sizes[0], sizes[1]) if sizes[0] and sizes[1] else None


def _mpp_from_ome_axis(pixels: ElementTree.Element, axis: str) -> float | None:
    size = _positive(pixels.get(f"PhysicalSize{axis}"))
    unit = _UM_PER_OME_UNIT.get(pixels.get(f"PhysicalSize{axis}Unit", "um"))
    return size * unit if size and unit else None


def _mpp_from_tags(page: Any) -> Mpp | None:
    """Compute `unit / resolution`, where the unit is inches or centimetres."""
    tags = page.tags
    unit = _UM_PER_TIFF_UNIT.get(int(getattr(tags.get("ResolutionUnit"), "value", 2)))
    per_unit = [_ratio(getattr(tags.get(f"{a}Resolution"), "value", None)) for a in "YX"]
    if unit is None or None in per_unit:
        return None
    rows, columns = (unit / number for number in per_unit if number)
    return (rows, columns) if max(rows, columns) <= COARSEST else None


def _mpp_from_imagej(metadata: Mapping[str, Any], page: Any) -> Mpp | None:
    """Compute `1 / resolution` in the unit of ImageJ, which is not that of the tag."""
    unit = _UM_PER_OME_UNIT.get(str(metadata.get("unit", "")).replace("\\u00B5", "\u00b5"))
    unit = 1.0 if metadata.get("unit") in ("micron", "microns") else unit
    per_unit = [_ratio(getattr(page.tags.get(f"{a}Resolution"), "value", None)) for a in "YX"]
    if unit is None or None in per_unit:
        return None
    rows, columns = (unit / number for number in per_unit if number)
    return rows, columns


def _is_default(properties: Mapping[str, str], mpp: Mpp) -> bool:
    generic = properties.get("openslide.vendor") == "generic-tiff"
    return generic and max(mpp) > COARSEST


def _ratio(value: Any) -> float | None:
    """The value of a TIFF fraction `(numerator, denominator)`."""
    if not isinstance(value, tuple) or len(value) != 2 or not value[1]:
        return None
    return _positive(value[0] / value[1])


def _positive(value: Any) -> float | None:
    """Read a finite number above 0, else None; a comma is a decimal comma, as OpenSlide has it."""
    try:
        number = number_text.number(value, False) if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) and number > 0 else None

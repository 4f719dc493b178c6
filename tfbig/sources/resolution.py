"""The size of the pixels of a slide and its magnification: what its file, or a table, says of them."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

import tifffile

from tfbig.errors import SourceError
from tfbig.sources.files import PathLike

Mpp = tuple[float, float]
"""Micrometres per pixel, of rows and of columns."""

COARSEST: Final = 40.0
"""Of TIFF's resolution tags, um: coarser is what programs write that know nothing, as 72 dots per inch."""
_UM_OF_TIFF_UNIT: Final = {2: 25400.0, 3: 10000.0}
_UM_OF_OME_UNIT: Final = {
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
    """What is known of a slide at level 0.

    Attributes:
        mpp: micrometres per pixel, of rows and columns, or None.
        magnification: of the objective, 40.0 for 40x, or None.
    """

    mpp: Mpp | None = None
    magnification: float | None = None


def of_openslide(properties: Mapping[str, str]) -> Resolution:
    """What OpenSlide's properties say; of its generic TIFF what it makes of the resolution tags."""
    rows, columns = (_positive(properties.get(f"openslide.mpp-{axis}")) for axis in "yx")
    power = _positive(properties.get("openslide.objective-power"))
    mpp = (rows, columns) if rows and columns else None
    return Resolution(None if mpp and _is_default(properties, mpp) else mpp, power)


def of_tiff(tiff: tifffile.TiffFile) -> Resolution:
    """What OME-XML, Aperio's description or the resolution tags of the first page say, in this order."""
    page = tiff.pages.first
    if tiff.is_ome and tiff.ome_metadata:
        mpp = _of_ome(tiff.ome_metadata)
        return Resolution(mpp or _of_tags(page))
    facts = dict(re.findall(r"\|\s*(MPP|AppMag)\s*=\s*([\d.]+)", page.description or ""))
    own = _positive(facts.get("MPP"))
    return Resolution((own, own) if own else _of_tags(page), _positive(facts.get("AppMag")))


def read_mpp_table(path: PathLike) -> dict[str, float]:
    """Sizes of pixels from a table `wsi,mpp`, as TRIDENT takes it.

    Args:
        path: CSV with the columns `wsi`, file name of a slide with or without its ending, and `mpp`, micrometres per
            pixel at level 0.

    Returns:
        `{wsi: mpp}`.

    Raises:
        SourceError: There is no such file, a column is missing, an `mpp` is no positive number, or a slide is listed
            twice.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SourceError(
            f"{path}: cannot be read as a CSV file ({error}); expected columns wsi, mpp."
        ) from error
    if not rows:
        raise SourceError(
            f"{path}: lists no slides; expected lines of wsi,mpp after these two words."
        )
    found: dict[str, float] = {}
    for line, row in enumerate(rows, start=2):
        name, mpp = (row.get("wsi") or "").strip(), _positive(row.get("mpp"))
        if not name or mpp is None or name in found:
            raise SourceError(
                f"{path}: line {line}: has wsi '{name}' and mpp '{row.get('mpp')}'; expected the file name of a slide, "
                "once, and its micrometres per pixel, a positive number, in columns wsi and mpp."
            )
        found[name] = mpp
    return found


def _of_ome(text: str) -> Mpp | None:
    """`PhysicalSizeX` and `Y` of the first image, micrometres where no unit is given."""
    try:
        pixels = ElementTree.fromstring(text).find(".//{*}Pixels")
    except ElementTree.ParseError:
        return None
    if pixels is None:
        return None
    sizes = [_of_ome_axis(pixels, axis) for axis in "YX"]
    return (sizes[0], sizes[1]) if sizes[0] and sizes[1] else None


def _of_ome_axis(pixels: ElementTree.Element, axis: str) -> float | None:
    size = _positive(pixels.get(f"PhysicalSize{axis}"))
    unit = _UM_OF_OME_UNIT.get(pixels.get(f"PhysicalSize{axis}Unit", "um"))
    return size * unit if size and unit else None


def _of_tags(page: Any) -> Mpp | None:
    """`unit / resolution`, where the unit is inches or centimetres."""
    tags = page.tags
    unit = _UM_OF_TIFF_UNIT.get(int(getattr(tags.get("ResolutionUnit"), "value", 2)))
    per_unit = [_ratio(getattr(tags.get(f"{a}Resolution"), "value", None)) for a in "YX"]
    if unit is None or None in per_unit:
        return None
    rows, columns = (unit / number for number in per_unit if number)
    return (rows, columns) if max(rows, columns) <= COARSEST else None


def _is_default(properties: Mapping[str, str], mpp: Mpp) -> bool:
    generic = properties.get("openslide.vendor") == "generic-tiff"
    return generic and max(mpp) > COARSEST


def _ratio(value: Any) -> float | None:
    """A fraction of TIFF, `(numerator, denominator)`."""
    if not isinstance(value, tuple) or len(value) != 2 or not value[1]:
        return None
    return _positive(value[0] / value[1])


def _positive(value: Any) -> float | None:
    """A number above 0, or None."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) and number > 0 else None

"""What readers do with what files say beyond the size of an image: a table of each reader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Rule:
    """A statement that a file may make about its samples, their place or the choice of an image, and its treatment.

    Attributes:
        subject: What the file says, by the name in its standard.
        done: What is done with it: applied, refused, said as a `SourceWarning`, or passed over.
    """

    subject: str
    done: str


PICTURES: Final = (
    Rule("EXIF Orientation", "applied: the picture is turned"),
    Rule(
        "palette",
        "applied: colours are RGB; of labels, the numbers are read and the colours left out",
    ),
    Rule("alpha, transparent colour", "dropped, colours below it are kept"),
    Rule("CMYK", "applied: converted to RGB"),
    Rule("16 bits", "applied: samples are uint16"),
    Rule("colour profile, gamma", "passed over: samples are read as they are stored"),
)
"""Rules for PNG, JPEG and BMP."""
OPENSLIDE: Final = (
    Rule("openslide.mpp-x, objective-power", "applied: size of a pixel and magnification"),
    Rule(
        "transparent pixels, openslide.bounds-x",
        "applied: what was not scanned has the background colour",
    ),
    Rule("openslide.background-color", "applied; white if there is none"),
    Rule("associated images", "passed over: labels, macros and thumbnails"),
    Rule("colour profile", "passed over: samples are read as they are stored"),
)
"""Rules for what OpenSlide reads."""
SCENES: Final = (
    Rule(
        "scale and offset of a band",
        "applied: values are float32, and NaN where there is no measurement",
    ),
    Rule("nodata, mask, alpha", "applied: what they mark does not count; alpha is no band"),
    Rule("coordinate system and transform", "applied; of ground control points nothing is"),
    Rule("colour table", "passed over: samples are the numbers of colours"),
    Rule("several images in a file", "refused"),
    Rule("unit of a band", "passed over"),
)
"""Rules for what rasterio reads."""
ZARR: Final = (
    Rule("fill_value", "applied: the value of chunks that are not stored"),
    Rule(
        "multiscales of OME",
        "applied: the first image and its levels; of a plate, one image must be named",
    ),
    Rule("scale of OME", "applied: size of a pixel; translations are passed over"),
    Rule("windows and colours of omero", "passed over: for the display only"),
    Rule("scale_factor, add_offset", "said, not applied"),
)
"""Rules for zarr and OME-Zarr."""
NIFTI: Final = (
    Rule("scl_slope, scl_inter", "applied: the scaling of the volume"),
    Rule(
        "sform, qform, xyzt_units", "applied: the place of voxels by the sform, else by the qform"
    ),
    Rule("fourth and fifth axis, RGB", "applied: channels"),
    Rule("cal_min, cal_max", "passed over: for the display only"),
)
"""Rules for NIfTI."""
NRRD: Final = (
    Rule("space directions, space origin, spacings", "applied: the place of voxels"),
    Rule("endian, encoding, skips", "applied"),
    Rule("data file", "applied to files next to the header; others are refused"),
    Rule("old min, old max", "said, not applied"),
)
"""Rules for NRRD."""

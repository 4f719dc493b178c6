"""The tables of docs/files.md, from the rules that the readers have."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tfbig.sources import rules
from tfbig.sources.slides.tiff_tags import TAGS
from tfbig.sources.volumes.dicom_tags import ATTRIBUTES

READERS: dict[str, Sequence[rules.Rule]] = {
    "TIFF, OME-TIFF, SVS": TAGS,
    "what OpenSlide reads": rules.OPENSLIDE,
    "PNG, JPEG, BMP": rules.PICTURES,
    "zarr, OME-Zarr": rules.ZARR,
    "scenes in GeoTIFF, JPEG 2000, VRT": rules.SCENES,
    "DICOM series": ATTRIBUTES,
    "NIfTI": rules.NIFTI,
    "NRRD": rules.NRRD,
}


def files(_: object) -> str:
    """Return a table of every reader."""
    parts = []
    for reader, table in READERS.items():
        rows = [f"| {rule.subject} | {rule.done} |" for rule in table]
        parts.append(
            "\n".join([f"## {reader[0].upper()}{reader[1:]}", "", "| | |", "|---|---|", *rows])
        )
    return "\n\n".join(parts)


TABLES: dict[str, Callable[[object], str]] = {"files": files}

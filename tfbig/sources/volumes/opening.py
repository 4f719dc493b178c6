"""Choice of the reader of a volume, by the name of its file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from tfbig.errors import SourceError
from tfbig.sources import untrusted
from tfbig.sources.files import PathLike
from tfbig.sources.volumes import dicom
from tfbig.sources.volumes.dicom import describe_dicom, open_dicom
from tfbig.sources.volumes.nifti import describe_nifti, open_nifti
from tfbig.sources.volumes.nrrd import describe_nrrd, open_nrrd, read_header
from tfbig.sources.volumes.raw import Description, RawVolume
from tfbig.sources.volumes.volume import Volume

VOLUME_SUFFIXES: Final = (".nii.gz", ".nii", ".nrrd", ".nhdr")
"""Ends of the names of files that hold volumes; DICOM is found by its content."""


class Reader(NamedTuple):
    """Functions of one format."""

    open: Callable[[PathLike], RawVolume]
    describe: Callable[[PathLike], Description]


NIFTI, NRRD, DICOM = (
    Reader(open_nifti, describe_nifti),
    Reader(open_nrrd, describe_nrrd),
    Reader(open_dicom, describe_dicom),
)
READERS: Final = {".nii.gz": NIFTI, ".nii": NIFTI, ".nrrd": NRRD, ".nhdr": NRRD}


def suffix_of(path: PathLike) -> str | None:
    """The one of `VOLUME_SUFFIXES` that a file has, or None."""
    name = os.fspath(path).lower()
    return next((suffix for suffix in VOLUME_SUFFIXES if name.endswith(suffix)), None)


def is_volume(path: PathLike) -> bool:
    """Tell whether a path is that of a volume: by its name, or of DICOM by its content."""
    if suffix_of(path) is not None:
        return True
    given = Path(path)
    return (given.is_dir() or given.suffix.lower() in ("", ".dcm", ".ima")) and dicom.is_series(
        given
    )


def open_volume(path: PathLike) -> Volume:
    """Open a volume: NIfTI, NRRD, or DICOM.

    Args:
        path: A file `.nii`, `.nii.gz`, `.nrrd`, `.nhdr` or of DICOM, or the folder of a DICOM series.

    Returns:
        The volume `[D, H, W, C]`.

    Raises:
        SourceError: It does not exist, is damaged, or is no volume.
        BudgetError: It is compressed, and there is no room for its decoded samples.

    Example:
        >>> volume = tfbig.sources.ArrayVolume(np.zeros((4, 6, 5), "int16"))
        >>> tfbig.sources.write_nifti("zeros.nii.gz", volume)
        >>> tfbig.sources.open_volume("zeros.nii.gz").shape
        (4, 6, 5, 1)
    """
    return _reader(path).open(path)


def describe_volume(path: PathLike) -> Description:
    """Read what the header of a volume says; no sample is decoded.

    Raises:
        SourceError: As in `open_volume`.
    """
    return _reader(path).describe(path)


def files_of(path: PathLike) -> list[Path]:
    """List the files that are read for a volume: itself, the samples that its header names, the files of a folder.

    Where it does not exist or is damaged, only itself is listed.
    """
    found = [Path(path)]
    if found[0].is_dir():
        return [*found, *sorted(found[0].iterdir())]
    try:
        return [*found, read_header(path).file] if _reader(path) is NRRD else found
    except SourceError:  # raised again when the volume is opened
        return found


def _reader(path: PathLike) -> Reader:
    """Choose the reader of a file or folder.

    Raises:
        SourceError: It does not exist, or is no volume.
    """
    if not Path(path).exists():
        raise SourceError(
            f"{path}: there is no such file. Check the path (working directory: {os.getcwd()})."
        )
    if Path(path).is_dir():
        return DICOM
    untrusted.regular_file(path)
    suffix = suffix_of(path)
    if suffix is not None:
        return READERS[suffix]
    if dicom.is_series(path):
        return DICOM
    raise SourceError(
        f"{path}: is no volume; expected one of {', '.join(VOLUME_SUFFIXES)}, a DICOM file, or the folder of a "
        "DICOM series."
    )

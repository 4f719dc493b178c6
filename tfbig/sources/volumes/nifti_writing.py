"""Writing of volumes as NIfTI, plane by plane."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tfbig.errors import SourceError
from tfbig.sources.files import PathLike
from tfbig.sources.volumes import nifti
from tfbig.sources.volumes.grid import Affine
from tfbig.sources.volumes.nifti import is_compressed
from tfbig.sources.volumes.volume import Volume
from tfbig.sources.writing import atomic_write

LARGEST = 2**15 - 1
"""Most voxels along an axis in NIfTI-1."""
LEVEL = 4
"""Level of compression."""


def write_nifti(
    path: PathLike,
    volume: Volume,
    like: Volume | None = None,
    ticked: Callable[[int, int], Any] | None = None,
) -> None:
    """Write a volume as NIfTI, plane by plane; the file gets its name only when it is complete.

    Args:
        path: The file, `*.nii` or `*.nii.gz`. An existing file is replaced.
        volume: The volume, of one channel; more become the fourth axis, and are read in turn.
        like: Volume of the same grid, by default `volume`. If it was read from NIfTI, the file gets its header: the
            same affines, spacing and units. Otherwise it gets the affine of `like`, or else its
            spacing.
        ticked: Called after each plane with the number of planes written and of all.

    Raises:
        SourceError: nibabel is not installed, the name has another suffix, or the file cannot be written.

    Example:
        >>> labels = tfbig.sources.ArrayVolume(np.ones((4, 6, 5), "uint8"))
        >>> tfbig.sources.write_nifti("labels.nii.gz", labels)
        >>> tfbig.open("labels.nii.gz").read(0, 1).sum()
        np.uint64(30)
    """
    like, target = volume if like is None else like, Path(path)
    if nifti.nibabel is None:
        raise SourceError(f"{path}: needs the nibabel package: pip install 'tfbig[volumes]'.")
    if not os.fspath(path).lower().endswith((".nii", ".nii.gz")):
        raise SourceError(
            f"{path}: cannot be written as NIfTI; expected a path that ends in .nii or .nii.gz."
        )
    header = header_like(volume, like)
    with atomic_write(target) as part, part.open("wb") as file:
        if not is_compressed(path):
            _write(file, header, volume, ticked)
            return
        with gzip.GzipFile("", "wb", LEVEL, file, mtime=0) as stream:
            _write(stream, header, volume, ticked)


def header_like(volume: Volume, like: Volume) -> Any:
    """Make a NIfTI header for a volume, with the affine of `like`."""
    known = like.header
    header = _new_header(like) if known is None else nifti.parse_header(known, like.name)
    planes, rows, columns, channels = volume.shape
    shape = (columns, rows, planes) if channels == 1 else (columns, rows, planes, channels)
    dtype = np.dtype(np.uint8) if volume.dtype == bool else volume.dtype
    header.set_data_dtype(dtype.newbyteorder(header.endianness))
    header.set_data_shape(shape)
    slope, intercept = volume.scaling
    header["scl_slope"], header["scl_inter"] = slope, intercept
    header["vox_offset"] = header.sizeof_hdr + 4  # four bytes say that there are no extensions
    header["cal_max"] = header["cal_min"] = 0
    header["intent_code"] = 0
    return header


def _new_header(like: Volume) -> Any:
    """Make a header with the affine of a volume, or its spacing."""
    library = nifti.nibabel
    kind = library.Nifti2Header if max(like.shape) > LARGEST else library.Nifti1Header
    header = kind()
    header.set_data_shape(like.shape[2::-1])
    header.set_xyzt_units("mm")
    if like.grid.affine is not None:
        affine = _columns_first(like.grid.affine)
        header.set_qform(affine, code=1)
        header.set_sform(affine, code=1)
    elif like.spacing is not None:
        header.set_zooms(like.spacing[::-1])
    return header


def _columns_first(affine: Affine) -> Any:
    """Reorder an affine to columns, rows and planes, the order of the file."""
    return np.array(affine)[:, [2, 1, 0, 3]]


def _write(
    file: BinaryIO | gzip.GzipFile,
    header: Any,
    volume: Volume,
    ticked: Callable[[int, int], Any] | None,
) -> None:
    """Write the header and the samples, one plane of one channel at a time."""
    file.write(header.structarr.tobytes() + bytes(4))
    dtype, (planes, _, _, channels) = header.get_data_dtype(), volume.shape
    for channel in range(channels):
        for plane in range(planes):
            samples = volume.read(plane, plane + 1)[..., channel]
            file.write(np.ascontiguousarray(samples.astype(dtype)).tobytes())
            if ticked is not None:
                ticked(channel * planes + plane + 1, channels * planes)

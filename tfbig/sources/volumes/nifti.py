"""Volumes in NIfTI files, `.nii` and `.nii.gz`."""

from __future__ import annotations

import io
import math
import os
from dataclasses import replace
from typing import Any, Final

import numpy as np

from tfbig.errors import SourceError
from tfbig.sources import untrusted
from tfbig.sources.files import File, Package, PathLike
from tfbig.sources.volumes import compressed, raw
from tfbig.sources.volumes.grid import VoxelGrid, spacing_of
from tfbig.sources.volumes.raw import INTERLEAVED, PLANAR, Description, RawVolume, Samples

nibabel = Package("nibabel")

HEADER_BYTES: Final = 540
"""Bytes of the header of NIfTI-2; NIfTI-1 has fewer."""
MM_PER_UNIT: Final = {1: 1e3, 2: 1.0, 3: 1e-3}
"""Millimetres of a metre, a millimetre and a micrometre, by their codes."""
SPACE_UNIT: Final = 7
"""Bits of the units that are those of space; others are of time."""


def open_nifti(path: PathLike) -> RawVolume:
    """Open a NIfTI file. `.nii` is read in place; `.nii.gz` is decompressed once into a file without a name.

    Planes, rows and columns are the third, second and first axis of the file, channels the fourth or, of vectors, the
    fifth.

    Args:
        path: The file, NIfTI-1 or NIfTI-2 of any byte order.

    Raises:
        SourceError: nibabel is not installed, or the file is damaged, truncated or no volume.
        BudgetError: There is no room for the decompressed file.
    """
    found = describe_nifti(path)
    if not is_compressed(path):
        return RawVolume(File(path), found)
    samples = found.samples
    parts = compressed.chunks(path, samples.nbytes, skip=samples.offset)
    file = raw.scratch(parts, samples.nbytes, os.fspath(path))
    return RawVolume(file, replace(found, samples=replace(samples, offset=0)))


def is_compressed(path: PathLike) -> bool:
    """Tell whether a file is compressed, by its name."""
    return os.fspath(path).lower().endswith(".gz")


def describe_nifti(path: PathLike) -> Description:
    """Read what the header says; of a compressed file, little more than the header is decompressed.

    Raises:
        SourceError: nibabel is not installed, or the file is damaged or no volume.
    """
    name = os.fspath(path)
    if nibabel.missing:
        raise SourceError(
            f"{name}: needs the nibabel package ({nibabel.missing}): pip install 'tfbig[volumes]'."
        )
    if is_compressed(path):
        data = compressed.beginning(path, HEADER_BYTES)
    else:
        file = File(path)
        data = bytes(file.read(0, min(HEADER_BYTES, file.num_bytes)))
    with untrusted.reading(path, "has a header that is damaged"):
        header = parse_header(data, name)
        samples = _samples(header, name)
        slope, intercept = header.get_slope_inter()
        scaling = (1.0, 0.0) if slope is None else (float(slope), float(intercept or 0.0))
        return Description(samples, _grid(header), scaling, header.structarr.tobytes())


def parse_header(data: bytes, name: str) -> Any:
    """Parse the header in some bytes, as nibabel holds it; `name` is the file, for the error.

    Raises:
        SourceError: They are no header of a NIfTI file.
    """
    with untrusted.reading(name, "is not a NIfTI file"):
        kind = nibabel.Nifti2Header if _is_second(data) else nibabel.Nifti1Header
        header = kind.from_fileobj(io.BytesIO(data), check=False)
        if not bytes(header["magic"]).startswith((b"n+1", b"n+2")):
            raise ValueError("its header does not begin as that of NIfTI, magic n+1 or n+2")
        header.get_data_dtype()
    return header


def _is_second(data: bytes) -> bool:
    """Tell whether a header is that of NIfTI-2, whose first number is its length, 540."""
    return any(int.from_bytes(data[:4], order) == HEADER_BYTES for order in ("little", "big"))


def _samples(header: Any, name: str) -> Samples:
    """Read how the samples are stored.

    Raises:
        SourceError: The file has too many axes, or samples that are no numbers.
    """
    shape, dtype = [int(n) for n in header.get_data_shape()], header.get_data_dtype()
    axes = shape[:3] + [1] * (3 - len(shape))
    times, vectors, others = (*shape[3:5], 1, 1)[0], 1, 1
    if len(shape) > 4:
        vectors, others = shape[4], math.prod(shape[5:])
    if min(shape, default=0) < 1 or others != 1 or (times > 1 and vectors > 1):
        raise SourceError(
            f"{name}: has shape {tuple(shape)}; expected three axes of a volume, and one more for its channels. Split "
            "series of volumes with several channels into one file each."
        )
    channels, axes_of_file = times * vectors, PLANAR
    if dtype.names:  # colours, such as RGB24
        channels, axes_of_file = channels * len(dtype.names), INTERLEAVED
        if times * vectors > 1 or len({dtype[n] for n in dtype.names}) > 1:
            raise SourceError(f"{name}: has several volumes of colours; expected one.")
        dtype = dtype[0]
    offset = int(header["vox_offset"]) or header.sizeof_hdr
    if offset < header.sizeof_hdr:
        raise SourceError(
            f"{name}: has its voxels at byte {offset}; expected them behind the header, at byte {header.sizeof_hdr} or "
            "later. Write or copy the file again."
        )
    shape_read = axes[2], axes[1], axes[0], channels
    return Samples(np.dtype(dtype), shape_read, axes_of_file, offset)


def _grid(header: Any) -> VoxelGrid:
    """The place of the voxels: by the sform, else the qform, else only the spacing."""
    factor = MM_PER_UNIT.get(int(header["xyzt_units"]) & SPACE_UNIT, 1.0)
    try:
        coded = next((f() for f in (header.get_sform, header.get_qform) if f(coded=True)[1]), None)
    except Exception:  # the quaternion is invalid
        coded = None
    if coded is not None:
        affine = np.array(coded, np.float64)
        affine[:3] *= factor
        found = VoxelGrid.of_affine(affine[:, [2, 1, 0, 3]])
        if found.affine is not None:
            return found
    x, y, z = (float(n) * factor for n in np.asarray(header["pixdim"][1:4]))
    return VoxelGrid(spacing_of((z, y, x)))

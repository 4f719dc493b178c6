"""Volumes in NRRD files, `.nrrd`, and `.nhdr` with the samples in other files."""

from __future__ import annotations

import io
import math
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from tfbig.errors import SourceError, SourceWarning, reason_of
from tfbig.sources import untrusted
from tfbig.sources.files import File, Package, PathLike
from tfbig.sources.volumes import compressed, raw
from tfbig.sources.volumes.grid import VoxelGrid, spacing_of
from tfbig.sources.volumes.raw import Description, RawVolume, Samples

nrrd = Package("nrrd")

HEADER_BYTES: Final = 2**20
"""Most bytes of a header."""
MOST_AXES: Final = 16
"""Most axes of the definition of the format."""
LISTED: Final = re.compile(rb"^data ?file:\s*LIST( \d+)?\s*$", re.MULTILINE)
"""Line of a header after which the files of the samples are listed."""
COMPRESSED: Final = {"gzip": "gzip", "gz": "gzip", "bzip2": "bzip2", "bz2": "bzip2"}
TO_RAS: Final = {"L": -1.0, "R": 1.0, "P": -1.0, "A": 1.0, "S": 1.0, "I": -1.0}
TYPES: Final = {
    "i1": ("signed char", "int8", "int8_t"),
    "u1": ("uchar", "unsigned char", "uint8", "uint8_t"),
    "i2": ("short", "short int", "signed short", "signed short int", "int16", "int16_t"),
    "u2": ("ushort", "unsigned short", "unsigned short int", "uint16", "uint16_t"),
    "i4": ("int", "signed int", "int32", "int32_t"),
    "u4": ("uint", "unsigned int", "uint32", "uint32_t"),
    "i8": (
        *("longlong", "long long", "long long int", "signed long long", "signed long long int"),
        *("int64", "int64_t"),
    ),
    "u8": ("ulonglong", "unsigned long long", "unsigned long long int", "uint64", "uint64_t"),
    "f4": ("float",),
    "f8": ("double",),
}
"""Names of types in the definition of the format, by NumPy's codes."""
SPACES: Final = {
    "right-anterior-superior": "RAS",
    "left-anterior-superior": "LAS",
    "left-posterior-superior": "LPS",
}
"""Letters of spaces whose three axes are those of the patient, by name; the letters may be the name too."""


@dataclass(frozen=True)
class NrrdHeader:
    """Fields of the header of an NRRD file.

    Args:
        description: How the samples are stored, after decompression, and where; the offset is that in the file.
        file: File of the samples.
        encoding: "raw", "gzip" or "bzip2".
        from_end: Whether the samples are the last bytes of the file.
        skip: Bytes to leave out before the samples: of the file, or of what is decompressed.
        lines: Lines of the file to leave out before them, as it is stored.
    """

    description: Description
    file: Path
    encoding: str
    from_end: bool
    skip: int
    lines: int


def open_nrrd(path: PathLike) -> RawVolume:
    """Open an NRRD file. Raw samples in one file are read in place; others are decoded once into a file without a name.

    Planes, rows and columns are the spatial axes of the file, the slowest first; an axis of colours, vectors or a list
    is that of the channels, wherever it is.

    Args:
        path: The file.

    Raises:
        SourceError: pynrrd is not installed, or the file is damaged, truncated or no volume.
        BudgetError: There is no room for the decoded samples.
    """
    found, name = read_header(path), os.fspath(path)
    samples = found.description.samples
    file = File(found.file)
    start = _after_lines(file, samples.offset, found.lines)
    if found.encoding == "raw":
        file.path = name
        file.check_length(start + samples.nbytes)
        start = file.num_bytes - samples.nbytes if found.from_end else start + found.skip
    else:
        parts = compressed.chunks(
            found.file, samples.nbytes, found.encoding, start, _compressed_skip(found, start)
        )
        file, start = raw.scratch(parts, samples.nbytes, name), 0
    samples = replace(samples, offset=start)
    return RawVolume(file, replace(found.description, samples=samples))


def describe_nrrd(path: PathLike) -> Description:
    """Read what the header says of the volume; no sample is read.

    Raises:
        SourceError: pynrrd is not installed, or the file is damaged or no volume.
    """
    return read_header(path).description


def read_header(path: PathLike) -> NrrdHeader:
    """Read what the header says of the file; no sample is read.

    Raises:
        SourceError: pynrrd is not installed, or the file is damaged or no volume.
    """
    name = os.fspath(path)
    if nrrd.missing:
        raise SourceError(
            f"{name}: needs the pynrrd package ({nrrd.missing}): pip install 'tfbig[volumes]'."
        )
    whole = File(path)
    file = io.BytesIO(whole.read(0, min(HEADER_BYTES, whole.num_bytes)))
    with untrusted.reading(path, "is not an NRRD file"):
        if LISTED.search(file.getvalue()):
            raise SourceError(_several(name))
        header: Mapping[str, Any] = nrrd.read_header(file)
        if file.tell() == HEADER_BYTES:
            raise ValueError(f"its header does not end within {HEADER_BYTES} bytes")
        return _described(header, Path(path), file.tell())


def _described(header: Mapping[str, Any], path: Path, end: int) -> NrrdHeader:
    """Interpret a header, which ends at byte `end` of its file.

    Raises:
        SourceError: It is no header of a volume.
    """
    name = str(path)
    samples, spatial = _samples(header, name)
    listed = header.get("data file", header.get("datafile"))
    file = path if listed is None else _file(listed, path)
    encoding = str(header.get("encoding", "raw")).lower()
    encoding = COMPRESSED.get(encoding, encoding)
    if encoding not in ("raw", "gzip", "bzip2"):
        raise SourceError(
            f"{name}: has the encoding '{reason_of(encoding)}'; expected raw, gzip or bzip2. Save it again "
            "with one of them."
        )
    skip = int(header.get("byte skip", header.get("byteskip", 0)))
    lines = int(header.get("line skip", header.get("lineskip", 0)))
    if skip < -1 or lines < 0:
        raise ValueError(f"byte skip {skip} and line skip {lines}; expected 0 or more")
    limits = [key for key in ("old min", "old max", "oldmin", "oldmax") if key in header]
    if limits:
        warnings.warn(
            f"{name}: its values are not what is stored ({', '.join(f'{k} {header[k]}' for k in limits)}), which is "
            "not applied. Save the values themselves, as float.",
            SourceWarning,
            stacklevel=2,
        )
    placed = replace(samples, offset=end if listed is None else 0)
    found = Description(placed, _grid(header, spatial))
    return NrrdHeader(found, file, encoding, skip == -1, max(skip, 0), lines)


def _samples(header: Mapping[str, Any], name: str) -> tuple[Samples, list[int]]:
    """Read how the samples are stored, and the axes of the file that are planes, rows and columns.

    Raises:
        SourceError: The file has too many axes, or samples that are no numbers.
    """
    try:
        sizes = [int(n) for n in header["sizes"]]
        if len(sizes) != header["dimension"] or not 0 < len(sizes) <= MOST_AXES:
            raise ValueError(f"{len(sizes)} sizes for dimension {header['dimension']}")
        dtype = _dtype(header)
    except (KeyError, TypeError, ValueError) as error:
        raise SourceError(
            f"{name}: has no valid fields 'dimension', 'sizes', 'type' and 'endian' ({reason_of(error)}). "
            "Write or copy the file again."
        ) from error
    spatial = _spatial_axes(header, len(sizes))
    others = [axis for axis in range(len(sizes)) if axis not in spatial]
    channels = math.prod(sizes[axis] for axis in others)
    if len(spatial) not in (2, 3) or sum(sizes[axis] > 1 for axis in others) > 1 or min(sizes) < 1:
        raise SourceError(
            f"{name}: has sizes {tuple(sizes)}; expected three axes of a volume, and one more for its channels."
        )
    extents = [sizes[axis] for axis in reversed(spatial)]
    planes, rows, columns = ([1] * (3 - len(extents))) + extents
    letters = dict(zip(reversed(spatial), "dhw"[3 - len(spatial) :], strict=True))
    used = [axis for axis in others if sizes[axis] > 1][:1] or others[:1]
    order = [
        letters.get(axis, "c")
        for axis in reversed(range(len(sizes)))
        if axis in letters or axis in used
    ]
    axes = "".join(order)
    axes = axes if "c" in axes else f"c{axes}"
    axes = axes if "d" in axes else f"d{axes}"
    return Samples(dtype, (planes, rows, columns, channels), axes), spatial


def _spatial_axes(header: Mapping[str, Any], count: int) -> list[int]:
    """The axes of a volume, fastest first: those with a direction, or of kind domain or space, else three."""
    directions = header.get("space directions")
    if directions is not None:
        return [
            n for n, each in enumerate(directions) if each is not None and not np.isnan(each).any()
        ]
    kinds = [str(kind) for kind in header.get("kinds", [])]
    if len(kinds) == count and any(kind in ("domain", "space") for kind in kinds):
        return [n for n, kind in enumerate(kinds) if kind in ("domain", "space")][:3]
    return list(range(min(count, 3)))


def _grid(header: Mapping[str, Any], spatial: Sequence[int]) -> VoxelGrid:
    """The place of the voxels, of planes first."""
    directions = header.get("space directions")
    if directions is not None and len(spatial) == 3:
        columns = np.array([directions[axis] for axis in reversed(spatial)], float).T
        if columns.shape == (3, 3):
            space = str(header.get("space", "")).lower()
            letters = SPACES.get(space, space.upper())
            affine = np.eye(4)
            affine[:3, :3] = columns
            origin = header.get("space origin")
            affine[:3, 3] = (
                np.zeros(3) if origin is None else np.nan_to_num(np.array(origin, float))
            )
            if letters in SPACES.values():
                signs = [TO_RAS[letter] for letter in letters]
                return VoxelGrid.of_affine(np.diag([*signs, 1.0]) @ affine)
            return VoxelGrid(spacing_of(np.linalg.norm(columns, axis=0).tolist()))
    spacings = header.get("spacings")
    if spacings is None or len(spatial) != 3:
        return VoxelGrid()
    return VoxelGrid(spacing_of([float(spacings[axis]) for axis in reversed(spatial)]))


def _file(listed: str, path: Path) -> Path:
    """Find the file of the samples, which a header names.

    Raises:
        SourceError: There are several, or it is not beside the header.
    """
    if "%" in listed:
        raise SourceError(_several(str(path)))
    return untrusted.beside(path, listed)


def _several(name: str) -> str:
    return (
        f"{name}: has its samples in several files; expected one. Save it again as one .nrrd file."
    )


def _after_lines(file: File, start: int, lines: int) -> int:
    """Find the byte behind some lines of a file.

    Raises:
        SourceError: There are fewer lines.
    """
    while lines > 0:
        part = file.read(start, min(compressed.CHUNK, file.num_bytes - start))
        ends = np.flatnonzero(np.frombuffer(part, np.uint8) == ord("\n"))
        if not part:
            raise SourceError(
                f"{file.path}: is truncated: it ends {lines} lines before its samples. Write or copy the file again."
            )
        start += int(ends[lines - 1]) + 1 if lines <= len(ends) else len(part)
        lines -= len(ends)
    return start


def _compressed_skip(found: NrrdHeader, start: int) -> int:
    """Count the decompressed bytes that are left out before the samples."""
    if not found.from_end:
        return found.skip
    num_bytes = compressed.length(found.file, found.encoding, start)
    return max(num_bytes - found.description.samples.nbytes, 0)


def _dtype(header: Mapping[str, Any]) -> np.dtype[Any]:
    """The dtype of a sample as stored.

    Raises:
        ValueError: It is missing or unknown.
    """
    kind = str(header.get("type", "missing"))
    code = next((code for code, names in TYPES.items() if kind in names), None)
    if code is None:
        raise ValueError(f"type {kind}")
    if code.endswith("1"):
        return np.dtype(code)
    order = {"little": "<", "big": ">"}.get(str(header.get("endian", "missing")))
    if order is None:
        raise ValueError(f"endian {header.get('endian', 'missing')}")
    return np.dtype(order + code)

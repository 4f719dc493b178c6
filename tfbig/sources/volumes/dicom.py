"""Volumes of DICOM: the series of a folder, a file per plane, or one file with several frames."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import numpy as np

from tfbig.errors import SourceError, SourceWarning
from tfbig.sources import untrusted
from tfbig.sources.files import Package, PathLike
from tfbig.sources.source import RowArray
from tfbig.sources.volumes import dicom_frames, dicom_tags, raw
from tfbig.sources.volumes.grid import VoxelGrid, spacing_of
from tfbig.sources.volumes.raw import INTERLEAVED, Description, RawVolume, Samples
from tfbig.units import counted

pydicom = Package("pydicom")

WHOLE_SLIDE: Final = "1.2.840.10008.5.1.4.1.1.77.1.6"
"""SOP class of whole slides, which OpenSlide reads."""
UNEQUAL: Final = 0.05
"""Distances between planes that differ by this share of their median are an error."""
PARALLEL: Final = 1e-3
"""Largest difference of direction cosines of planes of a volume."""
DEFLATED: Final = "1.2.840.10008.1.2.1.99"
"""Transfer syntax of files that are compressed as a whole, of which pydicom decodes no pixels."""
MOST_FRAMES: Final = 2**16
"""Most frames of a file."""
COPIES: Final = 4
"""Copies of a frame that are in memory while it is decoded."""
_FIRST_GROUPS: Final = (b"\x02\x00", b"\x08\x00")
"""First bytes of a file without the preamble, in the order of bytes that all files have."""
DERIVED: Final = ("LOCALIZER",)
"""Kinds of images (third value of ImageType) that are no planes of the volume."""
_PIXEL_DATA: Final = 0x7FE00010
"""Tag of the pixels of a file."""
_COMPRESSED: Final = 0xFFFFFFFF
"""Length of pixels that are compressed, and have lengths of their own."""


@dataclass(frozen=True)
class Plane:
    """A plane of a volume.

    Args:
        path: Its file.
        frame: Its frame in the file, from 0.
        frames: Number of frames of the file.
        position: Centre of its first pixel in millimetres, x to the left, y to the back, z to the top; None if unknown.
        directions: Direction cosines in which its columns grow, then its rows; None if unknown.
        pixel: Millimetres from row to row and from column to column, or None.
        thickness: Distance of planes as the file says it, for planes without a position.
        scaling: Slope and intercept.
        number: Number of the image or frame, by which planes without a position are sorted.
        kind: Rows, columns, channels and dtype.
    """

    path: Path
    frame: int
    frames: int
    position: tuple[float, ...] | None
    directions: tuple[float, ...] | None
    pixel: tuple[float, ...] | None
    thickness: float | None
    scaling: tuple[float, float]
    number: int
    kind: tuple[int, int, int, str]


def open_dicom(path: PathLike) -> RawVolume:
    """Open a DICOM series, and decode its planes once into a file without a name.

    Planes are in the order of their position, from inferior to superior, right to left or anterior to posterior.
    Rescale slope and intercept are the scaling of the volume, and so is an inversion of black and white; where they
    differ from plane to plane, as those of PET do, they are applied, and the dtype is float32.

    Args:
        path: The folder of the series, or a file with several frames or one plane.

    Raises:
        SourceError: pydicom is not installed, there is no series or more than one, a file is damaged, or planes are
            missing, repeated or not parallel.
        BudgetError: There is no room for the decoded samples.
    """
    planes, description = _described(path)
    samples, name = description.samples, os.fspath(path)
    stored = sum(file.stat().st_size for file in {plane.path for plane in planes})
    untrusted.check_size(path, samples.nbytes, "its pixels", stored)
    order = sorted(range(len(planes)), key=lambda n: (str(planes[n].path), planes[n].frame))
    places = [n * (samples.nbytes // len(planes)) for n in order]
    applied = len({plane.scaling for plane in planes}) > 1
    parts = _decoded([planes[n] for n in order], samples.dtype, applied)
    return RawVolume(raw.scratch(parts, samples.nbytes, name, places), description)


def describe_dicom(path: PathLike) -> Description:
    """Read what the headers of a series say; no pixel is decoded.

    Raises:
        SourceError: As in `open_dicom`.
    """
    return _described(path)[1]


def _described(path: PathLike) -> tuple[list[Plane], Description]:
    """Read the planes of a series in order, and describe them."""
    name = os.fspath(path)
    if pydicom.missing:
        raise SourceError(
            f"{name}: needs the pydicom package ({pydicom.missing}): pip install 'tfbig[volumes]'."
        )
    planes = _one_series(_planes_of(Path(path)), name)
    with _reading(path, "has planes that cannot be put in order"):
        planes, grid = _in_order(planes, name)
    rows, columns, channels, code = planes[0].kind
    differ = len({plane.scaling for plane in planes}) > 1
    dtype, scaling = (
        (np.dtype(np.float32), (1.0, 0.0)) if differ else (np.dtype(code), planes[0].scaling)
    )
    samples = Samples(dtype, (len(planes), rows, columns, channels), INTERLEAVED)
    return planes, Description(samples, grid, scaling)


def is_series(path: PathLike) -> bool:
    """Tell whether a folder holds a DICOM file, or a file is DICOM and no whole slide."""
    first = next((file for file in _files(Path(path)) if _is_dicom(file)), None)
    if first is None or pydicom.missing:
        return False
    try:
        with _reading(first):
            return str(_read(first, ["SOPClassUID"]).get("SOPClassUID", "")) != WHOLE_SLIDE
    except SourceError:  # raised again when the series is opened
        return True


def _files(path: Path) -> list[Path]:
    """List a file, or the files of a folder; no pipes and devices, reading of which may wait for ever."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [file for file in files if file.is_file()]


def _has_preamble(path: Path) -> bool:
    """Tell whether a file begins as DICOM files do."""
    with path.open("rb") as file:
        return file.read(132)[128:] == b"DICM"


def _is_dicom(path: Path) -> bool:
    """Tell whether a file is DICOM: it begins so, or without the preamble, with its first groups and a SOP class."""
    try:
        if _has_preamble(path):
            return True
        with path.open("rb") as file:
            if file.read(2) not in _FIRST_GROUPS:
                return False
        with _reading(path):
            return "SOPClassUID" in pydicom.dcmread(
                path, stop_before_pixels=True, specific_tags=["SOPClassUID"], force=True
            )
    except (OSError, SourceError):
        return False


@contextmanager
def _reading(path: PathLike, what: str = "is not a readable DICOM file") -> Iterator[None]:
    """Read a file with pydicom, which decodes a value, and may raise or warn, wherever it is used."""
    with untrusted.reading(path, what), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about values that pydicom corrects
        yield


def _read(path: Path, tags: list[str] | None = None) -> Any:
    """Read the data set of a file without its pixels.

    Raises:
        SourceError: It is compressed as a whole, so that its size is not known.
    """
    complete = _has_preamble(path)
    syntax = (
        pydicom.filereader.read_file_meta_info(path).get("TransferSyntaxUID", "")
        if complete
        else ""
    )
    if syntax == DEFLATED:
        raise SourceError(
            f"{path}: is compressed as a whole, by the deflated transfer syntax, which is not supported. Save it "
            "uncompressed, or with compressed pixels."
        )
    return pydicom.dcmread(path, stop_before_pixels=True, specific_tags=tags, force=not complete)


def _planes_of(path: Path) -> dict[str, list[Plane]]:
    """Read the planes of every series, by its UID.

    Raises:
        SourceError: There is no DICOM file with an image.
    """
    series: dict[str, list[Plane]] = {}
    passed: dict[str, list[str]] = {}
    for file in _files(path):
        if not _is_dicom(file):
            passed.setdefault("no DICOM image", []).append(file.name)
            continue
        with _reading(file):
            data = _read(file)
            kind = [*(data.get("ImageType") or [])]
            if "Rows" not in data:
                passed.setdefault("no DICOM image", []).append(file.name)
                continue
            if len(kind) > 2 and kind[2] in DERIVED:
                passed.setdefault("a localizer", []).append(file.name)
                continue
            if reason := dicom_tags.refused(data):
                raise SourceError(f"{file}: {reason}")
            found = series.setdefault(str(data.get("SeriesInstanceUID", "")), [])
            found += _planes_of_file(data, file)
    if series:
        _say_passed(path, passed)
    if not series:
        raise SourceError(
            f"{path}: holds no DICOM image. Give the folder of one series, or a file with several frames."
        )
    return series


def _say_passed(folder: Path, passed: Mapping[str, Sequence[str]]) -> None:
    """Warn of the files of a folder that are no planes, but not of hidden files and of the index of a medium."""
    for reason, names in passed.items():
        shown = [name for name in names if not name.startswith(".") and name != "DICOMDIR"]
        if shown:
            warnings.warn(
                f"{folder}: {counted(len(shown), 'file')} passed over, {reason}: {', '.join(shown[:3])}"
                f"{', ...' if len(shown) > 3 else '.'}",
                SourceWarning,
                stacklevel=2,
            )


def _planes_of_file(data: Any, path: Path) -> list[Plane]:
    """Read the planes of a file: one, or one for each frame."""
    count = int(data.get("NumberOfFrames", 1) or 1)
    if not 1 <= count <= MOST_FRAMES:
        raise SourceError(
            f"{path}: has {count} frames; expected 1 to {MOST_FRAMES}. Split it into several volumes."
        )
    shared = _first(data.get("SharedFunctionalGroupsSequence"))
    each = data.get("PerFrameFunctionalGroupsSequence") or []
    if len(each) not in (0, count):
        raise SourceError(
            f"{path}: describes {len(each)} frames, but has {count}. Copy it again, or export the series again."
        )
    planes = [_plane(data, path, count, own, shared) for own in each or [None]]
    if count == 1:
        return planes
    if not each:
        planes = [replace(planes[0], position=None)] * count
    return [replace(plane, frame=n, number=n) for n, plane in enumerate(planes)]


def _plane(data: Any, path: Path, count: int, own: Any, shared: Any) -> Plane:
    """Describe the first plane of a file with `count` frames, or that of its functional groups `own`."""
    groups = [group for group in (own, shared) if group is not None]
    pixel = _value(groups, "PixelMeasuresSequence", "PixelSpacing", data)
    position = _value(groups, "PlanePositionSequence", "ImagePositionPatient", data)
    directions = _value(groups, "PlaneOrientationSequence", "ImageOrientationPatient", data)
    thickness = _value(groups, "PixelMeasuresSequence", "SpacingBetweenSlices", data)
    thickness = thickness or _value(groups, "PixelMeasuresSequence", "SliceThickness", data)
    slope = _value(groups, "PixelValueTransformationSequence", "RescaleSlope", data)
    intercept = _value(groups, "PixelValueTransformationSequence", "RescaleIntercept", data)
    return Plane(
        path,
        0,
        count,
        None if position is None else _finite(*position, count=3),
        None if directions is None else _finite(*directions, count=6),
        None if pixel is None else _finite(*pixel, count=2),
        None if thickness is None else float(thickness),
        dicom_tags.inverted(data, _scaling(slope, intercept)),
        int(data.get("InstanceNumber", 0) or 0),
        _kind(data, path),
    )


def _kind(data: Any, path: Path) -> tuple[int, int, int, str]:
    """Read rows, columns, channels and dtype of the planes of a file.

    Raises:
        SourceError: A plane takes far more memory than is stored.
    """
    rows, columns = int(data.Rows), int(data.Columns)
    channels, dtype = int(data.get("SamplesPerPixel", 1)), np.dtype(_code(data))
    if min(rows, columns, channels) < 1:
        raise ValueError(f"{rows} rows, {columns} columns and {channels} samples of a pixel")
    num_bytes = rows * columns * channels * dtype.itemsize
    untrusted.check_size(path, COPIES * num_bytes, "decoding one of its planes")
    return rows, columns, channels, dtype.str


def _code(data: Any) -> str:
    """NumPy's code of the dtype of a sample."""
    bits = max(int(data.get("BitsAllocated", 16)), 8)
    signed = data.get("PixelRepresentation")  # real numbers have none
    kind = "f" if signed is None and bits > 16 else "i" if signed else "u"
    return f"{kind}{bits // 8}"


def _scaling(slope: Any, intercept: Any) -> tuple[float, float]:
    """Read slope and intercept, which are 1 and 0 by default."""
    slope, intercept = _finite(1 if slope is None else slope, intercept or 0, count=2)
    return slope, intercept


def _finite(*values: Any, count: int) -> tuple[float, ...]:
    """Convert values to finite numbers.

    Raises:
        ValueError: They are not `count` finite numbers.
    """
    numbers = tuple(map(float, values))
    if len(numbers) != count or not np.isfinite(numbers).all():
        raise ValueError(f"{values}: expected {count} finite numbers")
    return numbers


def _first(sequence: Any) -> Any:
    return sequence[0] if sequence else None


def _value(groups: Sequence[Any], sequence: str, name: str, data: Any) -> Any:
    """Find a value of the functional groups of a frame, else of the file, else None."""
    for group in groups:
        item = _first(group.get(sequence))
        if item is not None and item.get(name) is not None:
            return item.get(name)
    return data.get(name)


def _one_series(series: dict[str, list[Plane]], name: str) -> list[Plane]:
    """The planes of the only series.

    Raises:
        SourceError: There are several, or planes differ in size.
    """
    if len(series) > 1:
        counts = ", ".join(str(len(planes)) for planes in series.values())
        raise SourceError(
            f"{name}: holds {len(series)} series, of {counts} planes; expected one. Move each into a folder of its own."
        )
    (planes,) = series.values()
    for plane in planes:
        if plane.kind != planes[0].kind or plane.pixel != planes[0].pixel:
            raise SourceError(
                f"{plane.path}: has {plane.kind[0]} x {plane.kind[1]} pixels of {plane.pixel} mm, other planes "
                f"{planes[0].kind[0]} x {planes[0].kind[1]} of {planes[0].pixel}. Remove the file if it is of "
                "another image."
            )
    return planes


def _in_order(planes: list[Plane], name: str) -> tuple[list[Plane], VoxelGrid]:
    """Put the planes in the order of their position, and find the grid of the volume.

    Raises:
        SourceError: Planes are missing, repeated or not parallel.
    """
    first = planes[0]
    if any(plane.position is None or plane.directions is None for plane in planes):
        ordered = sorted(planes, key=lambda plane: plane.number)
        return ordered, _grid_without_position(first)
    directions = np.array([plane.directions for plane in planes])
    if np.abs(directions - directions[0]).max() > PARALLEL:
        raise SourceError(
            f"{name}: its planes are not parallel; expected one direction. Remove localizers, or export the series "
            "again."
        )
    across, down = directions[0][:3], directions[0][3:]
    normal = np.cross(across, down)
    if normal[np.abs(normal).argmax()] < 0:
        normal = -normal
    along = np.array([plane.position for plane in planes]) @ normal
    order = np.argsort(along, kind="stable")
    ordered = [planes[n] for n in order]
    step = _step(along[order], ordered, name)
    step = (step or ordered[0].thickness or 0.0) * 1.0
    rows, columns = first.pixel or (0.0, 0.0)
    affine = np.eye(4)
    affine[:3, 0], affine[:3, 1], affine[:3, 2] = normal * step, down * rows, across * columns
    if len(ordered) > 1:
        ends = np.array([ordered[0].position, ordered[-1].position])
        affine[:3, 0] = (ends[1] - ends[0]) / (len(ordered) - 1)
    affine[:3, 3] = ordered[0].position
    grid = VoxelGrid.of_affine(np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine)
    return ordered, grid if grid.affine else _grid_without_position(first)


def _grid_without_position(plane: Plane) -> VoxelGrid:
    """The spacing as the file of a plane says it."""
    rows, columns = plane.pixel or (0.0, 0.0)
    return VoxelGrid(spacing_of((plane.thickness or 0.0, rows, columns)))


def _step(along: RowArray, planes: Sequence[Plane], name: str) -> float:
    """Find the distance of planes; 0 for a single one.

    Raises:
        SourceError: Planes are missing or repeated.
    """
    if len(along) == 1:
        return 0.0
    gaps = np.diff(along)
    step = float(np.median(gaps))
    if step <= 0 or (gaps < step * UNEQUAL).any():
        place = int(gaps.argmin())
        raise SourceError(
            f"{name}: two planes are at the same place, {planes[place].path.name} and "
            f"{planes[place + 1].path.name}; expected one volume. Separate the phases or echoes of the series into a "
            "folder each."
        )
    worst = int(np.abs(gaps - step).argmax())
    if abs(gaps[worst] - step) <= UNEQUAL * step:
        return step
    missing = round(float(gaps[worst] / step)) - 1
    whole = np.abs(gaps / step - np.rint(gaps / step)).max() <= UNEQUAL
    reason = f"{missing} planes are missing" if whole else "planes have unequal distances"
    raise SourceError(
        f"{name}: {reason}: {gaps[worst]:.3g} mm between {planes[worst].path.name} and {planes[worst + 1].path.name}, "
        f"{step:.3g} mm elsewhere. Copy the whole series, or resample it to equal distances."
    )


def _decoded(planes: Sequence[Plane], dtype: np.dtype[Any], applied: bool) -> Iterator[bytes]:
    """Yield the samples of each plane; the planes of a file follow one another, and are decoded one at a time."""
    for path, of_file in groupby(planes, key=lambda plane: plane.path):
        first, *others = of_file
        _check_length(first)
        frames = pydicom.pixels.iter_pixels(path if _has_preamble(path) else _whole(path))
        for plane in (first, *others):
            pixels = _next_frame(frames, plane)
            if applied:
                pixels = pixels.astype(np.float64) * plane.scaling[0] + plane.scaling[1]
            yield np.ascontiguousarray(pixels.astype(dtype)).tobytes()


def _check_length(plane: Plane) -> None:
    """Check that a file has the pixels that its header says, of which rows or columns may be wrong.

    Raises:
        SourceError: Frames that are compressed have another size, or there is at least a row more of others.
    """
    rows, columns, channels, code = plane.kind
    with _reading(plane.path):
        tags = ["PixelData", "ExtendedOffsetTable", "ExtendedOffsetTableLengths"]
        data = pydicom.dcmread(plane.path, defer_size=1024, force=True, specific_tags=tags)
        pixels = data.get_item(_PIXEL_DATA)
        length = getattr(pixels, "length", _COMPRESSED)
        if pixels is not None and length == _COMPRESSED:
            offset = pixels.file_tell if hasattr(pixels, "file_tell") else pixels.value_tell
            dicom_frames.check(plane.path, data, offset, plane.frames, rows, columns)
    row = columns * channels * np.dtype(code).itemsize
    if length != _COMPRESSED and length >= plane.frames * rows * row + max(row, 2):
        raise SourceError(
            f"{plane.path}: holds {length} bytes of pixels; expected {plane.frames * rows * row}, {plane.frames} x "
            f"{rows} rows x {columns} columns, by its header. Correct Rows and Columns, or copy it again."
        )


def _whole(path: Path) -> Any:
    """Read the data set of a file without the preamble, which does not say how its pixels are encoded."""
    with _reading(path):
        data = pydicom.dcmread(path, force=True)
        if "TransferSyntaxUID" not in data.file_meta:
            implicit, _ = data.original_encoding
            explicit, plain = pydicom.uid.ExplicitVRLittleEndian, pydicom.uid.ImplicitVRLittleEndian
            data.file_meta.TransferSyntaxUID = plain if implicit else explicit
        return data


def _next_frame(frames: Iterator[Any], plane: Plane) -> Any:
    """Decode the pixels of the next plane of a file.

    Raises:
        SourceError: They cannot be decoded, or are not what the header says.
    """
    with _reading(plane.path, "its pixels cannot be decoded"):
        pixels = next(frames, None)
    if pixels is None:
        raise SourceError(
            f"{plane.path}: is truncated: it has {plane.frame} of {plane.frames} frames. Copy it again."
        )
    dtype = np.dtype(plane.kind[3])
    found = pixels.shape if pixels.ndim > 2 else (*pixels.shape, 1)
    if found != tuple(plane.kind[:3]) or not np.can_cast(pixels.dtype, dtype, "same_kind"):
        raise SourceError(
            f"{plane.path}: holds {pixels.dtype} pixels of shape {pixels.shape}; expected {dtype} of {plane.kind[0]} x "
            f"{plane.kind[1]}. Copy it again."
        )
    return pixels

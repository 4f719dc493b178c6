"""Volumes of plain samples: in a file, in memory, or decoded once into a file without a name."""

from __future__ import annotations

import itertools
import math
import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from tfbig.errors import BudgetError, SourceError
from tfbig.sources.arrays import file_offset, is_mapped
from tfbig.sources.files import File, still_open
from tfbig.sources.source import RowArray
from tfbig.sources.volumes.grid import VoxelGrid
from tfbig.sources.volumes.volume import Box, Volume
from tfbig.units import format_bytes

PLANAR: Final = "cdhw"
"""Axes of a file that holds one channel after the other, slowest first."""
INTERLEAVED: Final = "dhwc"
"""Axes of a file that holds the channels of a voxel together, slowest first."""


@dataclass(frozen=True)
class Samples:
    """Storage of the samples of a volume in a file.

    Args:
        dtype: Dtype as stored, including its byte order.
        shape: Planes, rows, columns and channels.
        axes: Letters of the axes of the file, slowest first: d, h and w in this order, and c at any place.
        offset: First byte.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, int, int, int]
    axes: str = PLANAR
    offset: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all samples."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Description:
    """Description of a volume in the header of its file.

    Args:
        samples: How the samples are stored; of compressed files, after decompression.
        grid: Place of the voxels in space.
        scaling: Slope and intercept.
        header: Header of a NIfTI file, else None.
    """

    samples: Samples
    grid: VoxelGrid
    scaling: tuple[float, float] = (1.0, 0.0)
    header: bytes | None = None


@final
class RawVolume(Volume):
    """A volume whose samples are stored uncompressed in a file.

    Args:
        file: The file.
        description: What it holds.

    Raises:
        SourceError: The file is too short, or dtype or shape are not valid for a volume.
    """

    def __init__(self, file: File, description: Description) -> None:
        samples, name = description.samples, file.path
        super().__init__(samples.shape, samples.dtype, name, description.grid, description.scaling)
        file.check_length(samples.offset + samples.nbytes)
        self.header = description.header
        self._samples = samples
        self._file: File | None = file

    def _read_box(self, box: Box) -> RowArray:
        """Read whole rows of one plane and channel at a time, as they lie in the file."""
        file, samples = still_open(self._file, self.name), self._samples
        ranges = dict(zip("dhw", box, strict=True)) | {"c": (0, self.shape[3])}
        sizes = dict(zip("dhwc", self.shape, strict=True))
        place = samples.axes.index("h")
        outer, inner = samples.axes[:place], samples.axes[place:]
        row_shape = tuple(sizes[axis] for axis in inner[1:])
        first, last = ranges["h"]
        out = np.empty([b - a for a, b in (*box, ranges["c"])], self.dtype)
        into = out.transpose(["dhwc".index(axis) for axis in samples.axes])
        columns = tuple(slice(*ranges[axis]) for axis in inner[1:])
        for index in itertools.product(*(range(*ranges[axis]) for axis in outer)):
            start = 0
            for axis, position in zip(outer, index, strict=True):
                start = start * sizes[axis] + position
            rows = file.read_rows(
                samples.offset,
                samples.dtype,
                (last - first, *row_shape),
                start * sizes["h"] + first,
            )
            place_in = tuple(i - ranges[a][0] for a, i in zip(outer, index, strict=True))
            into[place_in] = rows[(slice(None), *columns)]
        return out

    def close(self) -> None:
        """Close the file; reading then raises SourceError."""
        self._file = None


@final
class ArrayVolume(Volume):
    """A volume in memory.

    Args:
        array: `[D, H, W]` or `[D, H, W, C]`. It is not copied, so later changes to it are seen.
        name: Name for error messages.
        grid: Place of the voxels in space.
        scaling: Slope and intercept.

    Example:
        >>> volume = tfbig.sources.ArrayVolume(np.zeros((5, 4, 3), "int16"))
        >>> volume.shape, volume.orientation is None
        ((5, 4, 3, 1), True)
    """

    def __init__(
        self,
        array: npt.NDArray[Any],
        name: str = "array",
        grid: VoxelGrid = VoxelGrid(),  # noqa: B008  (a frozen value)
        scaling: tuple[float, float] = (1.0, 0.0),
    ) -> None:
        super().__init__(array.shape, array.dtype, name, grid, scaling)
        self._array = array.reshape(self.shape)

    def _read_box(self, box: Box) -> RowArray:
        part = self._array[tuple(slice(*each) for each in box)].astype(self.dtype, copy=False)
        part = np.ascontiguousarray(part).view()
        part.flags.writeable = False
        return part


def volume_of(array: npt.NDArray[Any]) -> Volume:
    """Make a volume of an array `[D, H, W, C]`, in memory or memory-mapped.

    Raises:
        SourceError: The array is no volume, or its file does not store it plane after plane.
    """
    if not is_mapped(array):
        return ArrayVolume(array)
    name = str(array.filename or "memory map")
    if array.filename is None or array.mode == "c" or not array.flags.c_contiguous:
        raise SourceError(
            f"{name}: the memory map has no file name, is copy-on-write, or is not stored plane after plane; "
            "expected C order. Map the whole file and use Volume.crop, or copy it into memory."
        )
    planes, rows, columns, channels = array.shape
    samples = Samples(
        array.dtype, (planes, rows, columns, channels), INTERLEAVED, file_offset(array)
    )
    return RawVolume(File(array.filename), Description(samples, VoxelGrid()))


def scratch(
    parts: Iterable[bytes | memoryview],
    num_bytes: int,
    name: str,
    places: Iterable[int] | None = None,
) -> File:
    """Write decoded samples into a file without a name; the system deletes it when it is closed.

    Each of the parts begins at one of `places`, bytes; by default they follow one another. `name` is the file that
    is decoded, for errors.

    It lies in the temporary folder, which the variable TMPDIR sets.

    Raises:
        BudgetError: The temporary folder has less free space.
        SourceError: There are fewer bytes, or they cannot be written.
    """
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if num_bytes > free:
        raise BudgetError(
            f"{name}: is compressed, and needs {format_bytes(num_bytes)} for its decoded samples in {folder}, where "
            f"{format_bytes(free)} are free. Set TMPDIR to a folder on a larger disk, or store it uncompressed."
        )
    with tempfile.TemporaryFile(dir=folder) as temporary:
        written = 0
        try:
            if places is None:
                for part in parts:
                    written += temporary.write(part)
            else:
                for place, part in zip(places, parts, strict=False):
                    temporary.seek(place)
                    written += temporary.write(part)
            temporary.flush()
        except SourceError:  # raised by the parts; it is an OSError too
            raise
        except OSError as error:
            raise SourceError(
                f"{name}: its decoded samples cannot be written to {folder}: {error.strerror}."
            ) from error
        if written < num_bytes:
            raise SourceError(
                f"{name}: is truncated: it holds {written} bytes of samples, its header asks for {num_bytes}. Write or "
                "copy the file again."
            )
        return File.of_descriptor(os.dup(temporary.fileno()), name)

"""Base class of volumes, and the views of one volume: boxes, turned axes, real values."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from tfbig.errors import SourceError
from tfbig.sources import boxes
from tfbig.sources.boxes import Range
from tfbig.sources.source import Readable, RowArray, Source, interval
from tfbig.sources.volumes import grid as grids
from tfbig.sources.volumes.grid import Spacing, VoxelGrid

Box: TypeAlias = tuple[Range, Range, Range]
"""First and last (exclusive) plane, row and column."""
AXES = ("planes", "rows", "columns")


class Volume(Source):
    """A volume `[D, H, W, C]` that is read by planes or by boxes.

    `D` counts the slowest axis of the file, which for most files are the planes of the scanner, and `W` the fastest.
    Subclasses define `_read_box(box)`, which is only called with valid boxes that are not empty.

    Args:
        shape: `(planes, rows, columns)` or `(planes, rows, columns, channels)`.
        dtype: Dtype of one sample: boolean, integer or real.
        name: Name for error messages: a path or a short description.
        grid: Place of the voxels in space.
        scaling: Slope and intercept: the real value of a sample is `slope * sample + intercept`.

    Attributes:
        shape: `(planes, rows, columns, channels)`.
        grid: Place of the voxels in space.
        scaling: Slope and intercept.
        header: Header of a NIfTI file, with which a mask gets the same geometry; else None.

    Raises:
        SourceError: The shape does not have three or four axes, an axis has size 0, or the dtype is not boolean,
            integer or real.

    Example:
        >>> volume = tfbig.open(np.arange(24, dtype="int16").reshape(2, 3, 4, 1))
        >>> volume.read_box((1, 2), (0, 2), (3, 4))[..., 0].tolist()
        [[[15], [19]]]
    """

    what = "volume"
    rows = "planes"

    def __init__(
        self,
        shape: Sequence[int],
        dtype: npt.DTypeLike,
        name: str,
        grid: VoxelGrid = VoxelGrid(),  # noqa: B008  (a frozen value)
        scaling: tuple[float, float] = (1.0, 0.0),
    ) -> None:
        Readable.__init__(self, _volume_shape(shape, name), dtype, name)
        self.mpp = None
        self.grid = grid
        self.scaling = scaling
        self.header: bytes | None = None

    @property
    def spacing(self) -> Spacing | None:
        """Millimetres from plane to plane, row to row and column to column; None if unknown."""
        return self.grid.spacing

    @property
    def orientation(self) -> str | None:
        """Direction of the patient in which planes, rows and columns grow, such as `'SAR'`; None if unknown."""
        return self.grid.orientation

    @property
    def affine(self) -> npt.NDArray[np.float64] | None:
        """Affine `[4, 4]` from `(plane, row, column, 1)` to millimetres, as in `VoxelGrid`; None if unknown."""
        return None if self.grid.affine is None else np.array(self.grid.affine)

    def read_box(self, planes: Range, rows: Range, columns: Range) -> RowArray:
        """Read a box, in memory of the size of the box and of one plane.

        Args:
            planes: `(start, stop)`.
            rows: `(start, stop)`.
            columns: `(start, stop)`.

        Returns:
            C-contiguous array `[planes, rows, columns, C]` of `dtype`; it may be a read-only view.

        Raises:
            IndexError: The box is empty or out of bounds.
            SourceError: The file is damaged there, was closed, or has become shorter.
        """
        return np.ascontiguousarray(self._read_box(self._box((planes, rows, columns))))

    def crop(  # type: ignore[override]
        self,
        planes: Range | None = None,
        rows: Range | None = None,
        columns: Range | None = None,
    ) -> Volume:
        """Show a box of the volume as a volume, without reading anything.

        Args:
            planes: `(start, stop)`, or None for all planes.
            rows: `(start, stop)`, or None for all rows.
            columns: `(start, stop)`, or None for all columns.

        Raises:
            IndexError: The box is empty or out of bounds.
        """
        return CroppedVolume(self, self._box((planes, rows, columns)))

    def turned(self, orientation: str) -> Volume:
        """Turn the axes of the volume to the order and direction of an orientation, without reading anything.

        Args:
            orientation: Such as `'SAR'`: planes grow to the top of the patient, rows to the front, columns to the
                right.

        Raises:
            SourceError: The file does not say how it is oriented.
            ValueError: It is no orientation.
        """
        if not grids.is_orientation(orientation):
            raise ValueError(
                f"orientation '{orientation}': expected three letters, one of R and L, one of A and P, one of S and I, "
                "such as 'SAR'."
            )
        order, flipped = grids.turn_to(self.orientation, orientation, self.name)
        if order == (0, 1, 2) and not any(flipped):
            return self
        return Turned(self, order, flipped)

    def values(self) -> Volume:
        """The volume with its scaling applied, as float32; nothing is read."""
        return Values(self)

    def changed_handle(self, seed: int, augmented: bool = True, jitter: float = 0.0) -> str:
        """Raise SourceError: volumes are not augmented by handle."""
        raise SourceError(f"{self.name}: is a volume; expected an image [H, W, C] to augment.")

    @abstractmethod
    def _read_box(self, box: Box) -> RowArray:
        """Read the box `[planes, rows, columns, C]`, which is valid and not empty."""

    def _read_window(self, start: int, stop: int, left: int, right: int) -> RowArray:
        """Read planes `start:stop` and rows `left:right` with all columns: a window lies along the first two axes."""
        return self.read_box((start, stop), (left, right), (0, self.shape[2]))

    def _box(self, ranges: Sequence[Range | None]) -> Box:
        """Check that a box is inside the volume and not empty, and replace None by whole axes."""
        planes, rows, columns = (
            interval(self.name, axis, each, extent)
            for axis, each, extent in zip(AXES, ranges, self.shape, strict=False)
        )
        return planes, rows, columns


class VolumeView(Volume):
    """A volume computed from another one as it is read; subclasses define `_read_box`.

    Args:
        inner: The volume to read from.
        shape: Shape of the view.
        dtype: Dtype of the view.
        name: Name for error messages.
        grid: Place of the voxels of the view.
        scaling: Slope and intercept of the view; by default those of `inner`.
    """

    def __init__(
        self,
        inner: Volume,
        shape: Sequence[int],
        dtype: npt.DTypeLike,
        name: str,
        grid: VoxelGrid,
        scaling: tuple[float, float] | None = None,
    ) -> None:
        super().__init__(shape, dtype, name, grid, scaling or inner.scaling)
        self._inner = inner

    def close(self) -> None:
        """Close the volume that this view reads from."""
        self._inner.close()


@final
class CroppedVolume(VolumeView):
    """A box of a volume; returned by `Volume.crop`."""

    def __init__(self, volume: Volume, box: Box) -> None:
        self._starts = [start for start, _ in box]
        shape = [stop - start for start, stop in box]
        where = ", ".join(f"{start}:{stop}" for start, stop in box)
        grid = volume.grid.cropped(self._starts)
        super().__init__(
            volume, (*shape, volume.shape[3]), volume.dtype, f"{volume.name}[{where}]", grid
        )

    def _read_box(self, box: Box) -> RowArray:
        return self._inner.read_box(*boxes.moved(box, self._starts))


@final
class Turned(VolumeView):
    """A volume with its axes in another order, and some of them reversed.

    Args:
        volume: The volume.
        order: For each axis of the result, the axis of `volume`.
        flipped: For each axis of the result, whether it is reversed.

    Example:
        >>> volume = tfbig.open(np.arange(24, dtype="int16").reshape(2, 3, 4, 1))
        >>> turned = tfbig.sources.Turned(volume, (2, 0, 1), (True, False, False))
        >>> turned.shape, turned.read(0, 1)[0, :, 0, 0].tolist()
        ((4, 2, 3, 1), [3, 15])
    """

    def __init__(
        self,
        volume: Volume,
        order: Sequence[int],
        flipped: Sequence[bool] = (False, False, False),
    ) -> None:
        self._order, self._flipped = tuple(order), tuple(flipped)
        size = volume.shape[:3]
        super().__init__(
            volume,
            (*(size[axis] for axis in order), volume.shape[3]),
            volume.dtype,
            volume.name,
            volume.grid.turned(order, flipped, size),
        )

    def _read_box(self, box: Box) -> RowArray:
        ranges: list[Range] = [(0, 0)] * 3
        for (start, stop), axis, reverse in zip(box, self._order, self._flipped, strict=True):
            extent = self._inner.shape[axis]
            ranges[axis] = (extent - stop, extent - start) if reverse else (start, stop)
        part = self._inner.read_box(*ranges).transpose(*self._order, 3)
        return part[tuple(slice(None, None, -1 if reverse else 1) for reverse in self._flipped)]


class MappedVolume(VolumeView):
    """A view whose voxels each depend on the same voxel of the other volume; subclasses define `_convert`."""

    def __init__(
        self,
        volume: Volume,
        dtype: npt.DTypeLike,
        name: str,
        scaling: tuple[float, float] = (1.0, 0.0),
    ) -> None:
        super().__init__(volume, volume.shape, dtype, name, volume.grid, scaling)

    @abstractmethod
    def _convert(self, samples: RowArray) -> RowArray:
        """Convert voxels of the other volume to voxels `[planes, rows, columns, C]` of this view."""

    def _read_box(self, box: Box) -> RowArray:
        return self._convert(self._inner.read_box(*box))


@final
class Values(MappedVolume):
    """The real values of a volume, float32; returned by `Volume.values`."""

    def __init__(self, volume: Volume) -> None:
        super().__init__(volume, np.float32, volume.name)

    def _convert(self, samples: RowArray) -> RowArray:
        slope, intercept = self._inner.scaling
        if (slope, intercept) == (1.0, 0.0):
            return samples.astype(np.float32)
        return (samples.astype(np.float64) * slope + intercept).astype(np.float32)


def _volume_shape(shape: Sequence[int], name: str) -> tuple[int, int, int, int]:
    """Give `shape` a channel axis."""
    extents = tuple(int(extent) for extent in shape)
    if len(extents) not in (3, 4) or 0 in extents:
        raise SourceError(
            f"{name}: has shape {extents}; expected [planes, rows, columns] or [planes, rows, columns, channels], none "
            "of them 0. Take one volume out of a series, and put the channels last."
        )
    planes, rows, columns, channels = (*extents, 1)[:4]
    return planes, rows, columns, channels


def box_of(shape: Sequence[Any]) -> Box:
    """The box of a whole volume, whose shape begins with planes, rows and columns."""
    planes, rows, columns = ((0, int(extent)) for extent in shape[:3])
    return planes, rows, columns

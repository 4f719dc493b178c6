"""Views of volumes: other voxel sizes, channels of several files, and padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from tfbig.errors import SourceError
from tfbig.sources import boxes, untrusted
from tfbig.sources.source import RowArray
from tfbig.sources.volumes.grid import Spacing, VoxelGrid
from tfbig.sources.volumes.volume import Box, Volume, VolumeView
from tfbig.units import ceil_div

SAME_PLACE = 0.1
"""Largest distance between the corners of volumes on the same grid, as a share of the shortest side of a voxel."""


class Interpolation(NamedTuple):
    """Weights of resampling along one axis.

    Args:
        first: First voxel read for each voxel of the result, `[n]`.
        weights: Weights of the voxels from there, `[n, taps]`.
    """

    first: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float64]


@final
class Resampled(VolumeView):
    """A volume with voxels of another size, over the same extent.

    Images are interpolated linearly along each axis; where voxels become larger, the triangle of the interpolation is
    widened by the same factor, so that all voxels count (as `resize(anti_aliasing=True)` of scikit-image does with a
    Gaussian). Labels take the nearest voxel. Edges are repeated. Integers are rounded. No voxel depends on which box is
    read.

    Args:
        volume: The volume.
        size: Planes, rows and columns of the result.
        nearest: Whether to take the nearest voxel, as for labels.

    Raises:
        SourceError: A size is below 1.

    Example:
        >>> volume = tfbig.open(np.arange(4, dtype="float32").reshape(4, 1, 1, 1))
        >>> tfbig.sources.Resampled(volume, (8, 1, 1)).read(0, 8).ravel().tolist()
        [0.0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3.0]
        >>> tfbig.sources.Resampled(volume, (2, 1, 1), nearest=True).read(0, 2).ravel().tolist()
        [1.0, 3.0]
    """

    def __init__(self, volume: Volume, size: Sequence[int], nearest: bool = False) -> None:
        if min(size) < 1:
            raise SourceError(
                f"{volume.name}: resampled to {tuple(size)} voxels; expected at least 1."
            )
        self._factors = [old / new for old, new in zip(volume.shape, size, strict=False)]
        self._nearest = nearest
        name = f"{volume.name} as {' x '.join(map(str, size))}"
        grid = volume.grid.scaled(self._factors)
        super().__init__(volume, (*size, volume.shape[3]), volume.dtype, name, grid)

    def _read_box(self, box: Box) -> RowArray:
        """Read the planes that one plane of the result needs at a time, so that memory is bounded."""
        taps = [
            _taps(each, factor, extent, self._nearest)
            for each, factor, extent in zip(box, self._factors, self._inner.shape, strict=False)
        ]
        windows = [
            _window(tap, extent) for tap, extent in zip(taps, self._inner.shape, strict=False)
        ]
        out = np.empty([*(stop - start for start, stop in box), self.shape[3]], self.dtype)
        for plane in range(len(out)):
            single = Interpolation(
                taps[0].first[plane : plane + 1], taps[0].weights[plane : plane + 1]
            )
            planes = _window(single, self._inner.shape[0])
            part = self._inner.read_box(planes, windows[1], windows[2])
            starts = (planes[0], windows[1][0], windows[2][0])
            out[plane] = self._converted(part, (single, *taps[1:]), starts)[0]
        return out

    def _converted(
        self, part: RowArray, taps: Sequence[Interpolation], starts: Sequence[int]
    ) -> npt.NDArray[Any]:
        """Compute voxels of the result, from voxels of the volume that begin at `starts`."""
        if self._nearest:
            index = [tap.first - start for tap, start in zip(taps, starts, strict=True)]
            return np.asarray(part[np.ix_(*index)])
        result = part.astype(np.float64)
        for axis, (tap, start) in enumerate(zip(taps, starts, strict=True)):
            result = _interpolated(result, tap, start, axis)
        if self.dtype.kind == "f":
            return result.astype(self.dtype)
        if self.dtype.kind == "b":
            return result >= 0.5
        return np.rint(result).astype(self.dtype)


@final
class Stacked(Volume):
    """A volume whose channels are in several files.

    Args:
        volumes: The channels, in order; all of one shape, and in one place.

    Raises:
        SourceError: They differ in shape or place.
    """

    def __init__(self, volumes: Sequence[Volume]) -> None:
        first = volumes[0]
        for volume in volumes[1:]:
            check_same_grid(volume, first, "another channel")
        channels = sum(volume.shape[3] for volume in volumes)
        dtype = np.result_type(*(volume.dtype for volume in volumes))
        super().__init__((*first.shape[:3], channels), dtype, first.name, first.grid, first.scaling)
        if any(volume.scaling != first.scaling for volume in volumes):
            raise SourceError(
                f"{first.name}: its channels have different scalings; stack their real values, volume.values()."
            )
        self.header = first.header
        self._volumes = tuple(volumes)

    def _read_box(self, box: Box) -> RowArray:
        return np.concatenate([v.read_box(*box).astype(self.dtype) for v in self._volumes], axis=3)

    def close(self) -> None:
        """Close the files."""
        for volume in self._volumes:
            volume.close()


@final
class PaddedVolume(VolumeView):
    """A volume with voxels added at the end of each axis, up to a multiple.

    Args:
        volume: The volume.
        multiples: Planes, rows and columns become multiples of these.
        fill: Value of the added voxels.
        least: Smallest number of planes, rows and columns.
    """

    def __init__(
        self,
        volume: Volume,
        multiples: Sequence[int],
        fill: float = 0,
        least: Sequence[int] = (1, 1, 1),
    ) -> None:
        self._fill = fill
        size = [
            ceil_div(max(extent, low), multiple) * multiple
            for extent, multiple, low in zip(volume.shape, multiples, least, strict=False)
        ]
        name = f"{volume.name} padded to {' x '.join(map(str, size))}"
        super().__init__(volume, (*size, volume.shape[3]), volume.dtype, name, volume.grid)

    def _read_box(self, box: Box) -> RowArray:
        return boxes.padded(self._inner.read_box, box, self._inner.shape, self._fill, self.dtype)


def size_at(volume: Volume, spacing: Spacing) -> tuple[int, int, int]:
    """The planes, rows and columns of a volume at another spacing, in millimetres along each axis.

    Raises:
        SourceError: The spacing of the volume is unknown, or far too large.
    """
    if volume.spacing is None:
        raise SourceError(
            f"{volume.name}: does not say its spacing; expected millimetres per voxel in its header. Correct the "
            "header, or leave out the spacing."
        )
    with untrusted.reading(volume.name, f"cannot be resampled to {tuple(spacing)} mm"):
        planes, rows, columns = (
            max(round(n * old / new), 1)
            for n, old, new in zip(volume.shape, volume.spacing, spacing, strict=False)
        )
        voxel = volume.shape[3] * volume.dtype.itemsize
        voxels = math.prod(volume.shape[:3])
        untrusted.check_size(
            volume.name, planes * rows * columns * voxel, "its voxels", stored=voxels * voxel
        )
    return planes, rows, columns


def at_spacing(volume: Volume, spacing: Spacing, nearest: bool = False) -> Volume:
    """Resample a volume to a spacing, as `Resampled` does; unchanged if it has it.

    The size is rounded to whole voxels over the same extent, so the spacing of the result is nearly that asked for.

    Args:
        volume: The volume.
        spacing: Millimetres from plane to plane, row to row and column to column.
        nearest: Whether to take the nearest voxel, as for labels.

    Raises:
        SourceError: The spacing of the volume is unknown.

    Example:
        >>> grid = tfbig.sources.VoxelGrid((3.0, 1.0, 1.0))
        >>> volume = tfbig.sources.ArrayVolume(np.zeros((4, 6, 6)), grid=grid)
        >>> tfbig.sources.at_spacing(volume, (1.5, 1.5, 1.5)).shape
        (8, 4, 4, 1)
    """
    size = size_at(volume, spacing)
    return volume if size == volume.shape[:3] else Resampled(volume, size, nearest)


def check_same_grid(volume: Volume, other: Volume, what: str) -> None:
    """Check that a volume has the shape and the place of another; `what` is the other one, for the error.

    Raises:
        SourceError: It has not.
    """
    if volume.shape[:3] != other.shape[:3]:
        sizes = [" x ".join(map(str, each.shape[:3])) for each in (volume, other)]
        raise SourceError(
            f"{volume.name}: is {sizes[0]} voxels; expected {sizes[1]}, those of {what}, {other.name}. Save it on the "
            "same grid."
        )
    distance = volume.grid.differs(other.grid, volume.shape[:3])
    voxel = min(other.spacing or (1.0, 1.0, 1.0))
    if not distance <= SAME_PLACE * voxel:
        raise SourceError(
            f"{volume.name}: lies {distance:.3g} mm away from {what}, {other.name} "
            f"({_orientations(volume.grid, other.grid)}); expected the same affine. Resample it to the grid of the "
            "image, or correct its header."
        )


def _orientations(one: VoxelGrid, other: VoxelGrid) -> str:
    return f"orientations {one.orientation or 'unknown'} and {other.orientation or 'unknown'}"


def _taps(window: tuple[int, int], factor: float, extent: int, nearest: bool) -> Interpolation:
    """The weights for voxels `window` of an axis whose voxels are `factor` times as large."""
    centre = (np.arange(*window) + 0.5) * factor - 0.5
    if nearest or factor == 1:
        first = np.clip(np.floor(centre + 0.5), 0, extent - 1).astype(np.int64)
        return Interpolation(first, np.ones((len(first), 1)))
    reach = max(factor, 1.0)
    count = math.ceil(2 * reach) + 1
    first = np.floor(centre - reach).astype(np.int64) + 1
    places = first[:, None] + np.arange(count)
    weights = np.maximum(1 - np.abs(places - centre[:, None]) / reach, 0)
    return Interpolation(first, weights / weights.sum(1, keepdims=True))


def _window(taps: Interpolation, extent: int) -> tuple[int, int]:
    """The range of voxels that the weights need."""
    last = int(taps.first.max()) + taps.weights.shape[1]
    start = min(max(int(taps.first.min()), 0), extent - 1)
    return start, max(min(last, extent), start + 1)


def _interpolated(
    part: npt.NDArray[np.float64], taps: Interpolation, start: int, axis: int
) -> npt.NDArray[np.float64]:
    """Sum with weights along an axis; the voxels beyond the edges are those at the edges.

    One weight after the other, so that a sum has the same order whatever is read.
    """
    shape = [1] * part.ndim
    shape[axis] = -1
    total = None
    for tap in range(taps.weights.shape[1]):
        index = np.clip(taps.first + tap - start, 0, part.shape[axis] - 1)
        term = part.take(index, axis) * taps.weights[:, tap].reshape(shape)
        total = term if total is None else total + term
    assert total is not None
    return total

"""Images in zarr arrays, and in OME-Zarr pyramids of them."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from tfbig.errors import Advice, SourceError, SourceWarning, reason_of
from tfbig.geometry import cells
from tfbig.geometry.background import Background
from tfbig.sources import trial
from tfbig.sources.background import SMALLEST
from tfbig.sources.files import Package, PathLike
from tfbig.sources.resolution import Resolution
from tfbig.sources.slides.slide import Slide
from tfbig.sources.slides.stacks import Plane, chosen_planes
from tfbig.sources.slides.zarr_chunks import (
    check_array,
    check_chunk,
    chunks_of_window,
    decoded_by_c,
    stored_chunks,
)
from tfbig.sources.source import RowArray, Source
from tfbig.units import ceil_div

zarr = Package("zarr")

_MAX_CHECKED = 2**18
"""Most chunks that are remembered as checked, in some 50 MB."""
_UM_PER_UNIT = {
    "angstrom": 1e-4,
    "nanometer": 1e-3,
    "micrometer": 1.0,
    "millimeter": 1e3,
    "centimeter": 1e4,
    "meter": 1e6,
    **dict.fromkeys(("um", "\u00b5m", "\u03bcm", "micron"), 1.0),
}
_OLD_AXES = "tczyx"
"""Axes of OME-Zarr before version 0.3, which does not name them."""


class Levels(NamedTuple):
    """Contents of an OME-Zarr image.

    Args:
        arrays: Arrays of the levels.
        axes: Letters of their axes, such as 'czyx'.
        resolution: Resolution of level 0.
        channel_names: Names of the channels, if they have any.
    """

    arrays: list[Any]
    axes: str
    resolution: Resolution = Resolution()
    channel_names: tuple[str, ...] = ()


@final
class ZarrSlide(Slide):
    """An image in a zarr array `[H, W]` or `[H, W, C]`, or the first image of an OME-Zarr group.

    OME-Zarr 0.1 to 0.5 is read. The axes are found by name: y, x, and optionally c and z, in any order; others must
    have size 1. A chunk that is missing has the fill value of the array, as everywhere in zarr.

    Args:
        path: Folder of the array or group.
        z: Plane of a stack, counted from 0, or "max" for the largest value of all planes at each pixel.

    Raises:
        SourceError: The zarr package is not installed, the folder does not hold an image, or there are several
            planes and `z` names none of them.
    """

    def __init__(self, path: PathLike, z: Plane = None) -> None:
        name = os.fspath(path)
        found = _open_levels(name)
        sources = [_ZarrSource(array, found.axes, name, z) for array in found.arrays]
        first = sources[0]
        levels = [(source.shape[0], source.shape[1]) for source in sources]
        super().__init__(name, levels, first.shape[2], first.dtype, found.resolution, "zarr")
        if len({(source.shape[2], source.dtype) for source in sources}) > 1:
            raise SourceError(
                f"{name}: its levels differ in their number of channels or dtype. Write it again."
            )
        if len(found.channel_names) == first.shape[2]:
            self.channel_names = found.channel_names
        self._levels = sources

    def _open(self, level: int) -> Source:
        return self._levels[level]

    def _open_channels(self, level: int, channels: tuple[int, ...]) -> Source:
        return self._levels[level].with_channels(channels)


@final
class _ZarrSource(Source):
    """One array, whose axes have the letters `axes`, such as 'cyx'; by default all channels."""

    def __init__(
        self,
        array: Any,
        axes: str,
        name: str,
        z: Plane = None,
        channels: Sequence[int] | None = None,
    ) -> None:
        sizes = dict(zip(axes, array.shape, strict=False))
        others = {axis: size for axis, size in sizes.items() if axis not in "yxcz"}
        if (
            len(axes) != array.ndim
            or len(sizes) != array.ndim
            or not {"y", "x"} <= set(axes)
            or max(others.values(), default=1) > 1
        ):
            raise SourceError(
                f"{name}: holds {array.shape} with axes '{axes}'; expected an image with axes y and x, optionally c "
                "and z, and others of size 1, such as one point in time. Save one of them in a separate file."
            )
        self._planes = chosen_planes(z, sizes.get("z", 1), name)
        self._channels = tuple(range(sizes.get("c", 1)) if channels is None else channels)
        super().__init__((sizes["y"], sizes["x"], len(self._channels)), array.dtype, name)
        check_array(array, name)
        if decoded_by_c(array):
            trial.check("zarr", os.path.join(array.store.root, array.path))
        self._array, self._axes, self._z = array, axes, z
        self._checked: set[tuple[int, ...]] = set()

    def with_channels(self, channels: Sequence[int]) -> Source:
        """The image of some channels; no others are read."""
        return _ZarrSource(self._array, self._axes, self.name, self._z, channels)

    def _read_window(self, start: int, stop: int, left: int, right: int) -> RowArray:
        window = (start, stop, left, right)
        parts = [self._projected(run, window) for run in _runs(self._channels)]
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2)
        return np.ascontiguousarray(rows, self.dtype)

    def _projected(self, channels: slice, window: tuple[int, int, int, int]) -> RowArray:
        """Project consecutive channels, `[r, c, channels]`: the maximum over their planes."""
        largest: RowArray | None = None
        for plane in self._planes:
            rows = self._plane(plane, channels, window)
            largest = rows if largest is None else np.maximum(largest, rows)
        assert largest is not None
        return largest

    def _plane(self, z: int, channels: slice, window: tuple[int, int, int, int]) -> RowArray:
        start, stop, left, right = window
        slices: dict[str, slice | int] = {
            "y": slice(start, stop),
            "x": slice(left, right),
            "c": channels,
            "z": z,
        }
        places = tuple(slices.get(axis, 0) for axis in self._axes)
        try:
            self._check_chunks(places)
            part = np.asarray(self._array[places])
        except SourceError:
            raise
        except Exception as error:  # each codec and store raises its own exceptions
            raise SourceError(
                f"{self.name}: rows {start}:{stop}, columns {left}:{right} cannot be read ({reason_of(error)}). A "
                "chunk is damaged; copy it again."
            ) from error
        axes = [axis for axis in self._axes if axis in "yxc"]
        order = [axes.index(axis) for axis in "yxc" if axis in axes]
        return part.transpose(order).reshape(stop - start, right - left, -1)

    def _colour(self, start: int, stop: int, left: int, right: int) -> RowArray | None:
        stored = self._stored
        if stored is None:
            return None
        height, width = self._tile
        down = slice(start // height, ceil_div(stop, height))
        if stored[down, left // width : ceil_div(right, width)].any():
            return None
        return np.full(self.shape[2], self._array.fill_value, self.dtype)

    def _find_background(self) -> Background | None:
        shape, stored = self.shape[:2], self._stored
        if stored is None or stored.all() or math.prod(shape) < SMALLEST:
            return None
        return cells.of_tiles(stored, self._tile, shape)

    @cached_property
    def _stored(self) -> npt.NDArray[np.bool_] | None:
        """For each place, True if a chunk of any channel is stored; None if it takes too long to know."""
        fill = self._array.fill_value
        stored = stored_chunks(self._array) if fill is not None and np.isfinite(fill) else None
        if stored is None:
            return None
        others = tuple(n for n, axis in enumerate(self._axes) if axis not in "yx")
        grid = np.asarray(stored.any(others))
        return grid if self._axes.index("y") < self._axes.index("x") else grid.T

    @property
    def _tile(self) -> tuple[int, int]:
        """Rows and columns of a chunk, or shard."""
        sizes = dict(zip(self._axes, self._array.shards or self._array.chunks, strict=True))
        return int(sizes["y"]), int(sizes["x"])

    def _check_chunks(self, places: tuple[slice | int, ...]) -> None:
        """Raise SourceError if a chunk of a window, which was not checked before, decodes to too many bytes."""
        if len(self._checked) > _MAX_CHECKED:
            self._checked.clear()
        for chunk in set(chunks_of_window(self._array, places)) - self._checked:
            check_chunk(self._array, chunk, self.name)
            self._checked.add(chunk)


def _runs(channels: Sequence[int]) -> Iterator[slice]:
    """Yield runs of consecutive channels, which are read together."""
    first = channels[0]
    for channel, following in zip(channels, (*channels[1:], None), strict=True):
        if following != channel + 1:
            yield slice(first, channel + 1)
            first = channel if following is None else following


def _open_levels(name: str) -> Levels:
    """Open an array, or the first image of a group."""
    if zarr.missing:
        raise SourceError(
            f"{name}: needs the zarr package ({zarr.missing}): pip install 'tfbig[zarr]'."
        )
    if not Path(name).exists():
        raise SourceError(f"{name}: there is no such file. Check the path.")
    try:
        node = zarr.open(name, mode="r")
        if isinstance(node, zarr.Array):
            _say_scaling(name, node)
            if node.ndim not in (2, 3):
                return Levels([node], "?" * node.ndim)
            return Levels([node], "yxc"[: node.ndim])
        metadata = node.attrs.get("ome", node.attrs)
        if "multiscales" not in metadata and "bioformats2raw.layout" in metadata:
            node = node["0"]
            metadata = node.attrs.get("ome", node.attrs)
        if "plate" in metadata:
            well = metadata["plate"]["wells"][0]["path"]
            raise SourceError(
                f"{name}: is a plate of many images.",
                Advice.PART_OF_ZARR,
                part=f"one of them, such as {name}/{well}/0,",
            )
        if "multiscales" not in metadata and "labels" in node:
            names = ", ".join(sorted(node["labels"]))
            raise SourceError(
                f"{name}: holds labels {names} but no image.",
                Advice.PART_OF_ZARR,
                part=f"{name}/labels/NAME",
            )
        image = metadata["multiscales"][0]
        arrays = [node[data["path"]] for data in image["datasets"]]
        axes = image.get("axes", _OLD_AXES[-arrays[0].ndim :])
        letters = "".join(_axis(axis) for axis in axes)
        _say_scaling(name, arrays[0])
        return Levels(arrays, letters, Resolution(_mpp(image)), _channel_names(metadata))
    except SourceError:
        raise
    except Exception as error:  # each store raises its own exceptions
        raise SourceError(
            f"{name}: is neither a zarr array nor an OME-Zarr group with an image ({type(error).__name__}: "
            f"{reason_of(error)}). Check that the folder was copied completely."
        ) from error


def _say_scaling(name: str, array: Any) -> None:
    """Warn of a scale or an offset of values, as netCDF and xarray write them."""
    neutral = {"scale_factor": 1, "add_offset": 0}
    found = {
        key: array.attrs[key]
        for key in neutral
        if array.attrs.get(key, neutral[key]) != neutral[key]
    }
    if found:
        shown = ", ".join(f"{key} {value}" for key, value in found.items())
        warnings.warn(
            f"{name}: its values are not what is stored ({shown}), which is not applied. Write the values themselves.",
            SourceWarning,
            stacklevel=2,
        )


def _axis(axis: Any) -> str:
    """The letter of an axis, '?' if its name is none; before version 0.4 an axis is its name."""
    name = axis if isinstance(axis, str) else axis["name"]
    return name.lower() if len(name) == 1 else "?"


def _channel_names(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Read the labels of the channels for viewers, or nothing if one has none."""
    channels = (metadata.get("omero") or {}).get("channels") or ()
    labels = tuple(channel.get("label") for channel in channels)
    return tuple(map(str, labels)) if all(labels) else ()


def _mpp(image: Mapping[str, Any]) -> tuple[float, float] | None:
    """Read the micrometres per pixel of the first level, or None if its axes have no scale or no length unit."""
    axes = image.get("axes", ())
    if not all(isinstance(axis, Mapping) for axis in axes):
        return None
    sizes = {axis["name"]: _UM_PER_UNIT.get(axis.get("unit"), math.nan) for axis in axes}
    found = False
    for part in (image["datasets"][0], image):  # the scale of the level, and that of all levels
        for transformation in part.get("coordinateTransformations") or ():
            for axis, scale in zip(axes, transformation.get("scale", ()), strict=False):
                sizes[axis["name"]] *= float(scale)
                found = True
    mpp = sizes.get("y", math.nan), sizes.get("x", math.nan)
    return mpp if found and all(0 < size < math.inf for size in mpp) else None

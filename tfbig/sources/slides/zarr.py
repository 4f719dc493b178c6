"""Images in zarr arrays, and in OME-Zarr pyramids of them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

from tfbig.errors import SourceError
from tfbig.geometry import cells
from tfbig.geometry.background import Background
from tfbig.sources.background import SMALLEST
from tfbig.sources.files import PathLike, optional
from tfbig.sources.resolution import Resolution
from tfbig.sources.slides.slide import Slide
from tfbig.sources.slides.zarr_chunks import (
    check_array,
    check_chunk,
    chunks_of_window,
    stored_chunks,
)
from tfbig.sources.source import RowArray, Source

zarr, _import_error = optional("zarr")

_MAX_CHECKED = 2**18
"""Number of chunks that are remembered as checked, some 50 MB."""
_UM_PER_UNIT = {"micrometer": 1.0, "nanometer": 1e-3, "millimeter": 1e3, "meter": 1e6}


@final
class ZarrSlide(Slide):
    """An image in a zarr array `[H, W]` or `[H, W, C]`, or the first image of an OME-Zarr group.

    The axes of an OME-Zarr are found by name: y, x, and optionally c, in any order; others must have size 1.

    Args:
        path: Folder of the array or group.

    Raises:
        SourceError: The zarr package is not installed, or the folder does not hold an image.
    """

    def __init__(self, path: PathLike) -> None:
        name = os.fspath(path)
        arrays, axes, resolution = _open_levels(name)
        sources = [_ZarrSource(array, axes, name) for array in arrays]
        first = sources[0]
        levels = [(source.shape[0], source.shape[1]) for source in sources]
        super().__init__(name, levels, first.shape[2], first.dtype, resolution, "zarr")
        self._levels = sources

    def _open(self, level: int) -> Source:
        return self._levels[level]


@final
class _ZarrSource(Source):
    """One array, whose axes have the letters `axes`, such as 'cyx'."""

    def __init__(self, array: Any, axes: str, name: str) -> None:
        sizes = dict(zip(axes, array.shape, strict=False))
        others = {axis: size for axis, size in sizes.items() if axis not in "yxc"}
        if (
            len(axes) != array.ndim
            or not {"y", "x"} <= set(axes)
            or max(others.values(), default=1) > 1
        ):
            raise SourceError(
                f"{name}: holds {array.shape} with axes '{axes}'; expected an image with axes y and x, optionally c, "
                "and others of size 1."
            )
        super().__init__((sizes["y"], sizes["x"], sizes.get("c", 1)), array.dtype, name)
        check_array(array, name)
        self._array, self._axes = array, axes
        self._checked: set[tuple[int, ...]] = set()

    def _read(self, start: int, stop: int) -> RowArray:
        return self._read_window(start, stop, 0, self.shape[1])

    def _read_window(self, start: int, stop: int, left: int, right: int) -> RowArray:
        slices = {"y": slice(start, stop), "x": slice(left, right), "c": slice(None)}
        places = tuple(slices.get(axis, 0) for axis in self._axes)
        try:
            self._check_chunks(places)
            window = np.asarray(self._array[places])
        except SourceError:
            raise
        except Exception as error:  # each codec and store raises its own exceptions
            raise SourceError(
                f"{self.name}: rows {start}:{stop}, columns {left}:{right} cannot be read ({error}). A chunk is "
                "damaged; copy it again."
            ) from error
        axes = [axis for axis in self._axes if axis in "yxc"]
        order = [axes.index(axis) for axis in "yxc" if axis in axes]
        rows = window.transpose(order).reshape(stop - start, right - left, self.shape[2])
        return np.ascontiguousarray(rows, self.dtype)

    def _colour(self, start: int, stop: int, left: int, right: int) -> RowArray | None:
        stored = self._stored
        if stored is None:
            return None
        height, width = self._tile
        down = slice(start // height, -(-stop // height))
        if stored[down, left // width : -(-right // width)].any():
            return None
        return np.full(self.shape[2], self._array.fill_value, self.dtype)

    def _find_background(self) -> Background | None:
        shape, stored = self.shape[:2], self._stored
        if stored is None or stored.all() or math.prod(shape) < SMALLEST:
            return None
        return cells.of_tiles(stored, self._tile, shape)

    @cached_property
    def _stored(self) -> npt.NDArray[np.bool_] | None:
        """Whether the chunks at a place, of any channel, are stored; None if it takes too long to know."""
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


def _open_levels(name: str) -> tuple[list[Any], str, Resolution]:
    """Return the arrays of the levels, the letters of their axes, and the resolution."""
    if zarr is None:
        raise SourceError(
            f"{name}: needs the zarr package ({_import_error}): pip install 'tfbig[zarr]'."
        )
    if not Path(name).exists():
        raise SourceError(f"{name}: there is no such file. Check the path.")
    try:
        node = zarr.open(name, mode="r")
        if isinstance(node, zarr.Array):
            return [node], "yxc"[: node.ndim], Resolution()
        images = node.attrs.get("ome", node.attrs)["multiscales"]
        image = images[0]
        letters = "".join(axis["name"] for axis in image["axes"])
        arrays = [node[data["path"]] for data in image["datasets"]]
        return arrays, letters, Resolution(_mpp(image))
    except Exception as error:  # each store raises its own exceptions
        raise SourceError(
            f"{name}: is neither a zarr array nor an OME-Zarr group with an image ({type(error).__name__}: {error}). "
            "Check that the folder was copied completely."
        ) from error


def _mpp(image: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the micrometres per pixel from the scale of the first level, or None if its axes have no length unit."""
    scales = [
        t["scale"]
        for t in image["datasets"][0].get("coordinateTransformations", ())
        if "scale" in t
    ]
    if not scales:
        return None
    sizes = {
        axis["name"]: scale * _UM_PER_UNIT[axis["unit"]]
        for axis, scale in zip(image["axes"], scales[0], strict=True)
        if axis.get("unit") in _UM_PER_UNIT
    }
    return (sizes["y"], sizes["x"]) if {"y", "x"} <= sizes.keys() else None

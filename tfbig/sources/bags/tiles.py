"""Tiles of a slide at one resolution and any positions, as a bag."""

from __future__ import annotations

from typing import final

import numpy as np
import numpy.typing as npt

from tfbig.errors import SourceError
from tfbig.sources import boxes
from tfbig.sources.bags.bag import Bag, Indices
from tfbig.sources.bags.patches import read_rectangles
from tfbig.sources.source import RowArray, Source, View


@final
class Tiles(Bag):
    """Tiles `[n, size, size, C]` of an image, by their upper left corners.

    Pixels of a tile outside the image are white (the largest value of an integer dtype, else 1).

    Args:
        image: The slide at the resolution of the tiles, from `Slide.at`.
        corners: Row and column of the first pixel of each tile, `[n, 2]`, in pixels of `image`.
        size: Rows and columns of a tile.
        coords: Positions in pixels of level 0 `[n, 2]`, as in `Bag`.
        labels: Labels of the tiles `[n]`, as in `Bag`.

    Attributes:
        corners: Row and column of the first pixel of each tile, `[n, 2]`.
        size: Rows and columns of a tile.
        mpp: Micrometres per pixel of the image, or None.

    Raises:
        SourceError: There are no tiles, or one lies completely outside the image.

    Example:
        >>> image = tfbig.open(np.arange(16, dtype="uint8").reshape(4, 4))
        >>> tiles = tfbig.sources.Tiles(image, [[0, 0], [3, 2]], size=2)
        >>> tiles.read(0, 2)[..., 0].tolist()
        [[[0, 1], [4, 5]], [[14, 15], [255, 255]]]
    """

    def __init__(
        self,
        image: Source,
        corners: npt.ArrayLike,
        size: int,
        coords: npt.ArrayLike | None = None,
        labels: npt.ArrayLike | None = None,
    ) -> None:
        self.corners: Indices = np.asarray(corners, np.int64).reshape(-1, 2)
        self.size = size
        self.mpp = image.mpp
        extents = np.array(image.shape[:2])
        outside = ((self.corners >= extents) | (self.corners + size <= 0)).any(1)
        if outside.any():
            raise SourceError(
                f"{image.name}: tile {np.flatnonzero(outside)[0]} of {size} x {size} at row and column "
                f"{tuple(map(int, self.corners[outside][0]))} is outside the image, {tuple(map(int, extents))}. "
                "The coordinates belong to another slide or another resolution."
            )
        shape = (len(self.corners), size, size, image.shape[2])
        super().__init__(shape, image.dtype, f"tiles of {image.name}", coords, labels)
        self._image = _Framed(image, self.corners, size)

    def _read(self, start: int, stop: int) -> RowArray:
        return self._take(np.arange(start, stop))

    def _take(self, places: Indices) -> RowArray:
        corners = self.corners[places] + self._image.before
        return read_rectangles(self._image, corners, (self.size, self.size))

    def close(self) -> None:
        """Close the image."""
        self._image.close()


@final
class _Framed(View):
    """An image with a white frame, as wide as the tiles reach outside.

    Attributes:
        before: Rows and columns of the frame at the start, `[2]`.
    """

    def __init__(self, image: Source, corners: Indices, size: int) -> None:
        extents = np.array(image.shape[:2])
        first, last = corners.min(0, initial=0), (corners + size).max(0, initial=0)
        self.before: Indices = np.maximum(-first, 0)
        after = np.maximum(last - extents, 0)
        rows, columns = (int(n) for n in self.before + extents + after)
        super().__init__(image, (rows, columns, image.shape[2]), image.dtype, image.name)
        self._white = np.iinfo(image.dtype).max if image.dtype.kind in "ui" else 1

    def _read_window(self, start: int, stop: int, left: int, right: int) -> RowArray:
        window = boxes.moved(((start, stop), (left, right)), (-self.before).tolist())
        inner = self._inner
        return boxes.padded(inner.read_window, window, inner.shape, self._white, self.dtype)

"""Tiles of a slide at one resolution, wherever they lie: a bag, read as it is asked for."""

from __future__ import annotations

from typing import final

import numpy as np
import numpy.typing as npt

from tfbig.errors import SourceError
from tfbig.sources.bags.bag import Bag, Indices
from tfbig.sources.bags.patches import read_rectangles
from tfbig.sources.source import Rows, Source, View


@final
class Tiles(Bag):
    """Tiles `[n, size, size, C]` of an image, by their upper left corners.

    What of a tile is outside the image is white (the largest number of an integer dtype).

    Args:
        image: The slide at the resolution of the tiles, as `Slide.at` gives it.
        corners: Row and column of the first pixel of each, `[n, 2]`, in pixels of `image`.
        size: Rows and columns of a tile.
        coords, labels: As in `Bag`.

    Attributes:
        mpp: Of the image.

    Raises:
        SourceError: There are no tiles, or one has no pixel of the image.
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
                f"{tuple(map(int, self.corners[outside][0]))} has no pixel of the image, {tuple(map(int, extents))}. "
                "The coordinates are those of another slide, or of another resolution."
            )
        shape = (len(self.corners), size, size, image.shape[2])
        super().__init__(shape, image.dtype, f"tiles of {image.name}", coords, labels)
        self._image = _Framed(image, self.corners, size)

    def _read(self, start: int, stop: int) -> Rows:
        return self._take(np.arange(start, stop))

    def _take(self, places: Indices) -> Rows:
        corners = self.corners[places] + self._image.before
        return read_rectangles(self._image, corners, (self.size, self.size))

    def close(self) -> None:
        self._image.close()


@final
class _Framed(View):
    """An image with a white frame as wide as tiles reach outside; `before` are its rows and columns at the start."""

    def __init__(self, image: Source, corners: Indices, size: int) -> None:
        extents = np.array(image.shape[:2])
        first, last = corners.min(0, initial=0), (corners + size).max(0, initial=0)
        self.before: Indices = np.maximum(-first, 0)
        after = np.maximum(last - extents, 0)
        rows, columns = (int(n) for n in self.before + extents + after)
        super().__init__(image, (rows, columns, image.shape[2]), image.dtype, image.name)
        self._white = np.iinfo(image.dtype).max if image.dtype.kind in "ui" else 1

    def _read_window(self, start: int, stop: int, left: int, right: int) -> Rows:
        (top, side), (rows, columns) = self.before, self._inner.shape[:2]
        own = [
            (int(max(first - skipped, 0)), int(min(last - skipped, extent)))
            for first, last, skipped, extent in (
                (start, stop, top, rows),
                (left, right, side, columns),
            )
        ]
        if (own[0][1] - own[0][0], own[1][1] - own[1][0]) == (stop - start, right - left):
            return self._inner.read_window(own[0], own[1])
        out = np.full((stop - start, right - left, self.shape[2]), self._white, self.dtype)
        if own[0][0] < own[0][1] and own[1][0] < own[1][1]:
            inside = self._inner.read_window(own[0], own[1])
            row, column = own[0][0] + top - start, own[1][0] + side - left
            out[row : row + inside.shape[0], column : column + inside.shape[1]] = inside
        return out

"""Scenes as networks read them: float32, with nodata and padding filled; and where their pixels are measurements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Final, final

import numpy as np
import numpy.typing as npt

from tfbig.errors import SourceError
from tfbig.geometry import cells
from tfbig.geometry.background import Background
from tfbig.sources.scenes.raster import RasterSource
from tfbig.sources.source import RowArray, View
from tfbig.units import ceil_div, counted

CELL: Final = 32
"""Rows and columns of a cell of nodata that is looked for."""
_READ: Final = 1024
"""Rows and columns that are read at once to find nodata."""


@final
class FilledScene(View):
    """A scene as float32, in which samples without a measurement, and padding below and to the right, have one colour.

    uint8, int8, uint16, int16 and float32 are exact; wider samples are rounded to float32.

    Args:
        scene: The scene.
        fill: Value of each band where there is no measurement.
        multiple: Rows and columns are padded to the next multiple of this number.
        skip: Whether the pixels without any measurement are the background of the image, so that streamed models
            compute one pixel for all of them. The scene is read once to find them.

    Raises:
        SourceError: `fill` has another length than the scene has bands.
    """

    def __init__(
        self, scene: RasterSource, fill: Sequence[float], multiple: int = 1, skip: bool = False
    ) -> None:
        rows, columns, bands = scene.shape
        if len(fill) != bands:
            raise SourceError(
                f"{scene.name}: has {counted(bands, 'band')}, but the network was trained on {len(fill)}; expected the "
                "same bands in the same order."
            )
        shape = (*(ceil_div(n, multiple) * multiple for n in (rows, columns)), bands)
        super().__init__(scene, shape, np.float32, scene.name)
        self.scene, self.fill = scene, np.asarray(fill, np.float32)
        self._skip = skip

    def valid(self, rows: tuple[int, int], columns: tuple[int, int]) -> npt.NDArray[np.bool_]:
        """Find the pixels of a window, `(start, stop)` of rows and columns, with a measurement: `[rows, columns]`."""
        return self._filled(*rows, *columns)[1]

    def _read_window(self, start: int, stop: int, left: int, right: int) -> RowArray:
        return self._filled(start, stop, left, right)[0]

    def _filled(
        self, start: int, stop: int, left: int, right: int
    ) -> tuple[RowArray, npt.NDArray[np.bool_]]:
        """Read the pixels of a window, and find those that have a measurement."""
        out = np.empty((stop - start, right - left, self.shape[2]), np.float32)
        out[:] = self.fill
        valid = np.zeros(out.shape[:2], bool)
        height, width = self.scene.shape[:2]
        if start < height and left < width:
            rows, columns = (start, min(stop, height)), (left, min(right, width))
            pixels = self.scene.read_window(rows, columns)
            inside = out[: pixels.shape[0], : pixels.shape[1]]
            known = self.scene.valid(rows, columns, pixels)
            valid[: pixels.shape[0], : pixels.shape[1]] = known
            np.copyto(
                inside,
                pixels,
                where=self.scene.measured(pixels) & known[..., None],
                casting="unsafe",
            )
        return out, valid

    def _find_background(self) -> Background | None:
        """Find the cells without any measurement, if they are to be skipped."""
        if not self._skip:
            return None
        rows, columns = self.shape[:2]
        found = self.foreground((0, rows), (0, columns))
        return found if found.foreground.any() and not found.foreground.all() else None

    def foreground(self, rows: tuple[int, int], columns: tuple[int, int]) -> Background:
        """Find the cells of a window, `(start, stop)` of rows and columns, with a measurement, in one pass."""
        shape = rows[1] - rows[0], columns[1] - columns[0]
        cell = cells.side_of_cells(shape, CELL)
        found = np.zeros(cells.num_cells(shape, cell), bool)
        side = max(_READ // cell, 1) * cell
        for top, left in product(range(0, shape[0], side), range(0, shape[1], side)):
            down = rows[0] + top, min(rows[0] + top + side, rows[1])
            across = columns[0] + left, min(columns[0] + left + side, columns[1])
            valid = self.valid(down, across)
            wide = np.logical_or.reduceat(valid, range(0, valid.shape[1], cell), axis=1)
            part = np.logical_or.reduceat(wide, range(0, valid.shape[0], cell), axis=0)
            place = top // cell, left // cell
            found[place[0] : place[0] + len(part), place[1] : place[1] + part.shape[1]] = part
        return Background(found, cell)


def sampled_moments(
    scenes: Sequence[RasterSource],
    windows: int = 64,
    side: int = 256,
    unreadable: Callable[[RasterSource, SourceError], object] | None = None,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Compute mean and standard deviation of each band, of windows spread evenly over scenes.

    The windows, and so the numbers, are the same each time. Samples without a measurement do not count.

    Args:
        scenes: The scenes, with the same bands.
        windows: Most windows of each scene.
        side: Most rows and columns of a window.
        unreadable: Called with a scene of which a window cannot be read, and the error; the scene is left out.

    Returns:
        `(means, deviations)`, `[bands]`; a band without a measurement has 0 and 1.

    Raises:
        SourceError: A window cannot be read, and there is no `unreadable`.
    """
    sums = np.zeros((3, scenes[0].shape[2]))
    across = max(round(math.sqrt(windows)), 1)
    for scene in scenes:
        try:
            sums += _sums(scene, across, side)
        except SourceError as error:
            if unreadable is None:
                raise
            unreadable(scene, error)
    count, total, squares = sums
    mean = total / np.maximum(count, 1)
    variance = np.maximum(squares / np.maximum(count, 1) - mean**2, 0)
    return mean, np.where(variance > 0, np.sqrt(variance), 1.0)


def _sums(scene: RasterSource, across: int, side: int) -> npt.NDArray[np.float64]:
    """Count the samples of each band of evenly spread windows, and sum them and their squares."""
    sums = np.zeros((3, scene.shape[2]))
    tops, lefts = (
        np.unique(np.linspace(0, max(n - side, 0), across).astype(int)) for n in scene.shape[:2]
    )
    for top, left in product(map(int, tops), map(int, lefts)):
        rows = top, min(top + side, scene.shape[0])
        columns = left, min(left + side, scene.shape[1])
        pixels = scene.read_window(rows, columns)
        known = scene.measured(pixels) & scene.valid(rows, columns, pixels)[..., None]
        samples = np.where(known, pixels, 0).astype(np.float64)
        sums += [known.sum((0, 1)), samples.sum((0, 1)), (samples**2).sum((0, 1))]
    return sums

"""Images with background, sources that record what is read, and the check that a background is right."""

from __future__ import annotations

import numpy as np

from tfbig.geometry import cells
from tfbig.sources import Source


class Recording(Source):
    """An array that records its windows, and that knows no background."""

    def __init__(self, array: np.ndarray) -> None:
        super().__init__(array.shape, array.dtype, "recording")
        self._array = array.reshape(self.shape)
        self.windows: list[tuple[int, int, int, int]] = []

    def _read(self, start: int, stop: int) -> np.ndarray:
        return self._read_window(start, stop, 0, self.shape[1])

    def _read_window(self, start: int, stop: int, left: int, right: int) -> np.ndarray:
        self.windows.append((start, stop, left, right))
        return np.ascontiguousarray(self._array[start:stop, left:right])

    def read_pixels(self) -> int:
        """Number of pixels in all windows."""
        return sum((b - a) * (d - c) for a, b, c, d in self.windows)


def check_background(source: Source, least: float = 0.0) -> None:
    """Assert that all pixels of the background have one colour, and that it has this share of the image."""
    background = source.background
    assert background is not None
    rows, columns = source.shape[:2]
    assert background.foreground.shape == cells.num_cells((rows, columns), background.cell)
    outside = ~cells.pixels(background, (0, rows), (0, columns))
    assert outside.mean() >= least
    pixels = source.read_window((0, rows), (0, columns))[outside]
    assert (pixels == pixels[:1]).all()

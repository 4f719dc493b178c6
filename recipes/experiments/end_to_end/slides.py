"""Slides of glass with a piece of tissue on a tenth of them, for the task relation, with and without its skipping.

A slide has 4096 x 4096 pixels of one colour. Its tissue is a square of 5 x 5 images of the task with the same label, at
a random place. It is never held in memory as a whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import tfbig
from recipes.experiments.end_to_end import images

SIDE, PIECES, GLASS = 4096, 5, 245
"""Pixels along a side of a slide, images along a side of its tissue, and all channels of its glass."""
IMAGE = images.GRID * images.TILE

Array = np.ndarray[Any, np.dtype[Any]]


class Mounted(tfbig.sources.Source):
    """A piece of tissue on glass.

    Args:
        tissue: uint8 `[h, w, 3]`.
        place: Its first row and column.
    """

    def __init__(self, tissue: Array, place: Array) -> None:
        super().__init__((SIDE, SIDE, 3), "uint8", "slide")
        self.tissue, (self.row, self.column) = tissue, map(int, place)

    def _read(self, start: int, stop: int) -> Array:
        rows = np.full((stop - start, SIDE, 3), GLASS, "uint8")
        first, last = max(start, self.row), min(stop, self.row + len(self.tissue))
        if first < last:
            columns = slice(self.column, self.column + self.tissue.shape[1])
            own = self.tissue[first - self.row : last - self.row]
            rows[first - start : last - start, columns] = own
        return rows

    @property
    def mask(self) -> Array:
        """Mask of the tissue, bool, in cells of a tile."""
        cells = np.zeros((SIDE // images.TILE,) * 2, bool)
        row, column = self.row // images.TILE, self.column // images.TILE
        rows, columns = (n // images.TILE for n in self.tissue.shape[:2])
        cells[row : row + rows, column : column + columns] = True
        return cells


def make(part: str, number: int, seed: int) -> tuple[list[Mounted], Array]:
    """Return slides and their labels, float32 `[m, 1]`, 0 and 1 in turn.

    Args:
        part: One of `images.PARTS`.
        number: How many slides, an even number.
        seed: The same seed gives the same slides.
    """
    made = images.make("relation", part, number * PIECES**2, seed)
    rng = np.random.default_rng([seed, images.PARTS.index(part)])
    of_label = [iter(made.pixels[label::2]) for label in (0, 1)]
    labels = np.arange(number) % 2
    slides = []
    for label in labels:
        pieces = [[next(of_label[label]) for _ in range(PIECES)] for _ in range(PIECES)]
        tissue = np.concatenate([np.concatenate(row, axis=1) for row in pieces])
        places = (SIDE - len(tissue)) // images.TILE + 1
        slides.append(Mounted(tissue, images.TILE * rng.integers(places, size=2)))
    return slides, labels[:, None].astype("float32")


def handles(slides: list[Mounted], skipped: bool) -> Array:
    """Return handles `[m]` of slides, whose glass is skipped or computed."""
    sources = [tfbig.masked(each, each.mask, GLASS) if skipped else each for each in slides]
    return np.array([source.handle for source in sources])

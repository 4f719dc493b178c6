"""Tiles of a slide as `tfbig tile`, training and prediction find them, where no file of coordinates names them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tfbig.choices import TISSUE_METHODS
from tfbig.cli import messages
from tfbig.cli.paths import FlagError
from tfbig.sources import Coords, Slide
from tfbig.tissue import tiling
from tfbig.tissue.masks import Tissue, find_tissue

TILE, MPP, MIN_TISSUE = 256, 0.5, 0.6
"""Default size, micrometres per pixel and smallest share of tissue of tiles."""

Tiles: TypeAlias = npt.NDArray[Any]
"""Pixels of tiles, `[n, rows, columns, channels]`."""
Passes: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Selection:
    """The rule by which the tiles of a slide are chosen.

    Attributes:
        size: Rows and columns of a tile.
        tissue: Way to find tissue, one of `choices.TISSUE`, or a file of outlines, which the caller reads.
        min_tissue: Smallest share of tissue in a tile.
        edge: Pixels that may be left at the end of a row or column without another tile.
        overlap: Pixels that neighbouring tiles share.
        dark: Whether the background is dark.
        min_sharpness: Smallest variance of the Laplacian of a tile, or None for any.
        max_pen: Largest share of pen marks in a tile, or None for any.

    Raises:
        SourceError: Tiles overlap by their whole size.
    """

    size: int
    tissue: str
    min_tissue: float
    edge: int = 0
    overlap: int = 0
    dark: bool = False
    min_sharpness: float | None = None
    max_pen: float | None = None

    def __post_init__(self) -> None:
        if self.overlap >= self.size:
            raise FlagError(f"--overlap {self.overlap}: expected less than --tile {self.size}.")

    def find(self, slide: Slide, step: float) -> Coords:
        """Find the tiles of a slide, and print a warning if its tissue is uncertain.

        `step` is the width of a pixel of the tile in pixels of level 0.

        Raises:
            SourceError: No tile has enough tissue.
        """
        tissue = self.mask(slide)
        if tissue and (warning := messages.uncertain_tissue(tissue.agreement, messages.LOOK)):
            print(f"{slide.title}: tissue {warning}", file=sys.stderr)
        return self.tiles(slide, step, tissue)

    def mask(self, slide: Slide) -> Tissue | None:
        """Find the tissue of a slide; None if tiles are not selected by it."""
        return (
            find_tissue(slide, self.tissue, dark=self.dark)
            if self.tissue in TISSUE_METHODS
            else None
        )

    def tiles(
        self,
        slide: Slide,
        step: float,
        tissue: Tissue | None,
        ticked: Callable[[int, int], object] | None = None,
    ) -> Coords:
        """Find the tiles of a slide whose tissue is known; None selects all tiles.

        `ticked` is called with the number of tiles that were read, and of all tiles.

        Raises:
            SourceError: As in `find`.
        """
        return tiling.tile(
            slide,
            self.size,
            step=step,
            overlap=self.overlap,
            edge=self.edge,
            tissue=tissue,
            smallest_share=self.min_tissue,
            keep=self._keep if self._needs_pixels else None,
            ticked=ticked,
        )

    @property
    def _needs_pixels(self) -> bool:
        return (
            self.tissue == "grey-tiles"
            or self.min_sharpness is not None
            or self.max_pen is not None
        )

    def _keep(self, tiles: Tiles) -> Passes:
        """Select the tiles that have enough grey pixels, are sharp and have no pen marks."""
        passes: Passes = np.ones(len(tiles), bool)
        if self.tissue == "grey-tiles":
            passes &= tiling.grey_share(tiles) >= self.min_tissue
        if self.min_sharpness is not None:
            passes &= tiling.sharpness(tiles) >= self.min_sharpness
        if self.max_pen is not None:
            passes &= tiling.pen_share(tiles) <= self.max_pen
        return passes

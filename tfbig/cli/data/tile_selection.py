"""Tiles of a slide as training and prediction find them, where no file of coordinates names them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tfbig.choices import TISSUE_METHODS
from tfbig.cli import messages
from tfbig.sources import Coords, Slide
from tfbig.tissue import tiling
from tfbig.tissue.masks import Tissue, find_tissue


@dataclass(frozen=True)
class Selection:
    """The rule by which the tiles of a slide are chosen.

    Attributes:
        size: Rows and columns of a tile.
        tissue: Way to find tissue, one of `choices.TISSUE`.
        min_tissue: Smallest share of tissue in a tile.
        edge: Pixels that may be left at the end of a row or column without another tile.
        overlap: Pixels that neighbouring tiles share.
    """

    size: int
    tissue: str
    min_tissue: float
    edge: int = 0
    overlap: int = 0

    def find(self, slide: Slide, step: float) -> Coords:
        """Return the tiles of a slide, and print a warning if its tissue is uncertain.

        Args:
            slide: The slide.
            step: Width of a pixel of the tile in pixels of level 0.

        Raises:
            SourceError: No tile has enough tissue.
        """
        return tiling.tile(
            slide,
            self.size,
            step=step,
            overlap=self.overlap,
            edge=self.edge,
            tissue=self._mask(slide),
            smallest_share=self.min_tissue,
            keep=self._has_grey if self.tissue == "grey-tiles" else None,
        )

    def _mask(self, slide: Slide) -> Tissue | None:
        """Return the tissue of a slide, or None if tiles are not selected by it."""
        if self.tissue not in TISSUE_METHODS:
            return None
        tissue = find_tissue(slide, self.tissue)
        if warning := messages.uncertain_tissue(tissue.agreement, messages.LOOK):
            print(f"{slide.title}: tissue {warning}", file=sys.stderr)
        return tissue

    def _has_grey(self, tiles: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        enough: npt.NDArray[np.bool_] = tiling.grey_share(tiles) >= self.min_tissue
        return enough

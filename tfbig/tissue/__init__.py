"""Tissue masks of slides, and selection of the tiles that contain tissue."""

from tfbig.tissue.drawn import read_tissue
from tfbig.tissue.masks import Tissue, find_tissue, tissue_mask

__all__ = ["Tissue", "find_tissue", "read_tissue", "tissue_mask"]

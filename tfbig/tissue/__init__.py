"""Tissue masks of slides, slides without what is no tissue, and selection of the tiles that contain tissue."""

from tfbig.tissue.drawn import read_tissue
from tfbig.tissue.masking import masked
from tfbig.tissue.masks import Tissue, find_tissue, tissue_mask

__all__ = ["Tissue", "find_tissue", "masked", "read_tissue", "tissue_mask"]

"""Tissue masks of slides, and the grid of tiles that covers the tissue."""

from tfbig.tissue.masks import Tissue, find_tissue, tissue_mask

__all__ = ["Tissue", "find_tissue", "tissue_mask"]

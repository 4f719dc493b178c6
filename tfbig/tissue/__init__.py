"""Tissue masks of slides, slides whose background is left out, tiles that contain tissue, and colours of stains."""

from tfbig.tissue.drawn import read_tissue
from tfbig.tissue.masking import masked
from tfbig.tissue.masks import Tissue, find_tissue, tissue_mask
from tfbig.tissue.outline_file import OutlineRule
from tfbig.tissue.stain import find_stains

__all__ = [
    "OutlineRule",
    "Tissue",
    "find_stains",
    "find_tissue",
    "masked",
    "read_tissue",
    "tissue_mask",
]

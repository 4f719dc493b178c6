"""Patch Gradient Descent: approximate training on large images at the memory of a few patches.

`PatchGD` is the model, `patch_model` its plain twin; `PatchGDSegmentation` is for masks; `LatentGrid` is the latent
grid as a layer, of which hierarchies are made.
"""

from tfbig.grids import PatchGrid
from tfbig.patchgd.latent import FILLINGS, LatentGrid, patch_model
from tfbig.patchgd.model import PatchGD
from tfbig.patchgd.segmentation import PatchGDSegmentation

__all__ = [
    "FILLINGS",
    "LatentGrid",
    "PatchGD",
    "PatchGDSegmentation",
    "PatchGrid",
    "patch_model",
]

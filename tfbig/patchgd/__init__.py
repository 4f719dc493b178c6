"""Patch Gradient Descent: approximate training on large images at the memory of a few patches.

`PatchGD` is the model, `patch_model` its plain twin; `PatchGDSegmentation` is for masks; `LatentGrid` is the latent
grid as a layer, of which hierarchies are made. `SideBySide`, `Chooser`, `replaced`, `weighted` and `assembled` are for
loops of one's own.
"""

from tfbig.grids import PatchGrid
from tfbig.patchgd.choosing import Chooser, weighted
from tfbig.patchgd.latent import FILLINGS, LatentGrid, SideBySide, patch_model, replaced
from tfbig.patchgd.model import PatchGD
from tfbig.patchgd.segmentation import PatchGDSegmentation, assembled

__all__ = [
    "FILLINGS",
    "Chooser",
    "LatentGrid",
    "PatchGD",
    "PatchGDSegmentation",
    "PatchGrid",
    "SideBySide",
    "assembled",
    "patch_model",
    "replaced",
    "weighted",
]

"""Patch Gradient Descent: approximate training on large images at the memory of a few patches.

`PatchGD` is the model and `patch_model` builds its plain twin; `PatchGDSegmentation` is for masks; `LatentGrid` is the
latent grid as a layer, for hierarchies. `SideBySide`, `Chooser`, `replaced`, `weighted` and `assembled` are for custom
training loops.
"""

from tfbig.choices import FILLINGS
from tfbig.geometry.patch_grid import PatchGrid
from tfbig.models.latent import BagHead, conv_head, transformer_head
from tfbig.patchgd.latent_grid import LatentGrid, SideBySide, patch_model, replaced
from tfbig.patchgd.model import PatchGD
from tfbig.patchgd.patch_sampling import Chooser, weighted
from tfbig.patchgd.segmentation import PatchGDSegmentation, assembled

__all__ = [
    "FILLINGS",
    "BagHead",
    "Chooser",
    "LatentGrid",
    "PatchGD",
    "PatchGDSegmentation",
    "PatchGrid",
    "SideBySide",
    "assembled",
    "conv_head",
    "patch_model",
    "replaced",
    "transformer_head",
    "weighted",
]

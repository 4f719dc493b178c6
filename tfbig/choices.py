"""Names and numbers that functions of tfbig and flags of the command line share.

They are declared here, where neither Keras nor TensorFlow is imported, so that `tfbig --help` can name them at once.
"""

from __future__ import annotations

import math
from typing import Final

CONFIG: Final = "config.yaml"
"""File of the settings of a run."""
DIRECTIONS: Final = ("LR", "PA", "IS")
"""Names of both directions of each axis of the patient: x grows from left to right, y from posterior to anterior, z
from inferior to superior."""
DISTILLATIONS: Final = ("AFS", "MaxS", "MaxMinS", "MAS")
"""Instances by which `DTFDMIL` represents a group of a bag."""
FILLINGS: Final = ("published", "frozen")
"""Statistics of BatchNormalization while PatchGD fills its latent grid."""
HEADS: Final = ("published", "smaller", "larger", "linear", "abmil", "transformer")
"""Heads over the latent grid of PatchGD."""
INSTANCE_LOSSES: Final = ("cross_entropy", "svm")
"""Losses of the instances of `CLAM`."""
MAX_VIEWS: Final = 100
"""Most slides with a zoomable view in a report."""
NORMS: Final = ("exact", "frozen", "per_slice")
"""Statistics of BatchNormalization in the encoder of a bag."""
ORIGINS: Final = ("scanned", "level-0")
"""Where outlines are counted from: the corner of the scanned area, as in QuPath, or that of level 0."""
PATHOLOGY_ENCODERS: Final = (
    *("uni", "uni2-h", "virchow", "virchow2", "h-optimus-0", "h-optimus-1"),
    *("prov-gigapath", "phikon", "phikon-v2", "conch-1.5"),
)
"""Encoders of tiles that were trained on pathology slides."""
RESNETS: Final = (
    *("resnet18", "resnet34", "resnet50", "resnet18_gn", "resnet50_gn"),
    *("resnet18_flat", "resnet26"),
)
"""ResNets as encoders of tiles."""
NETWORKS: Final = (*RESNETS, "mobilenetv2")
"""Encoders of tiles with published architectures."""
SAMPLERS: Final = ("shuffle", "replacement", "attention")
"""How PatchGD draws the patches of an inner step."""
SCALES: Final = ("published", "unbiased")
"""Weight that PatchGD gives the gradient of drawn patches."""
TISSUE_METHODS: Final = ("colour", "otsu", "grey")
"""Ways to find the tissue of a slide."""
TRUNKS: Final = ("small", "strided")
"""Small encoders with a feature map."""
UNET_STRIDES: Final = (8, 4, 4)
"""Strides of the gigapixel U-Net."""
UNET_STRIDE: Final = math.prod(UNET_STRIDES)
"""Rows and columns of the input of the gigapixel U-Net are multiples of this."""

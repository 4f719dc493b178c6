"""Names that flags offer. Modules that import TensorFlow define what they mean; a test checks that both agree."""

from __future__ import annotations

import pkgutil
from pathlib import Path

AGGREGATORS = (
    *("abmil", "gated", "abmil_relu", "abmil_gelu"),
    *("clam_sb", "clam_mb", "dsmil", "abmilx"),
    *("dtfd", "transmil", "transformer", "attention", "mean", "max"),
)
AUGMENTATIONS = ("slide",)
SLIDE_AUGMENTATIONS = ("none", "brightness")
BACKGROUNDS = ("skip", "compute")
BAGS = ("folder", "slides", "features")
DISTILLATIONS = ("AFS", "MaxS", "MaxMinS", "MAS")
FILLINGS = ("published", "frozen")
HEADS = ("published", "smaller", "larger", "linear", "abmil", "transformer")
IMAGES = ("folder", "pictures", "slides")
INPUT_CHANNELS = {"rgb": 3, "gray": 1, "inverted-gray": 1}
"""Inputs of `tfbig predict`, and the channels of each."""
BANDS = "bands"
"""Input of `tfbig predict` for satellite scenes: all bands, as they are."""
MONITORS = {
    "class": ("loss", "accuracy", "qwk"),
    "survival": ("loss", "concordance"),
    "regression": ("loss", "mae"),
    "multilabel": ("loss", "auc"),
}
"""Targets of `--task mil` and `images`, and the validation metrics of each by which an epoch can be kept."""
LOWER_IS_BETTER = ("loss", "mae")
INSTANCE_LOSSES = ("cross_entropy", "svm")
MASK_LOSSES = ("binary_cross_entropy", "dice")
NORMS = ("exact", "frozen", "per_slice")
OPTIMIZERS = ("adam", "coupled_adam", "adamw", "demon_adam", "demon_adamw", "lookahead_radam")
ORIGINS = ("scanned", "level-0")
READERS = ("tifffile", "openslide", "zarr", "rasterio")
RESNETS = (
    *("resnet18", "resnet34", "resnet50", "resnet18_gn", "resnet50_gn"),
    *("resnet18_flat", "resnet26"),
)
STAINS = ("none", "macenko", "reinhard")
SCHEDULES = ("constant", "cosine", "step-cosine", "exponential", "linear")
SAMPLERS = ("shuffle", "replacement", "attention")
SCALES = ("published", "unbiased")
SCENE_LOSSES = ("cross_entropy", "mse", "huber")
SCENE_TARGETS = ("class", "regression")
SURVIVAL_LOSSES = ("discrete", "cox")
TARGETS = tuple(MONITORS)
TRUNKS = ("small", "strided")
NETWORKS = (*RESNETS, "mobilenetv2")
PATHOLOGY_ENCODERS = (
    *("uni", "uni2-h", "virchow", "virchow2", "h-optimus-0", "h-optimus-1"),
    *("prov-gigapath", "phikon", "phikon-v2", "conch-1.5"),
)
FEATURE_ENCODERS = (
    *(name for name in NETWORKS if name != "resnet18_flat"),
    *PATHOLOGY_ENCODERS,
)
"""Encoders of `tfbig features`; features of `resnet18_flat` depend on the size of a tile."""

CROP_AUGMENTATIONS = ("none", "flips", "intensities")

COLLECTIONS = tuple(
    module.name.replace("_", "-")
    for module in pkgutil.iter_modules([str(Path(__file__).parents[1] / "data/collections")])
)
"""Public data sets of `tfbig dataset`: each is a file of `tfbig/cli/data/collections`."""

UNET_STRIDE = 128
"""Rows and columns of crops for the gigapixel U-Net are multiples of this."""
WHOLE = "whole"
"""Crop of whole slides."""
DIRECTIONS = ("LR", "PA", "IS")
"""Directions of the patient along each of its axes, one of which names the direction of an axis of a volume."""
STORED = "stored"
"""Orientation of volumes as they are stored."""
VOLUME_AUGMENTATIONS = ("none", "mirror")
VOLUME_LOSSES = ("dice_crossentropy", "crossentropy")
EVALUATED = ("test", "all")
"""Slides of another table that are evaluated."""
TISSUE_METHODS = ("colour", "otsu", "grey")
"""Ways to find the tissue of a slide."""
TISSUE = (*TISSUE_METHODS, "grey-tiles", "none")
"""Ways to find tissue, for tiles."""
MAX_VIEWS = 100
"""Most slides with a zoomable view in a report."""
IMAGENET = "imagenet"
"""Value of `--encoder-weights` for published weights."""
RANDOM = "random"
"""Value of `--encoder-weights` for random weights, also where a recipe names others."""
CONFIG = "config.yaml"
"""File of the settings of a run."""

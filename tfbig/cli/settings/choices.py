"""Names of the command line; those that functions use too are in `tfbig.choices`."""

from __future__ import annotations

import pkgutil
from pathlib import Path

from tfbig.choices import NETWORKS, PATHOLOGY_ENCODERS, TISSUE_METHODS

AGGREGATORS = (
    *("abmil", "gated", "abmil_relu", "abmil_gelu"),
    *("clam_sb", "clam_mb", "dsmil", "abmilx"),
    *("dtfd", "transmil", "transformer", "attention", "mean", "max"),
)
AUGMENTATIONS = ("slide",)
SLIDE_AUGMENTATIONS = ("none", "brightness")
BACKGROUNDS = ("skip", "compute")
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
MASK_LOSSES = ("binary_cross_entropy", "dice")
OPTIMIZERS = ("adam", "coupled_adam", "adamw", "demon_adam", "demon_adamw", "lookahead_radam")
READERS = ("tifffile", "openslide", "zarr", "rasterio")
STAINS = ("none", "macenko", "reinhard")
SCHEDULES = ("constant", "cosine", "step-cosine", "exponential", "linear")
SCENE_LOSSES = ("cross_entropy", "mse", "huber")
SCENE_TARGETS = ("class", "regression")
SURVIVAL_LOSSES = ("discrete", "cox")
TARGETS = tuple(MONITORS)
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

WHOLE = "whole"
"""Crop of whole slides."""
STORED = "stored"
"""Orientation of volumes as they are stored."""
VOLUME_AUGMENTATIONS = ("none", "mirror")
VOLUME_LOSSES = ("dice_crossentropy", "crossentropy")
EVALUATED = ("test", "all")
"""Slides of another table that are evaluated."""
TISSUE = (*TISSUE_METHODS, "grey-tiles", "none")
"""Ways to find tissue, for tiles."""
IMAGENET = "imagenet"
"""Value of `--encoder-weights` for published weights."""
RANDOM = "random"
"""Value of `--encoder-weights` for random weights, also where a recipe names others."""
PUBLISHED = "published"
"""Value of `--encoder-input` for tiles that are resized and cut as for the published weights."""
OF_THE_TILE = "tile"
"""Value of `--encoder-input` for tiles as they are."""

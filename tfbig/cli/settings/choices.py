"""Names of the command line; those that functions use too are in `tfbig.choices`."""

from __future__ import annotations

from tfbig.choices import NETWORKS, PATHOLOGY_ENCODERS, TISSUE_METHODS

AGGREGATORS = (
    *("abmil", "gated", "abmil_relu", "abmil_gelu"),
    *("clam_sb", "clam_mb", "dsmil", "abmilx"),
    *("dtfd", "transmil", "transformer", "attention", "mean", "max"),
)
AUGMENTATIONS = ("a3", "slide")
SLIDE_AUGMENTATIONS = ("none", "brightness")
BACKGROUNDS = ("skip", "compute")
BAGS = ("shapes", "digits", "pictures", "folder", "slides", "features")
IMAGES = ("drawn", "digits", "folder", "pictures", "har", "slides")
INPUT_CHANNELS = {"rgb": 3, "gray": 1, "inverted-gray": 1}
"""Inputs of `tfbig predict`, and the channels of each."""
BANDS = "bands"
"""Input of `tfbig predict` for satellite scenes: all bands, as they are."""
LOSSES = ("cross_entropy", "binary_cross_entropy")
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

COLLECTIONS = {
    "panda": "prostate biopsies, ISUP grade 0 to 5 (Bulten et al., 2022)",
    "camelyon16": "lymph nodes, normal or tumour (Bejnordi et al., 2017)",
    "camelyon17": "lymph nodes of five centres, by slide (Litjens et al., 2018)",
    "tcga-prad": "prostatectomies, ISUP grade (Zuley et al., 2016)",
    "tcga-nsclc": "lung, adenocarcinoma or squamous cell carcinoma",
    "imagenet-100": "pictures of 100 classes of ImageNet",
    "imagenette": "pictures of ten classes of ImageNet",
    "qmnist": "handwritten digits (Yadav, Bottou, 2019), or those of MNIST",
    "ultramnist": "sums of digits of all sizes (Gupta et al., 2022), of the competition or made of MNIST",
    "nnunet": "volumes in the layout of nnU-Net, or of the Medical Segmentation Decathlon",
    "uci-har": "activities from signals of a smartphone (Anguita et al., 2013)",
}
"""Public data sets of `tfbig dataset`, and what each is."""

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
WARM_START_EPOCHS = 4
"""Default number of epochs on single digits."""
IMAGENET = "imagenet"
"""Value of `--encoder-weights` for published weights."""
RANDOM = "random"
"""Value of `--encoder-weights` for random weights, also where a recipe names others."""

"""Settings of each task of `--task`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from tfbig.choices import (
    DISTILLATIONS,
    HEADS,
    INSTANCE_LOSSES,
    NETWORKS,
    NORMS,
    PATHOLOGY_ENCODERS,
    RESNETS,
    SAMPLERS,
    TRUNKS,
    UNET_STRIDE,
)
from tfbig.cli.settings import choices
from tfbig.cli.settings import value_types as types
from tfbig.cli.settings.background_settings import BackgroundSettings
from tfbig.cli.settings.data_settings import BagSettings, ImageDataSettings, SplitSettings
from tfbig.cli.settings.flag import ENVIRONMENT, GIVEN, Conditions, Unless, flag
from tfbig.cli.settings.instance_settings import InstanceSettings
from tfbig.cli.settings.patch_settings import PatchSettings
from tfbig.cli.settings.patchgd_segmentation_settings import PatchGDSegmentationSettings
from tfbig.cli.settings.run_settings import (
    MASK_MODES,
    UNIFIED,
    MachineSettings,
    RunSettings,
    TaskSettings,
)
from tfbig.cli.settings.scene_settings import SceneSettings
from tfbig.cli.settings.target_settings import TargetSettings
from tfbig.cli.settings.training_settings import (
    ClassifierSettings,
    EncoderWeights,
    EvaluationSettings,
    TrainingSettings,
)
from tfbig.cli.settings.volume_segmentation_settings import VolumeSegmentationSettings


@dataclass(frozen=True, kw_only=True)
class SegmentationSettings(
    TaskSettings,
    BackgroundSettings,
    SplitSettings,
    TrainingSettings,
    MachineSettings,
    RunSettings,
):
    """Train the gigapixel U-Net to tell tissue from background on whole slides."""

    SECTION = "data"
    EXAMPLE = "--mode offload --data my_slides --crop 16000x64000 --device-memory 1GB --epochs 20 --out runs/mine"

    task: str = "segmentation"
    mode: str = flag("offload", choices=MASK_MODES)
    data: str | None = flag(
        exists="folder",
        kind=ENVIRONMENT,
        path=True,
        metavar="FOLDER",
        help="folder of slides (TIFF, SVS, NDPI, NPY, PNG), of which the last by name is for validation; or folder "
        "with a table slides.csv: columns slide_id, split (train, val, test), and optional path and mask. Labels of "
        "a.tif are its mask, else masks/a.* or a_mask.* beside it, an image or GeoJSON, else tissue that is computed "
        "from the slide (default: the slides in examples/data of a checkout)",
    )
    class_names: tuple[str, str] = flag(
        ("background", "tissue"),
        nargs=2,
        metavar=("BACKGROUND", "OBJECT"),
        help="names, in results, of what masks do not mark and of what they mark (default: background tissue)",
    )
    crops: int = flag(
        100,
        type=types.count,
        help="number of crops of the training slides in an epoch, from each slide in turn, at random places that are "
        "drawn again in every epoch",
        only_if={"crop": Unless((choices.WHOLE,))},
        trains=True,
    )
    crop: str = flag(
        "1024x1024",
        type=types.crop,
        metavar="HxW",
        help=f"rows x columns of a crop in pixels, multiples of {UNET_STRIDE}, or whole: each training "
        "slide whole, once in an epoch; validation and test use whole slides",
    )
    augment: str = flag(
        "brightness",
        choices=choices.SLIDE_AUGMENTATIONS,
        help="augmentation of training images. brightness: up to 10 gray levels, drawn again in every epoch; labels "
        "that are computed from the slide are computed again",
        trains=True,
    )
    epochs: int = 3
    batch_size: int = flag(1, help="crops of a step")
    lr: float = 0.01
    epsilon: float = flag(1e-3)
    beta_1: float = 0.8
    clip: float | None = flag(
        0.3,
        help="clip the global norm of the gradient to this value; 0 for no clipping",
    )
    schedule: str = "step-cosine"
    keep: str = "last"
    monitor: str = flag("loss", choices=["loss", "dice"])


_ABMIL = ("abmil", "gated", "abmil_relu", "abmil_gelu")
_CLAM = ("clam_sb", "clam_mb")


@dataclass(frozen=True, kw_only=True)
class DTFDSettings:
    """Pseudo-bags of DTFD-MIL."""

    SECTION = "network"
    ONLY_IF: ClassVar[Conditions] = {"model": ("dtfd",)}

    pseudo_bags: int = flag(4, type=types.count, help="number of pseudo-bags")
    distillation: str = flag(
        "AFS", choices=DISTILLATIONS, help="distillation of the features of a pseudo-bag"
    )
    two_tiers: bool = flag(False, help="train each tier only with its own loss")


@dataclass(frozen=True, kw_only=True)
class CLAMSettings:
    """Clustering of instances in CLAM."""

    SECTION = "network"
    ONLY_IF: ClassVar[Conditions] = {"model": _CLAM}

    instance_samples: int = flag(
        8,
        type=types.count,
        metavar="K",
        help="the K most and the K least attended instances of a bag are those that its classifiers of instances learn "
        "from",
    )
    instance_loss: str = flag(
        "cross_entropy",
        choices=INSTANCE_LOSSES,
        help="loss of the instances; svm: smooth support vector machine",
    )
    subtyping: bool = flag(
        False,
        help="bags have instances of their own class only, so that the most attended ones are wrong for others",
    )


@dataclass(frozen=True, kw_only=True)
class MILNetwork:
    """Encoder and aggregator of `--task mil`."""

    SECTION = "network"

    model: str = flag(
        "abmil",
        choices=choices.AGGREGATORS,
        help="aggregator of the bag; abmil_relu and abmil_gelu are those of the code of Big-Layers, for PANDA and for "
        "CAMELYON",
    )
    encoder: str = flag(
        "small",
        choices=["small", "lenet", *RESNETS, *PATHOLOGY_ENCODERS, "none"],
        help="network of an instance; none if bags hold features",
    )
    lora: int | None = flag(
        type=types.count,
        metavar="RANK",
        help="train only low-rank changes of the Dense layers of the encoder (LoRA) (default: train all of it; --mode "
        "frozen trains nothing of it)",
        only_if={"encoder": PATHOLOGY_ENCODERS},
    )
    encoder_input: str | None = flag(
        choices={
            choices.PUBLISHED: "tiles are resized and cut to the input of the published weights, as by tfbig features",
            choices.OF_THE_TILE: "the encoder has the size of the tiles",
        },
        help="what an encoder of pathology reads (default: published with --encoder-weights, else tile)",
        only_if={"encoder": PATHOLOGY_ENCODERS},
    )
    hidden: int = flag(
        128,
        type=types.count,
        help="units of the attention layer; the published clam has 256",
        only_if={"model": (*_ABMIL, *_CLAM, "dsmil", "dtfd")},
    )
    width: int = flag(
        512,
        type=types.count,
        help="number of reduced features",
        only_if={"model": (*_CLAM, "abmilx", "dtfd", "transmil", "transformer", "attention")},
    )
    bag_weight: float | None = flag(
        type=types.share,
        metavar="SHARE",
        help="weight of the loss of the bag; that of the instances has the rest (default: 0.7 for clam, 0.5 for dsmil)",
        only_if={"model": (*_CLAM, "dsmil")},
    )
    norm: str = flag(
        "exact",
        choices=[*NORMS, "none"],
        help="BatchNormalization of the encoder in training; none removes it",
    )
    instances_at_once: int = flag(
        8,
        kind=ENVIRONMENT,
        type=types.count,
        help="largest number of instances of a slice; --mode accumulate and frozen only",
        trains=False,
    )


@dataclass(frozen=True, kw_only=True)
class MILSettings(
    TaskSettings,
    TargetSettings,
    BagSettings,
    MILNetwork,
    EncoderWeights,
    DTFDSettings,
    CLAMSettings,
    ClassifierSettings,
    EvaluationSettings,
    MachineSettings,
    RunSettings,
):
    """Train multiple instance learning end to end: an encoder and an aggregator, on whole bags."""

    SECTION = "data"
    EXAMPLE = (
        "--task mil --model transmil --bags folder --data my_bags --encoder resnet18 --mode accumulate "
        "--instances-at-once 32 --out runs/mine"
    )

    task: str = "mil"
    mode: str = flag(
        "accumulate",
        choices={
            "accumulate": "exact gradients over slices of --instances-at-once instances",
            "offload": "the same, with slices and stores planned for the memory",
            "device": "plain Keras on whole bags, same data and seed",
            "unified": UNIFIED,
            "frozen": "the encoder is not trained",
        },
    )
    tile_weights: bool = flag(
        False,
        help="weight training bags by their number of tiles, divided by its mean; multiplies --class-weights",
        only_if={"target": ("class",)},
        section="optimisation",
    )


@dataclass(frozen=True, kw_only=True)
class ImageNetwork:
    """Encoder and head of `--task images`."""

    SECTION = "network"

    encoder: str = flag(
        "strided",
        choices=[*TRUNKS, *NETWORKS, "series"],
        help="network of a patch; series: that of PatchGD for series, .npy files [samples, channels] of float32",
    )
    latent: int = flag(64, type=types.count, help="channels of a code; published: 256")
    code: str | None = flag(
        choices=["vector", "map"],
        help="code of a patch. vector: pooled, as published; map: output of the network without pooling (default: "
        "map, for slides vector, because a head over all maps takes too long)",
        only_if={"mode": ("patchgd",)},
    )
    head: str = flag(
        "transformer",
        choices=[*HEADS, "series"],
        help="network over the latent grid; linear: one linear layer, for --mode device the network without a head, "
        "for --encoder series that of the paper, while series is that of its code",
    )
    head_width: int = flag(64, type=types.count, help="channels of the head; published: 256")


@dataclass(frozen=True, kw_only=True)
class ImagePatches(PatchSettings):
    """Patches of `--task images`, and their hierarchy."""

    SECTION = "patches"
    ONLY_IF: ClassVar[Conditions] = {"mode": ("patchgd",)}

    patch_stride: int | None = flag(
        was=("stride",),
        type=types.count,
        help="pixels from one patch to the next (default: --patch)",
    )
    inner_patch: int | None = flag(
        type=types.count,
        help="rows and columns of patches inside each patch, for a hierarchy: a patch has a latent grid of its own, "
        "and its code, by another --head, is what the latent grid of the image holds (default: no hierarchy)",
    )
    inner_sampling: int | float | None = flag(
        type=types.sampling,
        help="inner patches of a patch that are trained at a time, as --sampling (default: all, which is exact)",
        only_if={"inner_patch": GIVEN},
    )
    sampler: str = flag(
        "shuffle", choices=SAMPLERS, help="how the patches of an inner step are drawn"
    )


@dataclass(frozen=True, kw_only=True)
class ImageSettings(
    TaskSettings,
    TargetSettings,
    ImageDataSettings,
    BackgroundSettings,
    ImageNetwork,
    EncoderWeights,
    ClassifierSettings,
    ImagePatches,
    MachineSettings,
    RunSettings,
):
    """Train a network on whole images with a label each: exactly, strip by strip, or by patch gradient descent."""

    SECTION = "data"
    EXAMPLE = (
        "--task images --data my_images --encoder resnet18 --head linear --encoder-weights imagenet --batch-size 1 "
        "--epochs 30 --out runs/mine"
    )

    task: str = "images"
    mode: str = flag(
        "offload",
        choices={
            "offload": "whole images, strip by strip: exact, within the memory limits",
            "device": "plain Keras on whole images, same network, data and seed",
            "unified": UNIFIED,
            "patchgd": "latent grid of patches, of which a share is trained at a time: approximate",
        },
    )
    epochs: int = 8
    batch_size: int = flag(16, help="images of a step, all of the same size", trains=False)


TrainSettings: TypeAlias = (
    SegmentationSettings
    | MILSettings
    | ImageSettings
    | PatchGDSegmentationSettings
    | VolumeSegmentationSettings
    | SceneSettings
    | InstanceSettings
)
"""Settings of a training run or an evaluation of any task."""

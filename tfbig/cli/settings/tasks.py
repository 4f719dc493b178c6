"""Settings of each task of `--task`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tfbig.cli.settings import choices
from tfbig.cli.settings import value_types as types
from tfbig.cli.settings.background_settings import BackgroundSettings
from tfbig.cli.settings.data_settings import BagSettings, ImageDataSettings, SplitSettings
from tfbig.cli.settings.flag import PLACE, flag
from tfbig.cli.settings.instance_settings import InstanceSettings
from tfbig.cli.settings.patch_settings import PatchSettings
from tfbig.cli.settings.patchgd_segmentation_settings import PatchGDSegmentationSettings
from tfbig.cli.settings.run_settings import (
    UNIFIED,
    MachineSettings,
    RunSettings,
    SeedSettings,
    evaluated_run_flag,
    mode_flag,
    task_flag,
)
from tfbig.cli.settings.scene_settings import SceneSettings
from tfbig.cli.settings.target_settings import TargetSettings
from tfbig.cli.settings.training_settings import (
    ClassifierSettings,
    EvaluationSettings,
    KeepSettings,
    OptimizerSettings,
    ScheduleSettings,
    batch_size_flag,
    channels_flag,
    encoder_weights_flag,
    epochs_flag,
)
from tfbig.cli.settings.volume_segmentation_settings import VolumeSegmentationSettings


@dataclass(frozen=True, kw_only=True)
class SegmentationTask:
    """Task, mode and data of `--task segmentation`."""

    SECTION = "data"

    task: str = task_flag("segmentation")
    mode: str = mode_flag(
        {
            "offload": "strip by strip, images stored in host memory or on disk",
            "device": "plain Keras on whole crops, same data and seed",
            "unified": UNIFIED,
        }
    )
    data: str | None = flag(
        exists="folder",
        kind=PLACE,
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
    )
    crop: str = flag(
        "1024x1024",
        type=types.crop,
        metavar="HxW",
        help=f"rows x columns of a crop in pixels, multiples of {choices.UNET_STRIDE}, or whole: each training "
        "slide whole, once in an epoch; validation and test use whole slides",
    )
    augment: str = flag(
        "brightness",
        choices=choices.SLIDE_AUGMENTATIONS,
        help="augmentation of training images. brightness: up to 10 gray levels, drawn again in every epoch; labels "
        "that are computed from the slide are computed again",
    )


@dataclass(frozen=True, kw_only=True)
class SegmentationTraining(OptimizerSettings, ScheduleSettings, KeepSettings):
    """Training of `--task segmentation`."""

    SECTION = "training"

    epochs: int = epochs_flag(3)
    batch_size: int = batch_size_flag(1, "crops of a step")
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
    test_only: str | None = evaluated_run_flag(
        "the slides of --data: those of the table with split test; without a table all, or, in the folder it was "
        "trained on, the validation slide"
    )


@dataclass(frozen=True, kw_only=True)
class SegmentationSettings(
    SegmentationTask,
    BackgroundSettings,
    SplitSettings,
    SegmentationTraining,
    SeedSettings,
    MachineSettings,
    RunSettings,
):
    """Train the gigapixel U-Net to tell tissue from background on whole slides."""

    EXAMPLE = (
        "--mode offload --data my_slides --crop 16000x64000 --device-memory 1GB "
        "--epochs 20 --out runs/mine"
    )


@dataclass(frozen=True, kw_only=True)
class MILTask:
    """Task and mode of `--task mil`."""

    SECTION = "data"

    task: str = task_flag("mil")
    mode: str = mode_flag(
        {
            "accumulate": "exact gradients, accumulated over slices of --instances-at-once instances",
            "offload": "the same; the planner chooses slices and stores within the memory limits",
            "device": "plain Keras on whole bags, same data and seed",
            "unified": UNIFIED,
            "frozen": "the encoder is not trained; features are computed when they are needed",
        }
    )


@dataclass(frozen=True, kw_only=True)
class MILNetwork:
    """Encoder and aggregator of `--task mil`."""

    SECTION = "data"

    model: str = flag(
        "abmil",
        choices=choices.AGGREGATORS,
        help="aggregator of the bag; abmil_relu and abmil_gelu are those of the code of Big-Layers, for PANDA and for "
        "CAMELYON",
    )
    encoder: str = flag(
        "small",
        choices=["small", "lenet", *choices.RESNETS, *choices.PATHOLOGY_ENCODERS, "none"],
        help="network of an instance; none if bags hold features",
    )
    encoder_weights: str | None = encoder_weights_flag()
    mean: float | tuple[float, ...] | None = channels_flag(
        0.0, "mean", "a ResNet, or an encoder of pathology, which has its own"
    )
    std: float | tuple[float, ...] | None = channels_flag(
        1.0, "standard deviation", "a ResNet, or an encoder of pathology, which has its own"
    )
    lora: int | None = flag(
        type=types.count,
        metavar="RANK",
        help="of the encoder, a vision transformer, train only low-rank changes of its Dense layers (LoRA) (default: "
        "train all of it; --mode frozen trains nothing of it)",
    )
    hidden: int = flag(
        128,
        type=types.count,
        help="units of the attention layer; the published clam has 256",
    )
    width: int = flag(
        512,
        type=types.count,
        help="number of reduced features, of clam, abmilx, dtfd, transmil, transformer and attention",
    )
    pseudo_bags: int = flag(4, type=types.count, help="pseudo-bags of dtfd")
    distillation: str = flag(
        "AFS",
        choices=choices.DISTILLATIONS,
        help="feature distillation of dtfd",
    )
    two_tiers: bool = flag(False, help="dtfd: train each tier only with its own loss")
    instance_samples: int = flag(
        8,
        type=types.count,
        metavar="K",
        help="clam: most and least attended instances of a bag that its classifiers of instances learn from, so many "
        "of each",
    )
    instance_loss: str = flag(
        "cross_entropy",
        choices=choices.INSTANCE_LOSSES,
        help="clam: loss of the instances; svm: smooth support vector machine",
    )
    subtyping: bool = flag(
        False,
        help="clam: bags have instances of their own class only, so that the most attended ones are wrong for others",
    )
    bag_weight: float | None = flag(
        type=types.share,
        metavar="SHARE",
        help="clam and dsmil: weight of the loss of the bag; that of the instances has the rest (default: 0.7 for "
        "clam, 0.5 for dsmil)",
    )
    norm: str = flag(
        "exact",
        choices=[*choices.NORMS, "none"],
        help="BatchNormalization of the encoder in training; none removes it",
    )
    published: bool = flag(
        False,
        help="use the published training loop of ABMIL-ACC, for comparison; --mode accumulate only",
    )
    instances_at_once: int = flag(
        8,
        kind=PLACE,
        type=types.count,
        help="largest number of instances of a slice; --mode accumulate and frozen only",
    )


@dataclass(frozen=True, kw_only=True)
class MILTraining(ClassifierSettings):
    """Training of `--task mil`."""

    SECTION = "training"

    tile_weights: bool = flag(
        False,
        help="weight training bags by their number of tiles, divided by its mean; multiplies --class-weights",
    )


@dataclass(frozen=True, kw_only=True)
class MILEvaluation(EvaluationSettings):
    """Evaluation of `--task mil`."""

    SECTION = "training"

    test_only: str | None = evaluated_run_flag("the test bags")


@dataclass(frozen=True, kw_only=True)
class MILSettings(
    MILTask,
    TargetSettings,
    BagSettings,
    MILNetwork,
    MILTraining,
    MILEvaluation,
    SeedSettings,
    MachineSettings,
    RunSettings,
):
    """Train multiple instance learning end to end: an encoder and an aggregator, on whole bags."""

    EXAMPLE = (
        "--task mil --model transmil --bags folder --data my_bags --encoder resnet18 "
        "--mode accumulate --instances-at-once 32 --out runs/mine"
    )


@dataclass(frozen=True, kw_only=True)
class ImageTask:
    """Task and mode of `--task images`."""

    SECTION = "data"

    task: str = task_flag("images")
    mode: str = mode_flag(
        {
            "offload": "whole images, strip by strip: exact, within the memory limits",
            "device": "plain Keras on whole images, same network, data and seed",
            "unified": UNIFIED,
            "patchgd": "latent grid of patches, of which a share is trained at a time: approximate",
        }
    )


@dataclass(frozen=True, kw_only=True)
class ImageNetwork:
    """Encoder and head of `--task images`."""

    SECTION = "data"

    encoder: str = flag(
        "strided",
        choices=[*choices.TRUNKS, *choices.NETWORKS, "series"],
        help="network of a patch; series: that of PatchGD for HAR",
    )
    encoder_weights: str | None = encoder_weights_flag()
    mean: float | tuple[float, ...] | None = channels_flag(0.0, "mean", "a ResNet or MobileNet")
    std: float | tuple[float, ...] | None = channels_flag(
        1.0, "standard deviation", "a ResNet or MobileNet"
    )
    latent: int = flag(64, type=types.count, help="channels of a code; published: 256")
    code: str | None = flag(
        choices=["vector", "map"],
        help="code of a patch. vector: pooled, as published; map: output of the network without pooling (default: "
        "map, for slides vector, because a head over all maps takes too long)",
    )
    head: str = flag(
        "transformer",
        choices=[*choices.HEADS, "series"],
        help="network over the latent grid; linear: one linear layer, for --mode device the network without a head, "
        "for --encoder series that of the paper, while series is that of its code",
    )
    head_width: int = flag(64, type=types.count, help="channels of the head; published: 256")
    warm_start: int | None = flag(
        type=types.count_from_zero,
        metavar="EPOCHS",
        help="epochs in which the trunk is first trained on single digits; 0 for none (default: "
        f"{choices.WARM_START_EPOCHS} for UltraMNIST without --encoder-weights, which is hard to learn from the sums "
        "only; else 0)",
    )


@dataclass(frozen=True, kw_only=True)
class ImageTraining(ClassifierSettings, PatchSettings):
    """Training and evaluation of `--task images`."""

    SECTION = "training"

    epochs: int = epochs_flag(8)
    batch_size: int = batch_size_flag(16, "images of a step, all of the same size")
    loss: str = flag(
        "cross_entropy",
        choices=choices.LOSSES,
        help="loss; binary_cross_entropy learns every class as a yes or no of its own, while probabilities are those "
        "of a softmax with either",
    )
    stride: int | None = flag(
        type=types.count, help="pixels from one patch to the next (default: --patch)"
    )
    inner_patch: int | None = flag(
        type=types.count,
        help="rows and columns of patches inside each patch, for a hierarchy: a patch has a latent grid of its own, "
        "and its code, by another --head, is what the latent grid of the image holds (default: no hierarchy)",
    )
    inner_sampling: int | float | None = flag(
        type=types.sampling,
        help="inner patches of a patch that are trained at a time, as --sampling (default: all, which is exact)",
    )
    sampler: str = flag(
        "shuffle",
        choices=choices.SAMPLERS,
        help="how the patches of an inner step are drawn",
    )
    test_only: str | None = evaluated_run_flag("the test images")


@dataclass(frozen=True, kw_only=True)
class ImageSettings(
    ImageTask,
    TargetSettings,
    ImageDataSettings,
    BackgroundSettings,
    ImageNetwork,
    ImageTraining,
    SeedSettings,
    MachineSettings,
    RunSettings,
):
    """Train a network on whole images with a label each: exactly, strip by strip, or by patch gradient descent."""

    EXAMPLE = (
        "--task images --data my_images --encoder resnet18 --head linear "
        "--encoder-weights imagenet --batch-size 1 --epochs 30 --out runs/mine"
    )


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

TASKS: dict[
    str,
    type[SegmentationSettings]
    | type[MILSettings]
    | type[ImageSettings]
    | type[PatchGDSegmentationSettings]
    | type[VolumeSegmentationSettings]
    | type[SceneSettings]
    | type[InstanceSettings],
] = {
    "segmentation": SegmentationSettings,
    "mil": MILSettings,
    "images": ImageSettings,
    "patchgd-segmentation": PatchGDSegmentationSettings,
    "volume-segmentation": VolumeSegmentationSettings,
    "scenes": SceneSettings,
    "instances": InstanceSettings,
}
"""Settings class of each task; the first is the default."""

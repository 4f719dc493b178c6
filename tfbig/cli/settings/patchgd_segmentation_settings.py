"""Settings of `--task patchgd-segmentation`."""

from __future__ import annotations

from dataclasses import dataclass

from tfbig.choices import NETWORKS, TRUNKS
from tfbig.cli.settings import choices
from tfbig.cli.settings import value_types as types
from tfbig.cli.settings.data_settings import DrawnSplits
from tfbig.cli.settings.flag import ENVIRONMENT, flag
from tfbig.cli.settings.patch_settings import PatchSettings
from tfbig.cli.settings.run_settings import (
    MachineSettings,
    RunSettings,
    TaskSettings,
)
from tfbig.cli.settings.training_settings import (
    EncoderWeights,
    OrderSettings,
    TrainingSettings,
)


@dataclass(frozen=True, kw_only=True)
class PatchGDSegmentationNetwork(EncoderWeights):
    """Encoder and decoder of `--task patchgd-segmentation`."""

    SECTION = "network"

    encoder: str = flag(
        "small",
        choices=[*TRUNKS, *NETWORKS],
        help="network of a patch, without pooling",
    )
    latent: int = flag(64, type=types.count, help="channels of a code")
    decoder_width: int = flag(
        64,
        type=types.count,
        help="channels of the first layer of the decoder; each doubling of the resolution halves them, down to 8 ",
    )
    context: int = flag(
        0,
        type=types.count_from_zero,
        help="number of adjacent patches on each side whose codes the decoder sees too",
    )
    backbone: str | None = flag(
        exists="folder",
        kind=ENVIRONMENT,
        path=True,
        metavar="RUN",
        help="run folder of this task, such as one with --downscale; its encoder and decoder initialise those of this "
        "run (default: random)",
    )


@dataclass(frozen=True, kw_only=True)
class PatchGDSegmentationSettings(
    TaskSettings,
    DrawnSplits,
    PatchGDSegmentationNetwork,
    TrainingSettings,
    OrderSettings,
    PatchSettings,
    MachineSettings,
    RunSettings,
):
    """Train PatchGD for masks: an encoder fills a latent grid, a decoder the mask, in the memory of a few patches."""

    SECTION = "data"
    EXAMPLE = (
        "--task patchgd-segmentation --data my_images --patch 128 --sampling 0.25 --backbone runs/small "
        "--out runs/mine"
    )

    task: str = "patchgd-segmentation"
    mode: str = flag(
        "patchgd",
        choices={
            "patchgd": "latent grid of patches; a share of them is encoded and decoded with a gradient at a time, with "
            "--sampling 1.0 all of them"
        },
    )
    data: str | None = flag(
        exists="folder",
        kind=ENVIRONMENT,
        path=True,
        metavar="FOLDER",
        help="folder of images (TIFF, SVS, NDPI, NPY, PNG, JPEG) with masks/NAME.* or NAME_mask.* of the same size for "
        "NAME.*, where values other than 0 are the object; or with a table images.csv: columns image, mask, and split "
        "(train, val, test) or patient",
    )
    downscale: int = flag(
        1,
        type=types.count,
        help="read images and masks this many times smaller, for a first run whose model is the --backbone of another ",
    )
    epochs: int = 10
    batch_size: int = flag(1, help="images of a step, all of the same size")
    monitor: str = flag(
        "loss",
        choices=["loss", "dice"],
        help="validation metric of --keep",
    )
    loss: str = flag(
        "binary_cross_entropy", choices=choices.MASK_LOSSES, help="loss", section="optimisation"
    )
    skip_mask_filling: bool = flag(
        False,
        help="compute the loss of an inner step on its patches alone, instead of filling the mask before the inner "
        "steps: nothing as large as the image is held in memory; not for --loss dice",
        section="optimisation",
    )

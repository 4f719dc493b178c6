"""Settings of `--task instances`."""

from __future__ import annotations

from dataclasses import dataclass

from tfbig.cli.settings import choices
from tfbig.cli.settings import value_types as types
from tfbig.cli.settings.channel_settings import ChannelSettings
from tfbig.cli.settings.data_settings import DrawnSplits
from tfbig.cli.settings.flag import ENVIRONMENT, flag
from tfbig.cli.settings.run_settings import (
    MASK_MODES,
    MachineSettings,
    RunSettings,
    TaskSettings,
)
from tfbig.cli.settings.training_settings import TrainingSettings


@dataclass(frozen=True, kw_only=True)
class InstanceNetwork:
    """U-Net of `--task instances`, and how its maps become instances."""

    SECTION = "network"

    filters: int = flag(
        16,
        type=types.count,
        help="channels of the first level of the U-Net; each further level has twice as many",
    )
    depth: int = flag(
        3,
        type=types.up_to_five,
        help="number of times that the U-Net halves rows and columns, 1 to 5",
    )
    threshold: float = flag(
        0.5,
        type=types.share,
        help="probability of foreground above which a pixel is part of an instance",
        trains=False,
    )
    marker_threshold: float = flag(
        0.5,
        type=types.share,
        help="distance from the border of an instance, as a share of the largest one, above which a pixel is part of "
        "its marker: an instance grows from each marker",
        trains=False,
    )


@dataclass(frozen=True, kw_only=True)
class InstanceSettings(
    TaskSettings,
    DrawnSplits,
    ChannelSettings,
    InstanceNetwork,
    TrainingSettings,
    MachineSettings,
    RunSettings,
):
    """Train a U-Net to tell instances apart, such as nuclei or cells, in images of any size."""

    SECTION = "data"
    EXAMPLE = "--task instances --data nuclei --out runs/nuclei"

    task: str = "instances"
    mode: str = flag("offload", choices=MASK_MODES)
    data: str | None = flag(
        exists="folder",
        kind=ENVIRONMENT,
        path=True,
        metavar="FOLDER",
        help="folder of images (TIFF, OME-Zarr, PNG, ...) with masks/NAME.* or NAME_masks.* of the same size for "
        "NAME.*, where each instance has a number of its own and 0 is background, as Cellpose and StarDist use them; "
        "or with a table images.csv: columns image, mask, and split (train, val, test) or patient",
    )
    crops: int | None = flag(
        type=types.count,
        help="number of crops of an epoch, from each training image in turn, at random places (default: one of each "
        "image, or as many as cover all images)",
        trains=True,
    )
    crop: str = flag(
        "256x256",
        type=types.crop_of_32,
        metavar="HxW",
        help="rows x columns of a crop in pixels, multiples of 32",
    )
    augment: str = flag(
        "flips",
        choices=choices.CROP_AUGMENTATIONS,
        help="augmentation of crops. flips: of rows and columns, and quarter turns of square crops; intensities: that, "
        "and brighter, darker, more or less contrast of each channel",
        trains=True,
    )
    epochs: int = 50
    batch_size: int = flag(4, help="crops of a step")
    monitor: str = flag("loss", choices=["loss"])

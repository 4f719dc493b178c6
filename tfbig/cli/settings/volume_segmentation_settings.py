"""Settings of `--task volume-segmentation`."""

from __future__ import annotations

from dataclasses import dataclass

from tfbig.cli.settings import choices
from tfbig.cli.settings import value_types as types
from tfbig.cli.settings.data_settings import DrawnSplits
from tfbig.cli.settings.flag import ENVIRONMENT, Unless, flag
from tfbig.cli.settings.run_settings import (
    MASK_MODES,
    MachineSettings,
    RunSettings,
    TaskSettings,
)
from tfbig.cli.settings.training_settings import TrainingSettings


@dataclass(frozen=True, kw_only=True)
class VoxelSettings:
    """Spacing, orientation and intensities at which the network reads volumes."""

    SECTION = "voxels"

    spacing: tuple[float, ...] | None = flag(
        nargs=3,
        type=types.positive,
        metavar=("PLANES", "ROWS", "COLUMNS"),
        help="resample volumes to voxels of so many millimetres, images linearly, labels to the nearest voxel; masks "
        "are written on the grid of the file (default: voxels of the files)",
    )
    orientation: str | None = flag(
        type=types.orientation,
        metavar="CODE",
        help="turn volumes so that planes, rows and columns grow in these directions of the patient, such as SAR (to "
        "the top, to the front, to the right); stored: as they are stored (default: the orientation of the first "
        "training volume)",
    )
    intensity_window: tuple[float, ...] | None = flag(
        nargs=2,
        type=float,
        metavar=("LOW", "HIGH"),
        help="clip values to this range and map it to -1 to 1, e.g. -1000 1000 for CT (default: subtract the mean of "
        "each channel of a volume, and divide by its standard deviation)",
    )


@dataclass(frozen=True, kw_only=True)
class VolumeNetwork:
    """Network of `--task volume-segmentation`."""

    SECTION = "network"

    stage_filters: tuple[int, ...] = flag(
        (32, 64, 128, 256, 320, 320),
        was=("filters",),
        nargs="+",
        type=types.count,
        metavar="N",
        help="filters of each stage of the encoder, the finest first (default: 32 64 128 256 320 320)",
    )
    strides: tuple[str, ...] | None = flag(
        nargs="+",
        type=types.stride,
        metavar="DxHxW",
        help="stride of each stage after the first, such as 1x2x2 where planes are far apart (default: 2x2x2 for each)",
    )
    loss: str = flag(
        "dice_crossentropy",
        choices=choices.VOLUME_LOSSES,
        help="loss; dice_crossentropy: both, as nnU-Net",
        section="optimisation",
    )


@dataclass(frozen=True, kw_only=True)
class VolumeSegmentationSettings(
    TaskSettings,
    DrawnSplits,
    VoxelSettings,
    VolumeNetwork,
    TrainingSettings,
    MachineSettings,
    RunSettings,
):
    """Train a 3-D U-Net on volumes of CT, MR or microscopes: on crops, or on whole volumes."""

    SECTION = "data"
    EXAMPLE = (
        "--task volume-segmentation --data Dataset004_Hippocampus --crop whole --out runs/mine"
    )

    task: str = "volume-segmentation"
    mode: str = flag("offload", choices=MASK_MODES)
    data: str | None = flag(
        exists="folder",
        kind=ENVIRONMENT,
        path=True,
        metavar="FOLDER",
        help="folder of a data set of nnU-Net or of the Medical Segmentation Decathlon, with dataset.json; or folder "
        "with a table volumes.csv: columns image (of several channels image_0, image_1, ...), label, and optional "
        "case_id and split (train, val, test). Volumes are NIfTI, NRRD or DICOM",
    )
    class_names: tuple[str, ...] | None = flag(
        nargs="+",
        metavar="NAME",
        help="names of the labels 0, 1, ..., of which 0 is the background (default: those of dataset.json)",
    )
    crops: int = flag(
        100,
        type=types.count,
        help="number of crops of the training volumes in an epoch, from each volume in turn, at random places that "
        "are drawn again in every epoch",
        only_if={"crop": Unless((choices.WHOLE,))},
        trains=True,
    )
    crop: str = flag(
        "96x96x96",
        type=types.box,
        metavar="DxHxW",
        help="planes x rows x columns of a crop in voxels of the network, multiples of its total stride, or whole: "
        "each training volume whole, once in an epoch; validation and test use whole volumes",
    )
    foreground: float = flag(
        0.33,
        type=types.share,
        help="share of the crops that are centred at a voxel of a class but the background",
        only_if={"crop": Unless((choices.WHOLE,))},
        trains=True,
    )
    augment: str = flag(
        "mirror",
        choices=choices.VOLUME_AUGMENTATIONS,
        help="augmentation of training volumes. mirror: reversed along each axis in half of the cases, drawn again "
        "in every epoch",
        trains=True,
    )
    epochs: int = 20
    batch_size: int = flag(1, help="crops of a step")
    clip: float | None = flag(
        12.0,
        help="clip the global norm of the gradient to this value; 0 for no clipping",
    )
    schedule: str = "step-cosine"
    keep: str = "last"
    monitor: str = flag("loss", choices=["loss", "dice"])

"""Settings of `--task scenes`."""

from __future__ import annotations

from dataclasses import dataclass

from tfbig.cli.settings import choices
from tfbig.cli.settings import value_types as types
from tfbig.cli.settings.data_settings import DrawnSplits
from tfbig.cli.settings.flag import ENVIRONMENT, flag
from tfbig.cli.settings.run_settings import (
    MASK_MODES,
    MachineSettings,
    RunSettings,
    TaskSettings,
)
from tfbig.cli.settings.training_settings import TrainingSettings


def scene_crop(text: str) -> str:
    """Check rows x columns of a crop of a scene, or whole, and return them."""
    if text == choices.WHOLE:
        return text
    try:
        rows, columns = types.crop_size(text.lower())
    except ValueError:
        raise types.WrongValue(f"'{text}' is not rows x columns, e.g. 512x512, or whole") from None
    if min(rows, columns) < 1:
        raise types.WrongValue(f"'{text}': both must be at least 1")
    return f"{rows}x{columns}"


@dataclass(frozen=True, kw_only=True)
class SceneSettings(
    TaskSettings,
    DrawnSplits,
    TrainingSettings,
    MachineSettings,
    RunSettings,
):
    """Train a U-Net on satellite scenes, without cutting them into files: classes or values of every pixel."""

    SECTION = "data"
    EXAMPLE = "--task scenes --data scenes.csv --label-column class --out runs/mine"

    task: str = "scenes"
    mode: str = flag("offload", choices=MASK_MODES)
    data: str | None = flag(
        exists="file",
        kind=ENVIRONMENT,
        path=True,
        metavar="TABLE",
        help="table *.csv: columns scene (GeoTIFF, COG, JPEG 2000 or VRT), label (a raster on any grid; or outlines: "
        "GeoJSON, GeoPackage, shapefile), and optional split (train, val, test). Paths are "
        "relative to the table; labels are reprojected to their scene",
    )
    target: str = flag(
        "class",
        choices=choices.SCENE_TARGETS,
        help="what is predicted of a pixel. class: a class number, up to 65534; regression: a number, of a raster of "
        "floats or of a column of outlines. Pixels that are nodata in the label or in the scene do not count",
    )
    label_column: str | None = flag(
        metavar="COLUMN",
        help="column of outlines with the class or value; pixels outside all outlines are the class background, and "
        "have no value (default: all outlines are one class)",
    )
    class_names: tuple[str, ...] | None = flag(
        nargs="+",
        metavar="NAME",
        help="class names in the order of their numbers from 0; of outlines, background first (default: of the labels)",
    )
    mean: tuple[float, ...] | None = flag(
        nargs="+",
        type=float,
        help="mean of each band, which the first layer subtracts (default: of samples of the training scenes)",
        section="network",
    )
    std: tuple[float, ...] | None = flag(
        nargs="+",
        type=types.positive,
        help="standard deviation of each band, by which the first layer divides (default: of samples of the training "
        "scenes)",
        section="network",
    )
    scale: float | None = flag(
        type=types.positive,
        help="instead of --mean and --std, divide all bands by this number, such as 10000 for reflectances of "
        "Sentinel-2",
        section="network",
    )
    filters: int = flag(
        16, type=types.count, help="channels of the first level of the U-Net", section="network"
    )
    depth: int = flag(
        4,
        type=types.count,
        help="number of times that the U-Net halves rows and columns",
        section="network",
    )
    crops: int = flag(
        100,
        type=types.count,
        help="number of crops of the training scenes in an epoch, at random places that are drawn again in every "
        "epoch; and most crops of the validation scenes, always the same",
        trains=True,
    )
    crop: str = flag(
        "512x512",
        type=scene_crop,
        metavar="HxW",
        help="rows x columns of a crop in pixels, multiples of 2 to the power of --depth; or whole: each scene whole, "
        "once in an epoch",
    )
    background: str | None = flag(
        None,
        choices=choices.BACKGROUNDS,
        help="skip: with --crop whole, and in predictions, compute one pixel of all nodata of a scene, which changes "
        "no result; compute: compute all of it (default: compute)",
    )
    epochs: int = 20
    batch_size: int = flag(4, help="crops of a step")
    loss: str | None = flag(
        choices=choices.SCENE_LOSSES,
        help="loss of a pixel: cross_entropy of classes; mse or huber of values, quadratic up to their deviation "
        "(default: cross_entropy, or mse)",
        section="optimisation",
    )
    value_scale: tuple[float, float] | None = flag(
        nargs=2,
        type=float,
        metavar=("MEAN", "DEVIATION"),
        only_if={"target": ("regression",)},
        help="mean and standard deviation of the values, which the last layer multiplies and "
        "adds (default: of samples of the training labels)",
        section="optimisation",
    )
    monitor: str = flag("loss", choices=["loss"])

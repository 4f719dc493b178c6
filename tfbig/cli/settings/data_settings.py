"""Settings of the data of a training run: slides of a table, bags and images."""

from __future__ import annotations

from dataclasses import dataclass

from tfbig.cli.settings import choices, data_kinds
from tfbig.cli.settings import value_types as types
from tfbig.cli.settings.flag import DECIDES_RESULT, ENVIRONMENT, GIVEN, flag
from tfbig.cli.settings.reader_settings import ReaderSettings

TABLES = {"bags": ("slides", "features"), "images": ("slides",)}
"""Kinds of data that are a table of slides."""
SLIDES = {"bags": ("slides",), "images": ("slides",)}
CLASSES = {"target": ("class",)}


@dataclass(frozen=True, kw_only=True)
class DrawnSplits:
    """Splits of data that says none, and files that are trusted."""

    SECTION = "data"

    shares: tuple[int, int, int] = flag(
        (70, 10, 20),
        nargs=3,
        type=types.split_share,
        metavar=("TRAIN", "VAL", "TEST"),
        help="shares of the splits, if neither the table nor another flag splits it",
        only_if={name: tuple(kinds) for name, kinds in data_kinds.KINDS.items()},
        trains=True,
    )
    confine: bool = flag(
        False,
        kind=ENVIRONMENT,
        help="refuse files that are outside of the folder of the data, after following links; for data that you do not "
        "trust",
    )


@dataclass(frozen=True, kw_only=True)
class EdgeSettings:
    """Tiles at the end of a slide."""

    SECTION = "tiles"

    edge: int = flag(
        0,
        type=types.count_from_zero,
        help="pixels of tiles that may be left at the right and bottom end of a slide; if there are more, another tile "
        "ends with the slide",
    )


@dataclass(frozen=True, kw_only=True)
class SplitSettings(DrawnSplits):
    """Slides of a table, and their splits."""

    SECTION = "data"

    slides: str | None = flag(
        exists="folder",
        kind=ENVIRONMENT,
        path=True,
        only_if=TABLES,
        metavar="FOLDER",
        help="folder of the slides of slides.csv, searched with subfolders (default: the folder of slides.csv; "
        "paths in its column path win)",
    )
    splits: str | None = flag(
        exists="file",
        kind=ENVIRONMENT,
        path=True,
        metavar="FILE",
        help="splits_0.csv in the format of CLAM: columns train, val, test",
        trains=True,
    )
    folds: int | None = flag(
        type=types.count,
        help="number of folds of cross-validation, by case and stratified by label; trains a run for each, in the "
        "folders fold-0, fold-1, ... of --out, and writes the mean and a confidence interval of each metric; the next "
        "fold is for validation (default: no folds)",
        trains=True,
    )
    fold: int | None = flag(
        type=types.count_from_zero,
        help="train only the run that tests this fold, from 0 (default: one for each fold)",
        only_if={"folds": GIVEN},
        trains=True,
    )
    group: str | None = flag(
        metavar="COLUMN",
        help="column of the table whose rows with one value are in one fold of --folds, such as the site or the "
        "scanner of a slide (default: folds by case)",
        only_if={"folds": GIVEN},
        trains=True,
    )
    eval_split: str = flag(
        "test",
        choices=choices.EVALUATED,
        help="slides of another table that tfbig evaluate uses: those of its split test, or all; never slides that the "
        "run was trained on",
        only_if=TABLES,
    )


@dataclass(frozen=True, kw_only=True)
class CohortSettings(SplitSettings, ReaderSettings):
    """Slides of a table, their splits, classes and resolution."""

    SECTION = "data"

    class_names: tuple[str, ...] | None = flag(
        nargs="+",
        metavar="NAME",
        help="class names, in order (default: the labels of the table, sorted; of several labels, its columns "
        "label_NAME)",
        only_if={"target": ("class", "multilabel")},
    )
    level: int | None = flag(only_if=SLIDES)
    mpp: float | None = flag(only_if=SLIDES)
    magnification: float | None = flag(only_if=SLIDES)
    mpp_of: str | None = flag(only_if=SLIDES)
    slide_mpp: float | None = flag(kind=DECIDES_RESULT, only_if=SLIDES)
    reader: str | None = flag(kind=DECIDES_RESULT, only_if=SLIDES)
    stain: str = flag(
        "none",
        choices=choices.STAINS,
        help="map the colours of each slide to common ones, by statistics of its tissue; predict and evaluate do the "
        "same",
        only_if=SLIDES,
    )
    stain_jitter: float = flag(
        0.0,
        type=types.share,
        metavar="SIGMA",
        help="random stains of training images (HED jitter), the same for a slide or bag; published: 0.05",
        trains=True,
    )


@dataclass(frozen=True, kw_only=True)
class BagKindSettings:
    """Kind and place of the bags."""

    SECTION = "data"

    bags: str = flag(
        "folder",
        choices=data_kinds.choices_of("bags"),
        help="what the bags are made of (default: what --data contains)",
    )
    data: str | None = flag(
        exists="folder",
        kind=ENVIRONMENT,
        path=True,
        metavar="FOLDER",
        help="folder of bags, or table of slides",
    )
    features: str | None = flag(
        exists="folder",
        kind=ENVIRONMENT,
        path=True,
        metavar="FOLDER",
        only_if={"bags": ("features",)},
        help="folder with SLIDE.h5 or SLIDE.pt, searched with subfolders, of tfbig features, TRIDENT "
        "(features_ENCODER), CLAM (with h5_files or pt_files) or STAMP (default: column path of the table, else "
        "the folder of the table)",
    )
    feature_width: int | None = flag(
        type=types.count,
        metavar="N",
        only_if={"bags": ("features",)},
        help="number of features of a tile; files with another number are skipped (default: that of "
        "the first file)",
    )


@dataclass(frozen=True, kw_only=True)
class TileSettings:
    """Tiles of slides as instances."""

    SECTION = "tiles"

    tile: int | None = flag(
        type=types.count,
        help="rows and columns of an instance, in pixels (default: that of --coords, else of --encoder-input "
        "published, else 256)",
        only_if=SLIDES,
    )
    coords: str | None = flag(
        exists="folder",
        kind=ENVIRONMENT,
        path=True,
        metavar="FOLDER",
        help="folder with SLIDE.h5 of tfbig tile, CLAM or TRIDENT (default: find tiles as tfbig tile does)",
        only_if=SLIDES,
    )
    tissue: str = flag(
        "colour",
        choices=choices.TISSUE,
        help="how tissue is found without --coords, as in tfbig tile",
        only_if=SLIDES,
    )
    min_tissue: float | None = flag(
        type=types.share,
        help="smallest share of tissue in a tile, 0 to 1 (default: that of --coords, else 0.6)",
        only_if=SLIDES,
    )


@dataclass(frozen=True, kw_only=True)
class InstanceSettings:
    """Selection and augmentation of the instances of a bag."""

    SECTION = "tiles"

    min_grey: float | None = flag(
        was=("foreground",),
        type=types.share,
        help="smallest share of grey values from 3 to 230 in a tile (default: any)",
    )
    fill: bool = flag(
        False,
        help="fill up training bags smaller than --sample with white tiles",
        only_if={"sample": GIVEN},
        trains=True,
    )
    augment: bool = flag(
        False,
        help="random blur, colours, flips and rotations, the same for a whole bag",
        trains=True,
    )
    augment_each: bool = flag(
        False,
        help="the same, but different for each instance; instead of --augment",
        trains=True,
    )
    sample: float | None = flag(
        type=types.positive,
        help="instances drawn from a training bag, or a share below 1 (default: all)",
        trains=True,
    )
    val_sample: float | None = flag(
        type=types.positive,
        help="instances drawn from a validation bag (default: all)",
        trains=True,
    )


@dataclass(frozen=True, kw_only=True)
class BagSettings(BagKindSettings, CohortSettings, TileSettings, EdgeSettings, InstanceSettings):
    """Bags of `--task mil`."""

    SECTION = "data"

    level: int | None = flag(
        help="resolution as a pyramid level instead, 0 is the finest (default: that of --coords, else --mpp 0.5)"
    )
    edge: int = flag(0, only_if=SLIDES)
    num_classes: int | None = flag(
        was=("classes",),
        type=types.count,
        help="number of classes of bags.csv, if labels are numbers (default: the largest label + 1)",
        only_if=CLASSES,
    )


@dataclass(frozen=True, kw_only=True)
class ImageKindSettings:
    """Kind of the images, and where they are."""

    SECTION = "data"

    images: str = flag(
        "folder",
        choices=data_kinds.choices_of("images"),
        help="what the images are (default: what --data contains)",
    )
    data: str | None = flag(
        exists="folder",
        kind=ENVIRONMENT,
        path=True,
        metavar="FOLDER",
        help="folder of images, or table of slides",
    )


@dataclass(frozen=True, kw_only=True)
class ImageFileSettings:
    """Reading and augmentation of image files."""

    SECTION = "data"

    side: int | None = flag(
        type=types.count,
        help="scale images to this many rows and columns (default: no scaling)",
    )
    keep_aspect: bool = flag(
        False,
        help="keep the aspect of images that --side scales: the shorter side gets --side / 0.95 pixels, and the "
        "middle is used",
        only_if={"side": GIVEN},
    )
    num_classes: int | None = flag(
        was=("classes",),
        type=types.count,
        help="number of classes of images.csv, if labels are numbers (default: the largest label + 1)",
        only_if=CLASSES,
    )
    augment: str | None = flag(
        choices=choices.AUGMENTATIONS,
        help="augmentation of training images. slide: random blur, colours, flips and rotations, the same for a whole "
        "image, drawn again in every epoch and applied while reading (default: none)",
        trains=True,
    )


@dataclass(frozen=True, kw_only=True)
class ImageDataSettings(ImageKindSettings, ImageFileSettings, CohortSettings):
    """Images of `--task images`."""

    level: int = 0

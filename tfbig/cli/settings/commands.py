"""Commands of `tfbig`: what each does, its settings, and the module that runs it."""

from __future__ import annotations

from dataclasses import dataclass

from tfbig.choices import MAX_VIEWS
from tfbig.cli.settings import choices
from tfbig.cli.settings import value_types as types
from tfbig.cli.settings.background_settings import BackgroundSettings
from tfbig.cli.settings.feature_settings import FeaturesSettings
from tfbig.cli.settings.flag import ENVIRONMENT, REQUIRED, THIS_START, flag
from tfbig.cli.settings.run_settings import MemorySettings
from tfbig.cli.settings.slide_settings import CustomCode, PredictSettings, TileSettings


@dataclass(frozen=True)
class Command:
    """A command of `tfbig`.

    Attributes:
        module: Module with `run(settings)`, which returns the exit code.
        about: What the command does, one sentence.
        settings: Settings class; None if it depends on `--task`.
        on_signal: What a signal does, printed when one arrives.
        after_signal: What holds after a signal, printed at the end.
    """

    module: str
    about: str
    settings: type | None = None
    on_signal: str = "stopping after this strip; press again to quit at once"
    after_signal: str = "finished slides are kept"


@dataclass(frozen=True, kw_only=True)
class DoctorSettings:
    """Settings of `tfbig doctor`."""

    data: str | None = flag(
        positional=True,
        nargs="?",
        exists="file or folder",
        metavar="DATA",
        help="folder of images, or a table that names them, to check before a run: every image is opened and every "
        "mask read; without it, report the machine",
    )
    json: bool = flag(False, kind=THIS_START, help="print one JSON object")


@dataclass(frozen=True, kw_only=True)
class PlannedModel(CustomCode):
    """The network and images of a plan."""

    model: str = flag(
        REQUIRED,
        positional=True,
        metavar="MODEL",
        help="run folder, .keras file, or name of a network of keras.applications, e.g. ResNet50",
    )
    size: str = flag(
        REQUIRED,
        positional=True,
        metavar="SIZE",
        help="rows x columns, e.g. 32768x32768; planes x rows x columns of a volume; one number if all are equal; a "
        "slide or a volume of that size; or tiles of a bag, e.g. 2000",
    )
    batch_size: int = flag(1, type=types.count, help="images or bags of a batch (default: 1)")
    inference: bool = flag(False, help="plan a prediction instead of a training step")


@dataclass(frozen=True, kw_only=True)
class PlanSettings(PlannedModel, BackgroundSettings, MemorySettings):
    """Settings of `tfbig plan`."""

    store: str | None = flag(
        choices=["bfloat16", "float16"],
        help="dtype of stored images (default: the dtype of the model)",
    )


@dataclass(frozen=True, kw_only=True)
class DatasetSettings:
    """Settings of `tfbig dataset`."""

    name: str = flag(
        REQUIRED,
        positional=True,
        choices=choices.COLLECTIONS,
        metavar="NAME",
        help=f"name of the data set, of which tfbig dataset NAME says more: {', '.join(choices.COLLECTIONS)}",
    )
    folder: str | None = flag(
        positional=True,
        nargs="?",
        metavar="FOLDER",
        help="folder of the downloaded files; without it, print which files are expected, and stop",
    )
    out: str | None = flag(
        kind=ENVIRONMENT,
        metavar="DIR",
        help="folder for the table: slides.csv, with splits_0.csv in the format of CLAM, or images.csv (default: not "
        "written)",
    )
    features: str | None = flag(
        exists="folder",
        kind=ENVIRONMENT,
        metavar="FOLDER",
        help="folder with SLIDE.h5, features of the slides as CLAM and TRIDENT write them: also write bags.csv, and "
        "print the commands that train on it",
    )
    folds: int | None = flag(
        type=types.count,
        help="write splits_0.csv, splits_1.csv, ... of k-fold cross-validation: by case, stratified by label",
    )
    seed: int = flag(0, type=int, help="random seed of splits that are drawn (default: 0)")


@dataclass(frozen=True, kw_only=True)
class ReportSettings:
    """Settings of `tfbig report`."""

    folder: str = flag(
        REQUIRED,
        exists="folder",
        positional=True,
        metavar="FOLDER",
        help="results folder of train, evaluate, tile or predict",
    )
    max_slides: int = flag(
        MAX_VIEWS,
        type=types.count,
        help="most slides with a zoomable view: 0.7 MB each, 20 MB all together",
    )


@dataclass(frozen=True, kw_only=True)
class CompareSettings:
    """Settings of `tfbig compare`."""

    runs: tuple[str, ...] = flag(
        REQUIRED,
        exists="folder",
        positional=True,
        nargs="+",
        metavar="RUN",
        help="run folders of train or evaluate, or folders of --seeds or --folds; differences are from the first",
    )
    out: str = flag(
        REQUIRED,
        kind=ENVIRONMENT,
        metavar="DIR",
        help="folder for the table, the picture and the report",
    )


def _training(about: str) -> Command:
    """A command that trains or evaluates; its settings depend on `--task`."""
    return Command(
        "tfbig.cli.commands.train",
        about,
        on_signal="stopping after this strip, with a checkpoint; press again to quit at once",
        after_signal="--resume with --out continues from here",
    )


COMMANDS = {
    "train": _training(
        "Train a network on slides, on bags of tiles, or on large images; the same as train.py."
    ),
    "evaluate": _training(
        "Evaluate a trained model on labelled test data: the flags of train, over those of its run; nothing is trained."
    ),
    "doctor": Command(
        "tfbig.cli.commands.doctor",
        "Report versions, devices, memory and readers, and how to install what is missing; or check a folder or table "
        "of images.",
        DoctorSettings,
    ),
    "plan": Command(
        "tfbig.cli.commands.plan",
        "Print memory, disk and time of a model for images of a given size, before anything runs.",
        PlanSettings,
    ),
    "dataset": Command(
        "tfbig.cli.commands.dataset",
        "Check a downloaded public data set, write its table and splits, and print the commands that train on it.",
        DatasetSettings,
    ),
    "tile": Command(
        "tfbig.cli.commands.tile",
        "Find tissue on slides and the tiles that hold it; write coordinates for CLAM and TRIDENT, and pictures.",
        TileSettings,
    ),
    "features": Command(
        "tfbig.cli.commands.features",
        "Encode the tiles of slides once; write their features as TRIDENT does, and a table to train on.",
        FeaturesSettings,
    ),
    "predict": Command(
        "tfbig.cli.commands.predict",
        "Predict masks or classes of slides of any size: files for QuPath, pictures and a table.",
        PredictSettings,
    ),
    "compare": Command(
        "tfbig.cli.commands.compare",
        "Compare finished runs on the cases that they tested, with confidence intervals of metrics and differences.",
        CompareSettings,
    ),
    "report": Command(
        "tfbig.cli.commands.report",
        "Write the report of a run again: one HTML file that opens without a network connection.",
        ReportSettings,
    ),
}
"""Commands by name, in the order of the help."""

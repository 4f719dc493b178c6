"""Settings of `tfbig evaluate`: the flags of train, over those of the run that is evaluated."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from tfbig.choices import CONFIG
from tfbig.cli import paths
from tfbig.cli.settings import help_text, merge, parser, training, yaml_flags
from tfbig.cli.settings.flag import Flag, flags_of, saved_value
from tfbig.cli.settings.merge import Layer
from tfbig.cli.settings.series import members
from tfbig.cli.settings.tasks import TrainSettings
from tfbig.errors import SourceError
from tfbig.tasks import DEFAULT, TASKS

PROG = "tfbig evaluate"
ABOUT_RUN = (
    "run folder of train, or a folder of its --seeds or --folds, of which all are evaluated; after it, --help has the "
    "flags of its task"
)
ABOUT_FLAGS = (
    "Flags win over --config, and that over the settings of the run. With other data, --data, all its slides or images "
    'are evaluated, or those with split "test" if its table has a column split and --eval-split is not all, but never '
    "slides that the run was trained on."
)
EXAMPLE = "Example: tfbig evaluate runs/mine --data other/slides.csv --slides OTHER --out results"
RUN = Flag("run", None, "str", "", help=ABOUT_RUN, positional=True, metavar="RUN")
DATA_SETTINGS = ("slides", "coords", "splits", "folds", "fold", "group")
"""Settings that belong to the data of the run, not to another --data."""
SPLITS_OF_TABLE = "Choose test slides with a column split in the table."


def parse(argv: Sequence[str], about: str) -> TrainSettings:
    """Return the settings of a command line `RUN FLAGS`; print the help and exit if it asks for it.

    Args:
        argv: The command line.
        about: What the command does, for its help.

    Raises:
        FlagError: There is no such folder, or a flag is wrong, or only for training.
        SourceError: `RUN` is not a run folder.
    """
    run = "" if not argv or argv[0].startswith("-") else argv[0]
    if not run and parser.asks_for_help(argv):
        print(page(argv, about, DEFAULT))
        raise SystemExit(0)
    if not run:
        raise paths.FlagError(
            f"RUN is missing: the run folder comes first. `{PROG} --help` has more."
        )
    paths.check_path(run, run, "folder")
    saved = _saved(run)
    task = training.task_of([saved], PROG)
    if parser.asks_for_help(argv):
        print(page(argv, about, task))
        raise SystemExit(0)
    given = training.read(argv[1:], task, PROG)
    _check_flags(given, saved, task)
    config = given.values.get("config") or []
    recipe = [yaml_flags.layer_of(file) for file in config]
    evaluated = {
        "test_only": run,
        "out": str(Path(run) / f"evaluation-{time.strftime('%Y%m%d-%H%M%S')}"),
    }
    layers = [_without_replaced(saved, given), *recipe, Layer({**evaluated, **given.values})]
    return training.merged(training.task_of(layers, PROG), layers, PROG)


def page(argv: Sequence[str], about: str, task: str) -> str:
    """The help: the flags of a task that an evaluation may change."""
    flags = {
        name: flag
        for name, flag in flags_of(TASKS[task].settings_class()).items()
        if not flag.trains and name not in ("task", "test_only")
    }
    values = {name: parser.given(argv, name) for name in flags}
    values = {name: value for name, value in values.items() if value is not None}
    return help_text.page(
        f"{PROG} RUN [FLAGS]", f"{about} {ABOUT_FLAGS}", {"run": RUN, **flags}, EXAMPLE, values
    )


def _saved(run: str) -> Layer:
    """Read the settings of a run; of a series, those of its first run, which has what its data decided.

    Raises:
        SourceError: It is no run folder.
    """
    config = Path(run) / CONFIG
    if not config.exists():
        raise SourceError(f"{run}: is not a run folder of train; expected one with {CONFIG}.")
    layer = yaml_flags.layer_of(config)
    if several := members(layer.values, str(config)):
        return yaml_flags.layer_of(several[0].folder(run) / CONFIG)
    return layer


def _without_replaced(saved: Layer, given: Layer) -> Layer:
    """Drop the settings of a run that flags of the evaluation replace."""
    replaced = {"encoder_weights"}  # the run has weights of its own
    if "data" in given.values:
        replaced |= {*DATA_SETTINGS}
    if "leave_out" in given.values:  # both say where background is
        replaced |= {"tissue"}
    if "tissue" in given.values:
        replaced |= {"leave_out"}
    kept = {name: value for name, value in saved.values.items() if name not in replaced}
    return Layer(kept, saved.file, is_run=True)


def _check_flags(given: Layer, saved: Layer, task: str) -> None:
    """Check that no flag is only for training, but one that repeats what the run was trained with.

    Raises:
        FlagError: One is.
    """
    flags = flags_of(TASKS[task].settings_class())
    for name, raw in given.values.items():
        flag = flags[name]
        if not flag.trains:
            continue
        value = saved_value(flag, merge.value_of(flag, raw, flag.shown))
        if value != saved.values.get(name, saved_value(flag, flag.default)):
            advice = SPLITS_OF_TABLE if name in DATA_SETTINGS else "Leave it out."
            raise paths.FlagError(f"{flag.shown}: is only for training. {advice}")

"""Settings of `tfbig evaluate`: the flags of train, over those of the run that is evaluated."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from tfbig.choices import CONFIG
from tfbig.cli import paths
from tfbig.cli.settings import flag_errors, training, yaml_flags
from tfbig.cli.settings.run_settings import RunSettings
from tfbig.cli.settings.series import members
from tfbig.cli.settings.tasks import TrainSettings
from tfbig.errors import SourceError

HELP = """usage: tfbig evaluate RUN [FLAGS]

RUN is a run folder of train, or a folder of its --seeds or --folds, of which all are evaluated. FLAGS are flags of
tfbig train; they win over --config, and that over the settings of the run. With other data, --data, all its slides
or images are evaluated, or those with split "test" if its table has a column split and --eval-split is not all, but
never slides that the run was trained on. Results go to --out (default: RUN/evaluation-<date>-<time>). Example:
  tfbig evaluate runs/mine --data other/slides.csv --slides OTHER --out results"""
DATA_SETTINGS = ("slides", "coords", "splits", "folds", "fold", "group")
"""Settings that belong to the data of the run, not to another --data."""
SPLIT_FLAGS = ("--splits", "--folds", "--fold", "--group")


def parse(argv: Sequence[str], about: str) -> TrainSettings:
    """Return the settings of a command line `RUN FLAGS`.

    Args:
        argv: The command line.
        about: What the command does, for its help.

    Raises:
        FlagError: There is no such folder.
        SourceError: `RUN` is not a run folder, or a flag is only for training.
    """
    if not argv or argv[0].startswith("-"):
        print(f"{about}\n\n{HELP}")
        raise SystemExit(0 if argv[:1] in (["--help"], ["-h"]) else 2)
    run, *flags = argv
    paths.check_path(run, run, "folder")
    config = Path(run) / CONFIG
    if not config.exists():
        raise SourceError(f"{run}: is not a run folder of train; expected one with {CONFIG}.")
    names = [flag.partition("=")[0].replace("_", "-") for flag in flags]
    _check_flags(names)
    values = yaml_flags.read_yaml(config)
    if several := members(
        values, str(config)
    ):  # the first run has the settings that its data decided
        values = yaml_flags.read_yaml(several[0].folder(run) / CONFIG)
    values.pop("encoder_weights", None)  # the run has weights of its own
    if "--data" in names:
        values = {key: value for key, value in values.items() if key not in DATA_SETTINGS}
    if "--leave-out" in names:  # each says in its own way where background is
        values.pop("tissue", None)
    if "--tissue" in names:
        values.pop("leave_out", None)
    if "--out" not in names:
        flags += ["--out", str(Path(run) / f"evaluation-{time.strftime('%Y%m%d-%H%M%S')}")]
    tokens = yaml_flags.tokens_of(values, config, RunSettings)
    recipe, flags = _of_config_file(flags)
    return training.parse([*tokens, *recipe, "--test-only", run, *flags], "tfbig evaluate")


def _of_config_file(flags: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the flags of the file of `--config`, and the other flags."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--config", metavar="FILE")
    flag_errors.shorten(first, {"--config": {"metavar": "FILE"}})
    given, others = first.parse_known_args(flags)
    return yaml_flags.read_tokens(given.config, RunSettings) if given.config else [], others


def _check_flags(names: Sequence[str]) -> None:
    """Check that no flag is about splits.

    Raises:
        SourceError: One is.
    """
    splitting = [name for name in names if name in SPLIT_FLAGS]
    if splitting:
        raise SourceError(
            f"{splitting[0]}: is only for training. Choose test slides with a column split in the table."
        )

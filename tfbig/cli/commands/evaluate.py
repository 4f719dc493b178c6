"""Evaluate a trained model on labelled test data: the flags of train, over those of its run; nothing is trained."""

import time
from pathlib import Path

from tfbig import SourceError
from tfbig.cli import paths
from tfbig.cli import settings as command_line
from tfbig.cli.commands import train
from tfbig.results import run_folder

HELP = """usage: tfbig evaluate RUN [FLAGS]

RUN is a run folder of train. FLAGS are flags of tfbig train; they win over the settings of the run. With another table,
--data, all its slides are evaluated, or those with split "test" if it has a column split, but never slides that the run
was trained on. Results go to --out (default: RUN/evaluation-<date>-<time>). Example:
  tfbig evaluate runs/mine --data other/slides.csv --slides OTHER --out results"""
DATA_SETTINGS = ("slides", "coords", "splits", "folds", "fold")
"""Settings that belong to the data of the run, not to another --data."""
SPLIT_FLAGS = ("--splits", "--folds", "--fold")


def main(argv):
    """Run the command line `RUN FLAGS` and return the exit code."""
    if not argv or argv[0].startswith("-"):
        print(f"{train.first_line(__doc__)}\n\n{HELP}")
        return 0 if argv[:1] in (["--help"], ["-h"]) else 2
    run, *flags = argv
    paths.check_path(run, run, "folder")
    config = Path(run) / run_folder.CONFIG
    if not config.exists():
        raise SourceError(
            f"{run}: is not a run folder of train; expected one with {run_folder.CONFIG}."
        )
    names = [flag.partition("=")[0].replace("_", "-") for flag in flags]
    splitting = [flag for flag in names if flag in SPLIT_FLAGS]
    if splitting:
        raise SourceError(
            f"{splitting[0]}: is only for training. Choose test slides with a column split in the table."
        )
    values = command_line.read_yaml(config)
    if "--data" in names:
        values = {key: value for key, value in values.items() if key not in DATA_SETTINGS}
    if "--out" not in names:
        flags += ["--out", str(Path(run) / f"evaluation-{time.strftime('%Y%m%d-%H%M%S')}")]
    arguments = [*command_line.tokens_of(values, config), "--test-only", run, *flags]
    return train.main(arguments, "tfbig evaluate")

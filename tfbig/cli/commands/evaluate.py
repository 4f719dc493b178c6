"""Judges a trained model on test data with labels: the flags of train, over those of its run; nothing is trained."""

import time
from pathlib import Path

from tfbig import SourceError
from tfbig.cli import settings as command_line
from tfbig.cli.commands import train
from tfbig.results import run_folder

HELP = """usage: tfbig evaluate RUN [FLAGS]

Flags are those of tfbig train, over those of the run. Slides of another table, --data, are all judged, or those that
its column split calls test, but never those that the run learned from. For example:
  tfbig evaluate runs/mine --data other/slides.csv --slides OTHER --out results"""
OF_DATA = ("slides", "coords", "splits", "folds", "fold")
"""Settings that belong to the data of the run, and not to that of another --data."""
SPLITTING = ("--splits", "--folds", "--fold")


def main(argv):
    """Runs the command line `RUN FLAGS`; gives the exit code."""
    if not argv or argv[0].startswith("-"):
        print(f"{train.about(__doc__)}\n\n{HELP}")
        return 0 if argv[:1] in (["--help"], ["-h"]) else 2
    run, *flags = argv
    config = Path(run) / run_folder.CONFIG
    if not config.exists():
        raise SourceError(
            f"{run}: is no run folder of train; expected one with {run_folder.CONFIG}."
        )
    own = [flag.partition("=")[0].replace("_", "-") for flag in flags]
    splitting = [flag for flag in own if flag in SPLITTING]
    if splitting:
        raise SourceError(
            f"{splitting[0]}: is for training. What is judged is said by a column split of the table."
        )
    values = command_line.read_yaml(config)
    if "--data" in own:
        values = {key: value for key, value in values.items() if key not in OF_DATA}
    if "--out" not in own:
        flags += ["--out", str(Path(run) / f"evaluation-{time.strftime('%Y%m%d-%H%M%S')}")]
    given = [*command_line.tokens_of(values, config), "--test-only", run, *flags]
    return train.main(given, "tfbig evaluate")

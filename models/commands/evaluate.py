"""Judges a trained model on test data with labels: the flags of train, over those of its run; nothing is trained."""

import time
from pathlib import Path

from models.commands import train
from tfbig import SourceError, runfolder

USAGE = "usage: tfbig evaluate RUN [FLAGS]\n\nFlags are those of tfbig train, over those of the run, for example:\n"
EXAMPLE = "  tfbig evaluate runs/mine --data other_slides.csv --slides other_slides --out results"


def main(argv):
    """Runs the command line `RUN FLAGS`; gives the exit code."""
    if not argv or argv[0].startswith("-"):
        print(f"{train.about(__doc__)}\n\n{USAGE}{EXAMPLE}")
        return 0 if argv[:1] in (["--help"], ["-h"]) else 2
    run, *flags = argv
    config = Path(run) / runfolder.CONFIG
    if not config.exists():
        raise SourceError(
            f"{run}: is no run folder of train; expected one with {runfolder.CONFIG}."
        )
    own = [flag.partition("=")[0] for flag in flags]
    if "--out" not in own:
        flags += ["--out", str(Path(run) / f"evaluation-{time.strftime('%Y%m%d-%H%M%S')}")]
    given = ["--config", str(config), "--test-only", run, *flags]
    return train.main(given, "tfbig evaluate")

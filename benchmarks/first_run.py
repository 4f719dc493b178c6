"""Time the commands that README.md and the guides tell a new user to run, each in a fresh folder.

    python benchmarks/first_run.py [NAME ...] >> results.jsonl

Prints one JSON line for each command: wall seconds of the whole process, imports and tracing included, and the last
line that it printed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

from benchmarks import report

COMMANDS = {
    "offload": "train.py --mode offload --out {out}",
    "device": "train.py --mode device --out {out}",
    "slides_by_label": "examples/slides_by_label.py --out {out}",
    "big_layers_in_fit": "examples/big_layers_in_fit.py",
    "gigapixel_segmentation": "examples/gigapixel_segmentation.py --out {out}.png",
    "whole_slide_classifier": "examples/whole_slide_classifier.py",
}
"""Arguments of Python, run in the checkout; `{out}` is a folder that does not exist yet."""


def timed(command: str, folder: Path) -> dict[str, Any]:
    """Run a command and return its seconds and the last line that it printed.

    Raises:
        subprocess.CalledProcessError: the command failed.
    """
    words = command.format(out=folder / "out").split()
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    seconds = time.perf_counter() - start
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    printed = [line.replace(str(folder), "FOLDER") for line in lines[-3:]]
    return {"seconds": round(seconds, 1), "printed": printed}


def main() -> None:
    """Time the named commands, all by default."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[*COMMANDS, []], metavar="NAME")
    arguments = parser.parse_args()
    for name in arguments.names or COMMANDS:
        with tempfile.TemporaryDirectory() as folder:
            figures = timed(COMMANDS[name], Path(folder))
        how = f"python benchmarks/first_run.py {name}"
        print(report.line(f"first_run {name}", [], **figures, how=how), flush=True)


if __name__ == "__main__":
    main()

"""Run commands in folders with damaged files, and print what happened as lines of JSON.

Usage: python damaged_commands.py SECONDS FOLDER...

Each folder holds `command.json`, the arguments of one command, whose paths are relative to the folder. Nothing in the
folder `data` may change.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from cli_runs import like_a_test
from damaged_files import run

from tfbig.cli.main import main

CODES = {0: "read", 3: "read", 1: "refused", 2: "refused"}
"""What the exit codes mean."""


def digests(folder: Path) -> dict[str, str]:
    """Return a digest of each file."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def read(folder: Path) -> str | None:
    """Run the command of a folder, and return what it did, or what is wrong."""
    arguments = json.loads((folder / "command.json").read_text())
    before = digests(folder / "data")
    out, err = io.StringIO(), io.StringIO()
    os.chdir(folder)
    try:
        with like_a_test(), redirect_stdout(out), redirect_stderr(err):
            code = main(arguments)
    except SystemExit as ended:
        code = ended.code
    except Exception:
        return f"{' '.join(arguments)}: {traceback.format_exc()[-1500:]}"
    told = err.getvalue()
    if digests(folder / "data") != before:
        return f"{' '.join(arguments)}: data changed"
    if "Traceback" in told:
        return f"{' '.join(arguments)}: {told[-1500:]}"
    if CODES.get(code) == "refused" and not told.strip():
        return f"{' '.join(arguments)}: exit code {code} without a word"
    return CODES.get(code, f"{' '.join(arguments)}: exit code {code}: {told[-300:]}")


if __name__ == "__main__":
    run(read, int(sys.argv[1]), sys.argv[2:], memory=8 * 2**30)

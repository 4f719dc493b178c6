"""What every benchmark prints: one JSON line, memory by the system's own accounting."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def memory_bytes() -> tuple[int, int]:
    """Resident memory of this process: now, and most so far."""
    # Slow to import, and the process that only compares needs none of it.
    from tfbig.results import run_folder

    return run_folder.memory_bytes()


def machine() -> str:
    """Processor, number of cores that this process may use, accelerator."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            name = next(
                line.split(":")[1].strip() for line in file if line.startswith("model name")
            )
    except (OSError, StopIteration):
        pass
    cards = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    models = [card.read_text().partition("Model:")[2].split("\n")[0].strip() for card in cards]
    return ", ".join([name, f"{len(os.sched_getaffinity(0))} cores", *models])


def commit() -> str:
    """The revision that is measured; "-dirty" where more than results has changed since."""
    own = [f":!benchmarks/{name}" for name in ("results.jsonl", "README.md", "modes.png")]
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", *own)
    return f"{_git('describe', '--always')}{'-dirty' if changed else ''}" or "unknown"


def _git(*words: str) -> str:
    found = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def versions() -> dict[str, str]:
    """Of what computes."""
    found = {"python": platform.python_version()}
    for name in ("tensorflow", "keras", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def line(case: str, size: list[int], **figures: Any) -> str:
    """One JSON line."""
    about = {"commit": commit(), "machine": machine(), "versions": versions()}
    return json.dumps({"case": case, **about, "size": size, **figures})


def in_own_process(arguments: list[Any], python: str | None = None) -> dict[str, Any]:
    """Runs a benchmark in a process of its own, by default with this Python; gives the figures of its last line."""
    found = subprocess.run(
        [python or sys.executable, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    figures: dict[str, Any] = json.loads(found.stdout.strip().splitlines()[-1])
    return figures

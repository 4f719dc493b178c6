"""The lines that benchmarks print: one JSON object each, with memory as the operating system counts it."""

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
RESULTS = ROOT / "benchmarks/results.jsonl"


def memory_bytes() -> tuple[int, int]:
    """Return the resident memory of this process: now, and the most so far."""
    # Imported late: it is slow, and the process that only compares does not need it.
    from tfbig.results import run_folder

    return run_folder.memory_bytes()


def device_memory() -> dict[str, int]:
    """Return the most bytes that TensorFlow has had on the first GPU; nothing without one."""
    import tensorflow as tf

    if not tf.config.list_physical_devices("GPU"):
        return {}
    return {"device_peak_bytes": int(tf.config.experimental.get_memory_info("GPU:0")["peak"])}


def machine() -> str:
    """Return the processor, the number of cores that this process may use, and the accelerator."""
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
    """Return the revision that is measured, with "-dirty" if files other than results have changed since."""
    results = [f":!benchmarks/{name}" for name in ("results.jsonl", "README.md", "modes.png")]
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", *results)
    return f"{_git('describe', '--always')}{'-dirty' if changed else ''}" or "unknown"


def _git(*words: str) -> str:
    try:
        process = subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except OSError:  # a machine without git
        return ""
    return process.stdout.strip()


def versions() -> dict[str, str]:
    """Return the versions of Python and of the numerical libraries."""
    versions_by_name = {"python": platform.python_version()}
    for name in ("tensorflow", "keras", "numpy"):
        try:
            versions_by_name[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions_by_name


def line(case: str, size: list[int], **figures: Any) -> str:
    """Return one JSON line."""
    about = {"commit": commit(), "machine": machine(), "versions": versions()}
    return json.dumps({"case": case, **about, "size": size, **figures})


def in_own_process(arguments: list[Any], python: str | None = None) -> dict[str, Any]:
    """Run a benchmark in its own process, by default with this Python; return the figures of its last line."""
    process = subprocess.run(
        [python or sys.executable, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    figures: dict[str, Any] = json.loads(process.stdout.strip().splitlines()[-1])
    return figures

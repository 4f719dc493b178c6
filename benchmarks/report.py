"""What every benchmark prints: one JSON line, memory by the system's own accounting."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from typing import Any


def memory_bytes() -> tuple[int, int]:
    """Resident memory of this process: now, and most so far."""
    # Slow to import, and the process that only compares needs none of it.
    from tfbig import runfolder

    return runfolder.memory_bytes()


def machine() -> str:
    """Processor and number of cores that this process may use."""
    import os

    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            name = next(
                line.split(":")[1].strip() for line in file if line.startswith("model name")
            )
    except (OSError, StopIteration):
        pass
    return f"{name}, {len(os.sched_getaffinity(0))} cores"


def commit() -> str:
    """The revision that is measured."""
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"


def line(case: str, size: list[int], **figures: Any) -> str:
    """One JSON line."""
    return json.dumps(
        {"case": case, "commit": commit(), "machine": machine(), "size": size, **figures}
    )


def in_own_process(arguments: list[str]) -> dict[str, Any]:
    """Runs a benchmark in a process of its own and gives the figures of its last line."""
    found = subprocess.run(
        [sys.executable, *arguments], stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(found.stdout.strip().splitlines()[-1])

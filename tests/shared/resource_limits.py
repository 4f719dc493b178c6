"""Limits on the time and memory of a block of code."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_PROCESS = Path("/proc/self")


@contextmanager
def cheap(seconds: float = 2, megabytes: float = 50) -> Iterator[None]:
    """Check that a block takes less than some CPU time and memory, above what the process holds before.

    Args:
        seconds: CPU time of all threads.
        megabytes: Resident memory in units of 10^6 bytes.
    """
    before, began = reset_peak_memory(), time.process_time()
    yield
    assert time.process_time() - began < seconds
    assert peak_memory() - before < megabytes * 1e6


def reset_peak_memory() -> int:
    """Let the peak begin at what the process holds now, and return that in bytes; skip where Linux is missing."""
    if not (_PROCESS / "clear_refs").exists():
        pytest.skip("peak memory is measured on Linux")
    (_PROCESS / "clear_refs").write_text("5")
    return _kilobytes("VmRSS") * 1024


def peak_memory() -> int:
    """Return the largest resident memory of the process since `reset_peak_memory`, in bytes."""
    return _kilobytes("VmHWM") * 1024


def _kilobytes(name: str) -> int:
    match = re.search(rf"{name}:\s+(\d+) kB", (_PROCESS / "status").read_text())
    assert match
    return int(match[1])

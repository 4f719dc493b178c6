"""Networks of torchvision and timm with random weights, which a process of its own writes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "programs" / "torch_networks.py"


def write(folder: Path, *names: str) -> Path:
    """Write networks by the names of `tests/programs/torch_networks.py`, and return the folder; skip without torch."""
    for library in ("torchvision", "timm"):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    run = [sys.executable, str(PROGRAM), str(folder), *names]
    subprocess.run(run, check=True, capture_output=True, text=True)
    return folder

"""Networks of torchvision and timm with random weights, which a process of its own writes; for tests marked `torch`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parents[1] / "programs"


def write(folder: Path, *names: str) -> Path:
    """Write networks by the names of `tests/programs/torch_networks.py`, and return the folder."""
    return _run("torch_networks.py", folder, *names)


def write_transformers(folder: Path, *specs: dict[str, Any]) -> Path:
    """Write vision transformers, as `tests/programs/torch_transformers.py` says, and return the folder."""
    return _run("torch_transformers.py", folder, json.dumps(specs))


def write_unet3d(file: Path) -> Path:
    """Add the outputs of a 3-D U-Net to a file with its weights, as `tests/programs/torch_unet3d.py` says."""
    return _run("torch_unet3d.py", file)


def _run(program: str, folder: Path, *arguments: str) -> Path:
    """Run a program that writes to a folder or file."""
    run = [sys.executable, str(PROGRAMS / program), str(folder), *arguments]
    subprocess.run(run, check=True, capture_output=True, text=True)
    return folder

"""What a prediction depends on, by which a result of an interrupted process is recognised as still valid."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np


def of_model(plain: Any) -> str:
    """Hash the layers and weights of a Keras model."""
    found = hashlib.sha256(plain.to_json().encode())
    for weight in plain.get_weights():
        found.update(np.ascontiguousarray(weight).tobytes())
    return found.hexdigest()


def of_file(path: str | Path) -> dict[str, Any]:
    """Facts by which a replaced file is recognised: its absolute path, size in bytes and time of change.

    An OME-Zarr is a folder.
    """
    status = Path(path).stat()
    return {
        "file": str(Path(path).resolve()),
        "bytes": status.st_size,
        "changed": status.st_mtime_ns,
    }

"""Load `.keras` files of unknown origin without running code from them."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from tfbig import SourceError


def load(path: str | Path, custom: Sequence[str] = (), compiled: bool = False) -> Any:
    """Return the model of a file.

    The file is loaded in the safe mode of Keras: only layers, losses and functions of Keras, of tfbig and its models,
    and those that `custom` registers. A file with a Lambda or a class of another module is refused, and files that it
    points to are not read.

    Args:
        path: Path of a `.keras` file.
        custom: Names of modules that are imported first.
        compiled: Whether to restore loss and optimizer.

    Raises:
        SourceError: The file or a module is missing, or the file is damaged or refused.
    """
    path = Path(path)
    if not path.exists():
        raise SourceError(f"{path}: no such file; expected a .keras file, or a run folder.")
    for name in custom:
        _import(name)
    try:
        return keras.saving.load_model(path, compile=compiled, safe_mode=True)
    except Exception as error:  # errors of zip, HDF5, JSON and Keras
        raise SourceError(
            f"{path}: cannot be loaded as a Keras model ({type(error).__name__}: {_reason(error)}). Save it with "
            "model.save('name.keras'); for custom layers, name the module that registers them: --custom MODULE."
        ) from error


def _reason(error: Exception) -> str:
    """Return what Keras says after a page of configuration."""
    text = " ".join(str(error).split()).partition("Full object config")[0]
    return text.rpartition("Exception encountered: ")[2].strip()


def _import(name: str) -> None:
    sys.path.insert(0, os.getcwd())
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise SourceError(f"--custom {name}: cannot be imported: {error}.") from error
    finally:
        sys.path.remove(os.getcwd())

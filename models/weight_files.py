"""Arrays in files of weights: safetensors, NumPy, HDF5, and files of torch, which are read without running code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file

from tfbig.sources import torch_files
from tfbig.sources.torch_files import RefusedError, Tensor

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]
"""Arrays of a file by their names."""

CONVERT = (
    "Where torch is installed, write another file with safetensors.torch.save_file(torch.load(path, "
    "map_location='cpu'), 'weights.safetensors')"
)
WRAPPERS = ("state_dict", "model")
"""Keys under which training scripts of torch put the weights."""


def read(path: str | Path) -> Arrays:
    """Return the arrays of a file by name.

    Args:
        path: A `.safetensors`, `.npz` or HDF5 (`.h5`, `.hdf5`) file, or one of torch (`.pth`, `.pt`, `.bin`). A file of
            torch is a pickle, which could run code: only tensors and dictionaries are accepted in it.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file is of another kind, is damaged, or is a pickle with anything but tensors.
    """
    path = Path(path)
    if path.suffix not in READERS:
        raise ValueError(f"{path}: expected a file of weights: {', '.join(READERS)}. {CONVERT}.")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: the file does not exist; expected a file of weights.")
    try:
        return READERS[path.suffix](path)
    except RefusedError as error:
        raise ValueError(f"{path}: {error}. {CONVERT}.") from error
    except DAMAGE as error:
        raise ValueError(
            f"{path}: is not a {path.suffix} file of arrays, or is damaged ({error}). Write or fetch it again."
        ) from error


def _read_npz(path: Path) -> Arrays:
    with path.open("rb") as opened, np.load(opened) as file:
        return dict(file)


def _read_hdf5(path: Path) -> Arrays:
    """Return the datasets of a file by their path in it."""
    arrays: Arrays = {}

    def add(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.dtype.kind in "fiu":
            arrays[name] = item[()]

    with h5py.File(path) as file:
        file.visititems(add)
    return arrays


def _read_torch(path: Path) -> Arrays:
    """Return the tensors of a file that `torch.save` wrote.

    Raises:
        RefusedError: The file is of a version of torch before 1.6, or has anything but tensors.
        ValueError: It is damaged.
    """
    content = torch_files.read(path)
    for key in WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping):
        raise RefusedError(f"holds a {type(content).__name__}, not a dictionary of tensors")
    return {
        key: torch_files.array(path, tensor)
        for key, tensor in content.items()
        if isinstance(tensor, Tensor)
    }


READERS: dict[str, Callable[[Path], Arrays]] = {
    ".safetensors": load_file,
    ".npz": _read_npz,
    **dict.fromkeys((".h5", ".hdf5"), _read_hdf5),
    **dict.fromkeys((".pth", ".pt", ".bin"), _read_torch),
}
"""Function that reads each kind of file."""
DAMAGE = (SafetensorError, *torch_files.DAMAGE)
"""Errors of damaged files."""

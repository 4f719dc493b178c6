"""Arrays in files of weights: safetensors, NumPy, HDF5, and files of torch, which are read without running code."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from tfbig.errors import reason_of
from tfbig.sources import torch_files
from tfbig.sources.bags import hdf5
from tfbig.sources.torch_files import RefusedError, Tensor
from tfbig.sources.untrusted import check_size

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]
"""Arrays of a file by their names."""

CONVERT = (
    "Where torch is installed, write another file with safetensors.torch.save_file(torch.load(path, "
    "map_location='cpu'), 'weights.safetensors')"
)
KINDS = "fiu"
"""Kinds of numbers that weights have, as NumPy names them."""
WRAPPERS = ("state_dict", "model")
"""Keys under which training scripts of torch put the weights."""


def read(path: str | Path) -> Arrays:
    """Read the arrays of a file by name.

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
        raise ValueError(f"{path}: {reason_of(error)}. {CONVERT}.") from error
    except (
        Exception
    ) as error:  # errors of safetensors, zip, zlib, HDF5, NumPy and pickle, and no memory
        reason = reason_of(error).removeprefix(f"{path}: ")
        raise ValueError(
            f"{path}: is not a {path.suffix} file of arrays, or is damaged ({reason}). Write or fetch it again."
        ) from error


def _read_npz(path: Path) -> Arrays:
    """Read the arrays of numbers in a file of `np.savez`; their sizes are compared with the file's first."""
    with zipfile.ZipFile(path) as archive:
        parts = {part.filename: part for part in archive.infolist()}  # the last part of each name
        check_size(path, sum(part.file_size for part in parts.values()), "its arrays")
        arrays = {
            name.removesuffix(".npy"): _read_npy(archive, part)
            for name, part in parts.items()
            if name.endswith(".npy")
        }
    return {name: array for name, array in arrays.items() if array.dtype.kind in KINDS}


def _read_npy(archive: zipfile.ZipFile, part: zipfile.ZipInfo) -> npt.NDArray[Any]:
    """Read an array of an archive; NumPy would set aside whatever memory its header declares.

    Raises:
        ValueError: It has not as many bytes as its header declares.
    """
    with archive.open(part) as file:
        major, _ = np.lib.format.read_magic(file)
        read_header = (
            np.lib.format.read_array_header_1_0
            if major == 1
            else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read_header(file)
        declared, stored = math.prod(shape) * dtype.itemsize, part.file_size - file.tell()
    if declared != stored:
        raise ValueError(f"{part.filename} has {stored} bytes instead of {declared}")
    with archive.open(part) as file:
        array: npt.NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
        return array


def _read_hdf5(path: Path) -> Arrays:
    """Read the datasets of numbers in a file by their path in it; their sizes are compared with the file's first."""
    found: dict[str, h5py.Dataset] = {}

    def add(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.dtype.kind in KINDS:
            hdf5.check_stored(item, str(path), name)
            found[name] = item

    with hdf5.opened(str(path)) as file:
        file.visititems(add)
        check_size(path, sum(item.nbytes for item in found.values()), "its arrays")
        return {name: item[()] for name, item in found.items()}


def _read_torch(path: Path) -> Arrays:
    """Read the tensors of a file that `torch.save` wrote.

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
    tensors = {key: tensor for key, tensor in content.items() if isinstance(tensor, Tensor)}
    return torch_files.arrays(path, tensors)


READERS: dict[str, Callable[[Path], Arrays]] = {
    ".safetensors": load_file,
    ".npz": _read_npz,
    **dict.fromkeys((".h5", ".hdf5"), _read_hdf5),
    **dict.fromkeys((".pth", ".pt", ".bin"), _read_torch),
}
"""Function that reads each kind of file."""

"""Arrays in files of weights: safetensors, NumPy, HDF5, and files of torch, which are read without running code."""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import h5py
import ml_dtypes
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]
"""Arrays of a file by their names."""

CONVERT = (
    "Where torch is installed, write another file with safetensors.torch.save_file(torch.load(path, "
    "map_location='cpu'), 'weights.safetensors')"
)
STORAGES = {
    "DoubleStorage": np.float64,
    "FloatStorage": np.float32,
    "HalfStorage": np.float16,
    "BFloat16Storage": ml_dtypes.bfloat16,
    "LongStorage": np.int64,
    "IntStorage": np.int32,
    "ShortStorage": np.int16,
    "CharStorage": np.int8,
    "ByteStorage": np.uint8,
    "BoolStorage": np.bool_,
}
"""Types of the numbers in a file of torch."""
WRAPPERS = ("state_dict", "model")
"""Keys under which training scripts of torch put the weights."""


class RefusedError(ValueError):
    """Raised if a file of torch cannot be read without running code from it."""


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
    if not zipfile.is_zipfile(path):
        raise RefusedError("is not a zip archive, which torch writes since version 1.6")
    with zipfile.ZipFile(path) as file:
        pickled = [name for name in file.namelist() if name.endswith("/data.pkl")]
        if len(pickled) != 1 or any(part.compress_type for part in file.infolist()):
            raise ValueError("it is not an archive that torch.save wrote")
        with file.open(pickled[0]) as opened:
            content = _Tensors(opened, file, pickled[0].removesuffix("data.pkl")).load()
    for key in WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping):
        raise RefusedError(f"holds a {type(content).__name__}, not a dictionary of tensors")
    return {key: array for key, array in content.items() if isinstance(array, np.ndarray)}


class _Tensors(pickle.Unpickler):
    """Reader of the pickle in a file of torch, which knows tensors and dictionaries only.

    Args:
        file: The pickle.
        archive: The archive that holds it and the numbers of the tensors.
        folder: Folder of the pickle in the archive.
    """

    def __init__(self, file: BinaryIO | Any, archive: zipfile.ZipFile, folder: str) -> None:
        super().__init__(file)
        self.archive, self.folder = archive, folder

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a class or function of the pickle; nothing is imported.

        Raises:
            RefusedError: It is neither a tensor nor a dictionary.
        """
        if (module, name) in BUILT:
            return BUILT[module, name]
        if module == "torch" and name in STORAGES:
            return np.dtype(STORAGES[name])
        raise RefusedError(
            f"holds {module}.{name}; files of torch can run code, so only tensors are read from them"
        )

    def persistent_load(self, pid: Any) -> npt.NDArray[Any]:
        """Return the numbers of a storage `("storage", type, key, device, count)`, one axis."""
        _, dtype, key, _, count = pid
        numbers = np.frombuffer(self.archive.read(f"{self.folder}data/{key}"), dtype)
        if len(numbers) != count:
            raise ValueError(f"storage {key} has {len(numbers)} numbers instead of {count}")
        return numbers


def _tensor(
    storage: npt.NDArray[Any],
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    *_: Any,
) -> npt.NDArray[Any]:
    """Return a tensor of a storage as an array.

    Raises:
        ValueError: The tensor reaches out of its storage.
    """
    last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    whole = min((offset, *shape, *strides)) >= 0 and (0 in shape or last < len(storage))
    if not whole:
        raise ValueError(f"a tensor of shape {shape} reaches out of its {len(storage)} numbers")
    size = storage.itemsize
    return np.lib.stride_tricks.as_strided(
        storage[offset:], shape, [step * size for step in strides], writeable=False
    )


BUILT: dict[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
}
"""What a pickle of tensors calls, and what is called instead."""

READERS: dict[str, Callable[[Path], Arrays]] = {
    ".safetensors": load_file,
    ".npz": _read_npz,
    **dict.fromkeys((".h5", ".hdf5"), _read_hdf5),
    **dict.fromkeys((".pth", ".pt", ".bin"), _read_torch),
}
"""Function that reads each kind of file."""
DAMAGE = (
    *(SafetensorError, zipfile.BadZipFile, pickle.UnpicklingError, ValueError, OSError, EOFError),
    *(KeyError, TypeError, AttributeError, IndexError),
)
"""Errors of damaged files."""

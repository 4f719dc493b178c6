"""Tensors in files of `torch.save`, found without torch and without running code of the file.

Such a file is a zip archive of a pickle and of the numbers of each storage, which are not compressed. A pickle can call
any function; the reader here knows tensors, their storages and dictionaries, and refuses everything else.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import struct
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from operator import index
from typing import Any, Final, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tfbig.errors import reason_of
from tfbig.sources.files import File, PathLike
from tfbig.sources.source import RowArray
from tfbig.units import format_bytes

STORAGES: Final = {
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
DAMAGE: Final = (
    *(zipfile.BadZipFile, pickle.UnpicklingError, struct.error, ValueError, OSError, EOFError),
    *(KeyError, TypeError, AttributeError, IndexError, OverflowError, RuntimeError, MemoryError),
)
"""Errors of damaged files."""
MAX_PICKLE_BYTES: Final = 2**21
"""Largest accepted size of a pickle by default; torch writes about 200 bytes for each tensor."""
_MOST_AXES: Final = 32
"""Axes of a tensor."""
_MOST_TUPLES: Final = 50_000
"""Tuples of a pickle, of which torch writes four for each tensor; hashing 200,000 in one another ends the process."""
_LOCAL_HEADER: Final = struct.Struct("<4s22x2H")
"""Signature of an entry of a zip archive, and the lengths of its name and of its extra field."""


class RefusedError(ValueError):
    """Raised if a file of torch cannot be read without running code from it."""


class Storage(NamedTuple):
    """Numbers of a file, one axis.

    Attributes:
        dtype: Name of their type in torch, one of `STORAGES`.
        offset: First byte in the file.
        length: How many there are.
        checksum: CRC-32 of their bytes.
    """

    dtype: str
    offset: int
    length: int
    checksum: int

    @property
    def num_bytes(self) -> int:
        """Bytes of the numbers."""
        return self.length * int(np.dtype(STORAGES[self.dtype]).itemsize)


class Tensor(NamedTuple):
    """A tensor of a file, whose numbers are not read yet.

    Attributes:
        storage: The numbers.
        start: Place of the first one in the storage.
        shape: Shape.
        strides: Numbers from one place of each axis to the next.
    """

    storage: Storage
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of its numbers."""
        dtype: np.dtype[Any] = np.dtype(STORAGES[self.storage.dtype])
        return dtype

    @property
    def offset(self) -> int:
        """Byte of the file at which its first number is."""
        return self.storage.offset + self.start * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        """True if the numbers are in C order without gaps."""
        expected = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent != 1 and stride != expected:
                return False
            expected *= extent
        return True


Content: TypeAlias = Any
"""What was saved: a `Tensor`, or dictionaries, lists, tuples, texts and numbers with tensors among them."""


def read(path: PathLike, max_pickle_bytes: int = MAX_PICKLE_BYTES) -> Content:
    """Read what a file of `torch.save` holds, with a `Tensor` in place of each tensor.

    Raises:
        RefusedError: The file is of a version of torch before 1.6, or has anything but tensors.
        ValueError: It is damaged; so are other exceptions of `DAMAGE`.
    """
    if not zipfile.is_zipfile(path):
        raise RefusedError("is not a zip archive, which torch writes since version 1.6")
    with zipfile.ZipFile(path) as archive:
        pickled = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(pickled) != 1 or any(part.compress_type for part in archive.infolist()):
            raise ValueError("it is not an archive that torch.save wrote")
        folder = pickled[0].removesuffix("data.pkl")
        size = archive.getinfo(pickled[0]).file_size
        if size > max_pickle_bytes:
            raise RefusedError(f"has a pickle of {size} bytes, which is more than its tensors need")
        order = f"{folder}byteorder"
        if order in archive.namelist() and _part(archive, order, 16) != b"little":
            raise RefusedError("was written on a machine with big-endian numbers")
        return _Reader(archive, folder, File(path)).load()


def arrays(path: PathLike, tensors: Mapping[str, Tensor]) -> dict[str, npt.NDArray[Any]]:
    """Read the numbers of tensors by name, after checking those of their whole storages.

    Each storage is read once: tensors that share one share its memory.

    Raises:
        ValueError: The numbers are damaged, or storages overlap.
    """
    storages = {tensor.storage for tensor in tensors.values()}
    needed, stored = sum(storage.num_bytes for storage in storages), File(path).num_bytes
    if needed > stored:
        raise ValueError(
            f"its storages of {format_bytes(needed)} overlap in {format_bytes(stored)}"
        )
    numbers = {storage: _numbers(path, storage) for storage in storages}
    return {name: _view(tensor, numbers[tensor.storage]) for name, tensor in tensors.items()}


def _numbers(path: PathLike, storage: Storage) -> npt.NDArray[Any]:
    """Read the numbers of a storage `[n]`, and check their checksum."""
    data = File(path).read(storage.offset, storage.num_bytes)
    if zlib.crc32(data) != storage.checksum:
        raise ValueError("the checksum of its numbers is wrong")
    return np.frombuffer(data, STORAGES[storage.dtype])


def _view(tensor: Tensor, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """View the numbers of a storage as a tensor."""
    strides = [step * tensor.dtype.itemsize for step in tensor.strides]
    return np.lib.stride_tricks.as_strided(
        numbers[tensor.start :], tensor.shape, strides, writeable=False
    )


def rows(path: PathLike, tensor: Tensor, start: int, stop: int) -> RowArray:
    """Read the rows `start` to `stop` of a tensor of one axis or more; only they are read if it is in C order."""
    if not tensor.is_contiguous:
        return np.ascontiguousarray(arrays(path, {"": tensor})[""][start:stop])
    shape = (stop - start, *tensor.shape[1:])
    return File(path).read_rows(tensor.offset, tensor.dtype, shape, start)


def _part(archive: zipfile.ZipFile, name: str, most: int = -1) -> bytes:
    """Read a part of an archive, or the first `most` bytes of it."""
    with archive.open(name) as part:
        return part.read(most)


def _check_instructions(pickled: bytes) -> None:
    """Check that a pickle takes little more memory than its bytes, and no depth that ends the process.

    Raises:
        RefusedError: It numbers objects that it does not have, for which memory would be set aside, or has more tuples
            than torch writes.
        ValueError: It is damaged.
    """
    tuples = 0
    for code, argument, _ in pickletools.genops(pickled):
        tuples += code.name.startswith("TUPLE")
        numbered = int(argument or 0) if code.name in ("PUT", "BINPUT", "LONG_BINPUT") else 0
        if tuples > _MOST_TUPLES or numbered > len(pickled):
            raise RefusedError("has a pickle of more objects than its tensors need")


class _Reader(pickle.Unpickler):
    """Reader of the pickle in a file of torch, which knows tensors and dictionaries only.

    What it builds are tuples and dictionaries, which no instruction of a pickle can make run anything.

    Args:
        archive: The archive that holds the pickle and the numbers of the tensors.
        folder: Folder of both in the archive.
        file: The same file, for its bytes.
    """

    def __init__(self, archive: zipfile.ZipFile, folder: str, file: File) -> None:
        pickled = _part(archive, f"{folder}data.pkl")
        _check_instructions(pickled)
        super().__init__(io.BytesIO(pickled))
        self._archive, self._folder, self._file = archive, folder, file

    def find_class(self, module: str, name: str) -> Any:
        """Look up what stands for a class or function that the pickle names, and never import it.

        Raises:
            RefusedError: It is neither a tensor nor a dictionary.
        """
        if (module, name) in _BUILT:
            return _BUILT[module, name]
        if module == "torch" and name in STORAGES:
            return name
        raise RefusedError(
            f"holds {module}.{name}; files of torch can run code, so only tensors are read from them"
        )

    def persistent_load(self, pid: Any) -> Storage:
        """Find the place of a storage `("storage", type, key, device, count)`."""
        _, kind, key, _, count = pid
        entry = self._archive.getinfo(f"{self._folder}data/{key}")
        itemsize = np.dtype(STORAGES[kind]).itemsize
        if entry.file_size != count * itemsize:
            there = entry.file_size // itemsize
            raise ValueError(f"storage {key} has {there} numbers instead of {count}")
        header = self._file.read(entry.header_offset, _LOCAL_HEADER.size)
        signature, name_length, extra_length = _LOCAL_HEADER.unpack(header)
        if signature != b"PK\x03\x04":
            raise ValueError(f"storage {key} is not where the archive says")
        offset = entry.header_offset + _LOCAL_HEADER.size + name_length + extra_length
        self._file.check_length(offset + entry.file_size)
        return Storage(kind, offset, int(count), entry.CRC)


class _BuildTensor:
    """Stand-in for `torch._utils._rebuild_tensor_v2`."""

    __slots__ = ()

    def __call__(
        self, storage: Any, start: Any, shape: Sequence[Any], strides: Sequence[Any], *_: Any
    ) -> Tensor:
        """Make a tensor of a storage.

        Raises:
            ValueError: The tensor reaches out of its storage, repeats numbers of it, or has too many axes.
        """
        if not isinstance(storage, Storage):
            raise ValueError(f"a tensor of a {type(storage).__name__}")
        if len(shape) > _MOST_AXES:
            raise ValueError(f"a tensor of {len(shape)} axes")
        start = index(start)
        extents, steps = tuple(map(index, shape)), tuple(map(index, strides))
        last = start + sum((n - 1) * step for n, step in zip(extents, steps, strict=True))
        whole = min((start, *extents, *steps)) >= 0 and (0 in extents or last < storage.length)
        if not whole or math.prod(extents) > storage.length:
            raise ValueError(
                f"a tensor of shape {extents} reaches out of its {storage.length} numbers"
            )
        return Tensor(storage, start, extents, steps)


class _BuildParameter:
    """Stand-in for `torch._utils._rebuild_parameter`."""

    __slots__ = ()

    def __call__(self, tensor: Any, *_: Any) -> Any:
        """The tensor of a parameter."""
        return tensor


class _BuildDictionary:
    """Stand-in for `OrderedDict`: torch adds its items one by one, and copies of others take memory."""

    __slots__ = ()

    def __call__(self) -> OrderedDict[Any, Any]:
        """An empty dictionary."""
        return OrderedDict()


_BUILT: Final[dict[tuple[str, str], Callable[..., Any]]] = {
    ("collections", "OrderedDict"): _BuildDictionary(),
    ("torch._utils", "_rebuild_tensor_v2"): _BuildTensor(),
    ("torch._utils", "_rebuild_parameter"): _BuildParameter(),
}
"""What a pickle of tensors calls, and what is called instead: objects of which a pickle can change no attribute."""


def describe(path: PathLike, error: Exception) -> str:
    """Put an error of `read`, one of `DAMAGE`, into one line that names the file."""
    if isinstance(error, RefusedError):
        return f"{path}: {reason_of(error)}"
    reason = reason_of(error).removeprefix(f"{path}: ")
    return f"{path}: is not a file of torch.save, or is damaged ({reason})"

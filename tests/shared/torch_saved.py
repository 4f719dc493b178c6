"""Files as `torch.save` writes them, written without torch."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


class Named:
    """Object that is pickled as a global name, such as a class of torch that is not installed."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __call__(self) -> None:
        """Only what can be called is pickled as a function."""


class TorchPickler(pickle._Pickler):
    """Writer of pickles as `torch.save` writes them, without torch."""

    def persistent_id(self, item: Any) -> Any:
        return item if isinstance(item, tuple) and item[:1] == ("storage",) else None

    def save_named(self, item: Named) -> None:
        self.write(pickle.GLOBAL + f"{item.module}\n{item.name}\n".encode())


TorchPickler.dispatch = pickle._Pickler.dispatch | {Named: TorchPickler.save_named}


class Call:
    """Object that is pickled as a call of a function, and of `__setstate__` if there is a state."""

    def __init__(self, module: str, name: str, *arguments: Any, state: Any = None) -> None:
        self.call: Any = (Named(module, name), arguments) + (() if state is None else (state,))

    def __reduce__(self) -> Any:
        return self.call


def tensor(
    array: np.ndarray,
    key: str,
    shape: Any = None,
    strides: Any = None,
    offset: int = 0,
    kind: str = "FloatStorage",
) -> Call:
    """Return what is pickled of a tensor whose numbers are stored under a key."""
    storage = ("storage", Named("torch", kind), key, "cpu", array.size)
    strides = strides or tuple(s // array.itemsize for s in array.strides)
    arguments = (storage, offset, shape or array.shape, strides, False, OrderedDict())
    return Call("torch._utils", "_rebuild_tensor_v2", *arguments)


def write(
    path: Path,
    content: Any,
    storages: Mapping[str, np.ndarray],
    compression: int = zipfile.ZIP_STORED,
    pickled: bytes | None = None,
) -> Path:
    """Write a file with the pickle of `content`, or the bytes `pickled` in its place, and the numbers of storages."""
    stream = io.BytesIO()
    TorchPickler(stream, 2).dump(content)
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("w/data.pkl", stream.getvalue() if pickled is None else pickled)
        for key, array in storages.items():
            file.writestr(f"w/data/{key}", array.tobytes())
    return path


def features(path: Path, array: np.ndarray, kind: str = "FloatStorage") -> Path:
    """Write features of a slide, one tensor, as CLAM does."""
    return write(path, tensor(array, "0", kind=kind), {"0": array})

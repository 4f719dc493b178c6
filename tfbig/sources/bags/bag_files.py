"""Bags in files: features, pictures, arrays; `open_bag` finds which.

Files are open only while they are read, so that there may be thousands of bags.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from tfbig.errors import SourceError
from tfbig.sources.arrays import file_offset, is_mapped, map_npy
from tfbig.sources.bags import hdf5
from tfbig.sources.bags.bag import Array, ArrayBag, Bag, Indices, resize
from tfbig.sources.files import File, PathLike
from tfbig.sources.slides.opening import PICTURE_SUFFIXES, open
from tfbig.sources.source import Rows


@final
class NpyBag(Bag):
    """A bag in a `.npy` file `[n, ...]`, read as it lies.

    Args:
        path: The file, or a memory map of one.
        coords, labels: As in `Bag`.

    Raises:
        SourceError: There is no such file, or it holds no bag.
    """

    def __init__(
        self,
        path: PathLike | np.memmap[Any, Any],
        coords: npt.ArrayLike | None = None,
        labels: npt.ArrayLike | None = None,
    ) -> None:
        array = path if isinstance(path, np.memmap) else map_npy(File(path))
        self._stored = array.dtype
        self._offset = file_offset(array)
        super().__init__(array.shape, array.dtype, str(array.filename), coords, labels)
        File(self.name).check_length(self._offset + self.nbytes)

    def _read(self, start: int, stop: int) -> Rows:
        shape = (stop - start, *self.shape[1:])
        return File(self.name).read_rows(self._offset, self._stored, shape, start)


@final
class FeatureBag(Bag):
    """Features of a slide in an HDF5 file of CLAM or TRIDENT: `features` `[n, d]` and `coords` `[n, 2]`.

    Args:
        path: The file. `features` may be `[1, n, d]`.
        labels: As in `Bag`.

    Raises:
        SourceError: The file cannot be read, has no features, or has not one coordinate for every feature.
    """

    def __init__(self, path: PathLike, labels: npt.ArrayLike | None = None) -> None:
        name = os.fspath(path)
        File(name)  # it must be there
        with hdf5.opened(name) as file:
            missing = [key for key in (_FEATURES, _COORDS) if key not in file]
            if missing:
                raise SourceError(
                    f"{name}: has no '{missing[0]}', it has {sorted(file)}; expected the HDF5 of CLAM or TRIDENT, "
                    "with 'features' [n, d] and 'coords' [n, 2]."
                )
            features, coords = (hdf5.dataset(file, key) for key in (_FEATURES, _COORDS))
            self._stacked = features.ndim == 3 and features.shape[0] == 1
            shape = features.shape[1:] if self._stacked else features.shape
            super().__init__(shape, features.dtype, name, np.asarray(coords), labels)

    def _read(self, start: int, stop: int) -> Rows:
        with hdf5.opened(self.name) as file:
            features = hdf5.dataset(file, _FEATURES)
            found = features[0, start:stop] if self._stacked else features[start:stop]
        return np.ascontiguousarray(found, self.dtype)

    def _take(self, places: Indices) -> Rows:
        first = int(places.min())
        return self._read(first, int(places.max()) + 1)[places - first]


@final
class PictureBag(Bag):
    """A bag whose instances are picture files.

    Args:
        paths: Files of pictures; the instances in this order.
        name: What error messages call the bag.
        size: `(rows, columns)` that each becomes (bilinear); by default all have that of the first.
        coords, labels: As in `Bag`.

    Raises:
        SourceError: There are no paths, or, when it is read, a picture is damaged or of another size.
    """

    def __init__(
        self,
        paths: Sequence[PathLike],
        name: str,
        size: tuple[int, int] | None = None,
        coords: npt.ArrayLike | None = None,
        labels: npt.ArrayLike | None = None,
    ) -> None:
        if not paths:
            raise SourceError(f"{name}: holds no pictures; a bag needs one instance at least.")
        first = open(paths[0])
        shape = (*(size or first.shape[:2]), first.shape[2])
        super().__init__((len(paths), *shape), first.dtype, name, coords, labels)
        self._paths = list(paths)
        self._resizes = size is not None

    def _read(self, start: int, stop: int) -> Rows:
        return np.stack([self._picture(path) for path in self._paths[start:stop]])

    def _take(self, places: Indices) -> Rows:
        return np.stack([self._picture(self._paths[i]) for i in places])

    def _picture(self, path: PathLike) -> Rows:
        source = open(path)
        picture = source.read(0, source.shape[0])
        shape = self.shape[1:]
        if self._resizes:
            picture = resize(picture, (shape[0], shape[1]))
        if picture.shape != shape or picture.dtype != self.dtype:
            raise SourceError(
                f"{source.name}: is {picture.shape} {picture.dtype}, the first picture of "
                f"'{self.name}' is {shape} {self.dtype}. Make them alike, or give a size."
            )
        return picture


def open_bag(bag: PathLike | Array | Bag) -> Bag:
    """The bag of whatever is given.

    Args:
        bag: A path: `.npy` `[n, ...]`, `.h5` of features (CLAM, TRIDENT), or a folder of pictures, by name. Or an
            array `[n, ...]`. Or a bag.

    Raises:
        SourceError: The file is missing, damaged or of an unknown kind, or holds no bag.
        TypeError: It is something else.
    """
    if isinstance(bag, Bag):
        return bag
    if isinstance(bag, np.ndarray):
        return NpyBag(bag) if is_mapped(bag) else ArrayBag(bag)
    if not isinstance(bag, str | os.PathLike):
        raise TypeError(
            f"a bag was given as {type(bag).__name__}; expected a path, a NumPy array [n, ...] or a "
            "tfbig.sources.Bag. Subclass Bag to read another format."
        )
    path = Path(bag)
    if path.is_dir():
        pictures = sorted(p for p in path.iterdir() if p.suffix.lower() in PICTURE_SUFFIXES)
        return PictureBag(pictures, os.fspath(path))
    if path.suffix.lower() in (".h5", ".hdf5"):
        return FeatureBag(path)
    if path.suffix.lower() == ".npy":
        return NpyBag(path)
    raise SourceError(
        f"{path}: is no bag that is known; expected a folder of pictures, .npy or .h5 of features."
    )


_FEATURES: Final = "features"
_COORDS: Final = "coords"

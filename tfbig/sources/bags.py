"""Bags: instances, tiles of a slide or their features, of which any slice is read and which are never held whole."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, final

import h5py
import numpy as np
import numpy.typing as npt
from PIL import Image

from tfbig.errors import SourceError
from tfbig.sources.arrays import file_offset, is_mapped
from tfbig.sources.files import File, PathLike, still_open
from tfbig.sources.opening import PICTURE_SUFFIXES, open
from tfbig.sources.source import Readable, Rows

Indices = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


class Bag(Readable):
    """A bag `[n, ...]` of n instances, for example tiles `[n, H, W, C]` or features `[n, d]`.

    Subclasses call `super().__init__(shape, dtype, name)` and define `_read`; those that find single instances fast
    define `_take` too.

    Args:
        shape: `(n, ...)`.
        dtype: Type of one sample.
        name: What error messages call the bag.
        coords: Where the instances lie, `[n, 2]`: x and y of the upper left corner in pixels of the slide.
        labels: Of the instances, `[n]`, where they are known: to judge what a model looked at, never to train.

    Raises:
        SourceError: The bag is empty, has one axis, or has another number of coordinates or labels than instances.
    """

    what = "bag"
    rows = "instances"

    def __init__(
        self,
        shape: Sequence[int],
        dtype: npt.DTypeLike,
        name: str,
        coords: npt.ArrayLike | None = None,
        labels: npt.ArrayLike | None = None,
    ) -> None:
        super().__init__(_bag_shape(shape, name), dtype, name)
        self.coords = _of_each(coords, "coordinates", (self.shape[0], 2), name)
        self.labels = _of_each(labels, "labels", (self.shape[0],), name)

    def take(self, indices: npt.ArrayLike) -> Rows:
        """The instances at these places, `[k, ...]`.

        Raises:
            IndexError: A place is outside the bag.
            SourceError: As `read`.
        """
        places = np.asarray(indices, np.int64)
        if places.size and not 0 <= places.min() <= places.max() < self.shape[0]:
            raise IndexError(
                f"{self.name}: instances {places.min()} to {places.max()} were asked for, the bag "
                f"has 0 to {self.shape[0] - 1}."
            )
        if not places.size:
            return np.empty((0, *self.shape[1:]), self.dtype)
        return self._take(places)

    def _take(self, places: Indices) -> Rows:
        """As `take`; by runs of neighbours."""
        ends = np.flatnonzero(np.diff(places) != 1) + 1
        runs = np.split(places, ends)
        return np.concatenate([self._read(int(run[0]), int(run[-1]) + 1) for run in runs])

    def sample(self, count: int, seed: int) -> Bag:
        """Instances drawn without replacement, in the order of the bag.

        Args:
            count: How many; all of them if the bag has no more.
            seed: Same seed, same instances.
        """
        if count < 1:
            raise ValueError(f"{self.name}: count={count} instances to draw; expected 1 or more.")
        if count >= self.shape[0]:
            return self
        drawn = np.random.default_rng(seed).choice(self.shape[0], count, replace=False)
        return Subset(self, np.sort(drawn))

    def drawn_handle(self, count: int, seed: int, augmented: bool = False) -> str:
        """The handle of `sample(count, seed)`, drawn when it is read, so that none has to be kept.

        Args:
            count, seed: As in `sample`.
            augmented: The instances are changed as `Augmentation.draw(seed)` says.
        """
        return f"{self.handle}?count={count}&seed={seed}&augmented={int(augmented)}"


@final
class ArrayBag(Bag):
    """A bag that is an array in memory, or a memory map, whose file is then read.

    Args:
        array: `[n, ...]`; not copied.
        name: What error messages call it.
        coords, labels: As in `Bag`.
    """

    def __init__(
        self,
        array: Array,
        name: str = "array",
        coords: npt.ArrayLike | None = None,
        labels: npt.ArrayLike | None = None,
    ) -> None:
        super().__init__(array.shape, array.dtype, name, coords, labels)
        self._array = array

    def _read(self, start: int, stop: int) -> Rows:
        rows = np.ascontiguousarray(self._array[start:stop], self.dtype).view()
        rows.flags.writeable = False
        return rows

    def _take(self, places: Indices) -> Rows:
        return np.ascontiguousarray(self._array[places], self.dtype)


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
        array = path if isinstance(path, np.memmap) else _map(path)
        self._stored = array.dtype
        self._offset = file_offset(array)
        super().__init__(array.shape, array.dtype, str(array.filename), coords, labels)
        self._file: File | None = File(self.name)
        self._file.check_length(self._offset + self.nbytes)

    def _read(self, start: int, stop: int) -> Rows:
        shape = (stop - start, *self.shape[1:])
        file = still_open(self._file, self.name)
        return file.read_rows(self._offset, self._stored, shape, start)

    def close(self) -> None:
        self._file = None


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
        features, coords = _read_features(name)
        super().__init__(features.shape, features.dtype, name, coords, labels)
        self._features = features

    def _read(self, start: int, stop: int) -> Rows:
        return self._features[start:stop]


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


@final
class Subset(Bag):
    """Some instances of a bag.

    Args:
        bag: The bag.
        places: Which, `[k]`.
        labels: As in `Bag`; by default those of the bag.
        name: What error messages call it; by default as the bag.
    """

    def __init__(
        self,
        bag: Bag,
        places: npt.ArrayLike,
        labels: npt.ArrayLike | None = None,
        name: str | None = None,
    ) -> None:
        self._inner = bag
        self._places = np.asarray(places, np.int64)
        coords, known = (None if t is None else t[self._places] for t in (bag.coords, bag.labels))
        shape = (len(self._places), *bag.shape[1:])
        labels = known if labels is None else labels
        super().__init__(shape, bag.dtype, name or bag.name, coords, labels)

    def _read(self, start: int, stop: int) -> Rows:
        return self._inner.take(self._places[start:stop])

    def _take(self, places: Indices) -> Rows:
        return self._inner.take(self._places[places])

    def close(self) -> None:
        self._inner.close()


@final
class Filled(Bag):
    """A bag with instances of one value behind its own, so that bags of a batch have one size.

    Args:
        bag: The bag.
        count: Instances in all, as many as the bag has or more.
        value: Of every sample of the new ones; 255 is white.

    Raises:
        SourceError: The bag has more instances.
    """

    def __init__(self, bag: Bag, count: int, value: float = 255) -> None:
        own = bag.shape[0]
        if count < own:
            raise SourceError(
                f"{bag.name}: has {own} instances, and cannot be filled up to {count}."
            )
        labels = None if bag.labels is None else np.pad(bag.labels, (0, count - own))
        super().__init__((count, *bag.shape[1:]), bag.dtype, bag.name, None, labels)
        self._inner, self._own, self._value = bag, own, value

    def _read(self, start: int, stop: int) -> Rows:
        found = np.full((stop - start, *self.shape[1:]), self._value, self.dtype)
        if start < self._own:
            inside = self._inner.read(start, min(stop, self._own))
            found[: len(inside)] = inside
        return found

    def close(self) -> None:
        self._inner.close()


@final
class Resized(Bag):
    """A bag of images whose instances are made larger or smaller as they are read (bilinear).

    Args:
        bag: `[n, H, W, C]` of uint8.
        size: `(rows, columns)`.
    """

    def __init__(self, bag: Bag, size: tuple[int, int]) -> None:
        if len(bag.shape) != 4 or bag.dtype != np.uint8:
            raise SourceError(
                f"{bag.name}: is {bag.shape} {bag.dtype}; expected images [n, H, W, C] of uint8."
            )
        shape = (bag.shape[0], *size, bag.shape[3])
        super().__init__(shape, bag.dtype, bag.name, bag.coords, bag.labels)
        self._inner, self._size = bag, size

    def _read(self, start: int, stop: int) -> Rows:
        return np.stack([resize(image, self._size) for image in self._inner.read(start, stop)])

    def _take(self, places: Indices) -> Rows:
        return np.stack([resize(image, self._size) for image in self._inner.take(places)])

    def close(self) -> None:
        self._inner.close()


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


def resize(image: Rows, size: tuple[int, int]) -> Rows:
    """An image `[H, W, C]` of uint8 at `(rows, columns)`, bilinear, with the filter as wide as the shrinking asks."""
    if image.shape[:2] == tuple(size):
        return image
    channels = [
        np.asarray(Image.fromarray(image[..., c]).resize(size[::-1], Image.Resampling.BILINEAR))
        for c in range(image.shape[2])
    ]
    return np.stack(channels, axis=-1)


_FEATURES: Final = "features"
_COORDS: Final = "coords"


def _read_features(name: str) -> tuple[Array, Array]:
    """Features `[n, d]` and coordinates `[n, 2]` of a file."""
    File(name)  # it must be there
    try:
        with h5py.File(name, "r") as file:
            missing = [key for key in (_FEATURES, _COORDS) if key not in file]
            if missing:
                raise SourceError(
                    f"{name}: has no '{missing[0]}', it has {sorted(file)}; expected the HDF5 of CLAM or TRIDENT, "
                    "with 'features' [n, d] and 'coords' [n, 2]."
                )
            features, coords = np.asarray(file[_FEATURES]), np.asarray(file[_COORDS])
    except OSError as error:
        raise SourceError(f"{name}: is not a readable HDF5 file: {error}.") from error
    if features.ndim == 3 and features.shape[0] == 1:
        features = features[0]
    return features, coords


def _map(path: PathLike) -> np.memmap[Any, Any]:
    file = File(path)
    try:
        return np.lib.format.open_memmap(file.path, mode="r")
    except ValueError as error:
        raise SourceError(f"{file.path}: is not a readable .npy file ({error}).") from error


def _bag_shape(shape: Sequence[int], name: str) -> tuple[int, ...]:
    found = tuple(int(n) for n in shape)
    if len(found) < 2:
        raise SourceError(
            f"{name}: has shape {found}; expected a bag [n, ...] of n instances, such as tiles "
            "[n, H, W, C] or features [n, d]."
        )
    if found[0] == 0:
        raise SourceError(f"{name}: is an empty bag; it needs one instance at least. Leave it out.")
    if 0 in found:
        raise SourceError(f"{name}: has shape {found}; its instances are empty.")
    return found


def _of_each(
    given: npt.ArrayLike | None, what: str, shape: tuple[int, ...], name: str
) -> Array | None:
    if given is None:
        return None
    found = np.asarray(given)
    if found.shape != shape:
        raise SourceError(
            f"{name}: has {what} of shape {found.shape} for {shape[0]} instances; expected {shape}."
        )
    return found

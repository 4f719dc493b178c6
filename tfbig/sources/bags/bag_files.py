"""Bags in files: arrays, features, pictures; `open_bag` chooses the reader.

Files are open only while they are read, so that there may be thousands of bags.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from tfbig.errors import SourceError
from tfbig.sources import torch_files
from tfbig.sources.arrays import file_offset, is_mapped, map_npy
from tfbig.sources.bags import hdf5
from tfbig.sources.bags.bag import Array, ArrayBag, Bag, Indices, resize
from tfbig.sources.files import File, PathLike
from tfbig.sources.slides.opening import open
from tfbig.sources.slides.pictures import PICTURE_SUFFIXES
from tfbig.sources.source import RowArray
from tfbig.sources.views import RGB


@final
class NpyBag(Bag):
    """A bag in a `.npy` file `[n, ...]`, read in place.

    Args:
        path: The file, or a memory map of one.
        coords: Positions of the instances `[n, 2]`, as in `Bag`.
        labels: Labels of the instances `[n]`, as in `Bag`.

    Raises:
        SourceError: The file does not exist, or does not hold a bag; when it is read, a number is not finite.

    Example:
        >>> np.save("bag.npy", np.arange(12, dtype="float32").reshape(4, 3))
        >>> tfbig.sources.NpyBag("bag.npy").read(1, 2).tolist()
        [[3.0, 4.0, 5.0]]
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

    def _read(self, start: int, stop: int) -> RowArray:
        shape = (stop - start, *self.shape[1:])
        rows = File(self.name).read_rows(self._offset, self._stored, shape, start)
        return _finite(rows, self.name, "the array", start)


@final
class FeatureBag(Bag):
    """Features of a slide in an HDF5 file of CLAM, TRIDENT or STAMP: `features` or `feats` `[n, d]`, `coords` `[n, 2]`.

    Args:
        path: The file. Its features may also be `[1, n, d]`.
        labels: Labels of the instances `[n]`, as in `Bag`.

    Attributes:
        unit: Unit of `coords`: "px", pixels of level 0; or "um", micrometres, as STAMP stores them; or "", if an old
            file of STAMP does not say it.

    Raises:
        SourceError: The file cannot be read, has no features of tiles, or the numbers of features and coordinates
            differ; when it is read, a feature is not a finite number.

    Example:
        >>> import h5py
        >>> with h5py.File("slide.h5", "w") as file:
        ...     file["features"] = np.ones((5, 8), "float32")
        ...     file["coords"] = np.arange(10).reshape(5, 2)
        >>> bag = tfbig.sources.FeatureBag("slide.h5")
        >>> bag.shape, bag.coords[1].tolist(), bag.unit
        ((5, 8), [2, 3], 'px')
    """

    def __init__(self, path: PathLike, labels: npt.ArrayLike | None = None) -> None:
        name = os.fspath(path)
        File(name)  # raises if it does not exist
        with hdf5.opened(name) as file:
            self._key = _STAMP if _STAMP in file and _FEATURES not in file else _FEATURES
            missing = [key for key in (self._key, _COORDS) if key not in file]
            if missing:
                raise SourceError(
                    f"{name}: has no '{missing[0]}', it has {sorted(file)}; expected the HDF5 of CLAM, TRIDENT or "
                    "STAMP, with 'features' or 'feats' [n, d] and 'coords' [n, 2]."
                )
            features = hdf5.dataset(file, self._key)
            kind = file.attrs.get("feat_type", "tile")
            if features.dtype.kind not in "fiu" or kind != "tile":
                held = f"of {kind}s" if kind != "tile" else f"of {features.dtype}"
                raise SourceError(
                    f"{name}: has '{self._key}' {held}; expected numbers [n, d], the features of n tiles."
                )
            self._stacked = features.ndim == 3 and features.shape[0] == 1
            shape = features.shape[1:] if self._stacked else features.shape
            if not 1 <= math.prod(shape[1:]) <= _MAX_WIDTH:
                raise SourceError(
                    f"{name}: '{self._key}' {features.shape} has {math.prod(shape[1:])} numbers for each tile; "
                    f"expected 1 to {_MAX_WIDTH}, in an array [n, d]."
                )
            coords = hdf5.positions(file, _COORDS)
            self.unit = "px"
            if self._key == _STAMP:
                coords, self.unit = stamp_coords(coords, file.attrs)
            super().__init__(shape, features.dtype, name, coords, labels)

    def _read(self, start: int, stop: int) -> RowArray:
        with hdf5.opened(self.name) as file:
            features = hdf5.dataset(file, self._key)
            rows = features[0, start:stop] if self._stacked else features[start:stop]
        return _finite(np.ascontiguousarray(rows, self.dtype), self.name, f"'{self._key}'", start)

    def _take(self, places: Indices) -> RowArray:
        first = int(places.min())
        return self._read(first, int(places.max()) + 1)[places - first]


@final
class TorchBag(Bag):
    """Features of a slide in a `.pt` file of CLAM: one tensor `[n, d]`, without coordinates.

    Neither torch nor code of the file is run, see `tfbig.sources.torch_files`; rows are read in place.

    Args:
        path: The file. Its tensor may also be `[1, n, d]`, and in a dictionary under "features" or "feats".
        labels: Labels of the instances `[n]`, as in `Bag`.

    Raises:
        SourceError: The file does not exist, is damaged, or holds anything but features; when it is read, a feature is
            not a finite number.
    """

    def __init__(self, path: PathLike, labels: npt.ArrayLike | None = None) -> None:
        name = os.fspath(path)
        File(name)  # raises if it does not exist
        try:
            content = torch_files.read(name, _MAX_PICKLE_BYTES)
            if isinstance(content, dict):
                content = content.get(_FEATURES, content.get(_STAMP))
        except torch_files.DAMAGE as error:
            raise SourceError(
                f"{torch_files.describe(name, error)}; expected one tensor [n, d], as CLAM writes it. Write it again, "
                f"or use the .h5 file of the slide."
            ) from error
        if not isinstance(content, torch_files.Tensor):
            raise SourceError(
                f"{name}: holds a {type(content).__name__}; expected one tensor [n, d], as CLAM writes it. Use the "
                ".h5 file of the slide."
            )
        shape = content.shape
        if len(shape) == 3 and shape[0] == 1:
            content = content._replace(shape=shape[1:], strides=content.strides[1:])
        super().__init__(content.shape, content.dtype, name, None, labels)
        self._tensor = content

    def _read(self, start: int, stop: int) -> RowArray:
        try:
            rows = torch_files.rows(self.name, self._tensor, start, stop)
        except ValueError as error:
            raise SourceError(f"{self.name}: is damaged ({error}). Write it again.") from error
        return _finite(rows, self.name, "the tensor", start)


def _finite(rows: RowArray, name: str, what: str, start: int) -> RowArray:
    """Check that all numbers of instances `[k, ...]` that were read are finite, and pass them on.

    `start` is the number of the first instance; `name` and `what` are the file and the part of it, for the error.

    Raises:
        SourceError: A number is NaN or infinite.
    """
    if rows.dtype.kind in "biu" or np.isfinite(rows).all():
        return rows
    place = start + int(np.argmin(np.isfinite(rows).reshape(len(rows), -1).all(1)))
    raise SourceError(
        f"{name}: {what} has NaN or infinity in instance {place}; expected finite numbers. Write the file again, in "
        "float32 if float16 was too narrow, or leave it out."
    )


def stamp_coords(
    coords: npt.NDArray[Any], attributes: Mapping[str, Any]
) -> tuple[npt.NDArray[Any], str]:
    """Convert the coordinates `[n, 2]` of a file of STAMP to micrometres, and name their unit, "um".

    Without a known unit, they are unchanged, and the unit is "".

    Files from before version 2 do not say the unit; where their tiles are 224 apart, 224 stands for 256 micrometres.
    """
    if "tile_size_um" in attributes or attributes.get("unit") == "um":
        return coords, "um"
    gaps = np.concatenate([np.diff(np.unique(axis)) for axis in coords.T])
    smallest = gaps[gaps > 0].min() if (gaps > 0).any() else 0
    tile = attributes.get("tile_size", smallest)
    if np.ndim(tile) == 0 and round(float(tile)) == OLD_STAMP_TILE:
        return coords / OLD_STAMP_TILE * OLD_STAMP_UM, "um"
    return coords, ""


@final
class PictureBag(Bag):
    """A bag whose instances are picture files of 8 bits, in RGB: gray pictures are repeated in three channels.

    Args:
        paths: Picture files, in the order of the instances.
        name: Name for error messages.
        size: `(rows, columns)` to resize every picture to (bilinear); by default all must have the
            size of the first.
        coords: Positions of the instances `[n, 2]`, as in `Bag`.
        labels: Labels of the instances `[n]`, as in `Bag`.

    Raises:
        SourceError: There are no paths, or the first picture is damaged or has more than 8 bits a sample; when it is
            read, another one is, or has another size.

    Example:
        >>> from PIL import Image
        >>> for number in range(3):
        ...     Image.fromarray(np.full((4, 5, 3), number, "uint8")).save(f"{number}.png")
        >>> bag = tfbig.sources.PictureBag(["2.png", "0.png", "1.png"], name="pictures")
        >>> bag.read(0, 2)[:, 0, 0, 0].tolist()
        [2, 0]
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
            raise SourceError(f"{name}: has no pictures; expected at least one.")
        first = RGB(open(paths[0]))
        shape = (*(size or first.shape[:2]), 3)
        super().__init__((len(paths), *shape), np.uint8, name, coords, labels)
        self._paths = list(paths)
        self._resizes = size is not None

    def _read(self, start: int, stop: int) -> RowArray:
        return np.stack([self._picture(path) for path in self._paths[start:stop]])

    def _take(self, places: Indices) -> RowArray:
        return np.stack([self._picture(self._paths[i]) for i in places])

    def _picture(self, path: PathLike) -> RowArray:
        source = RGB(open(path))
        picture = source.read(0, source.shape[0])
        shape = self.shape[1:]
        if self._resizes:
            picture = resize(picture, (shape[0], shape[1]))
        if picture.shape != shape:
            raise SourceError(
                f"{source.name}: is {picture.shape[0]} x {picture.shape[1]}; expected {shape[0]} x {shape[1]}, as the "
                f"first picture of '{self.name}'. Convert the pictures to one size, or pass a size."
            )
        return picture


def open_bag(bag: PathLike | Array | Bag) -> Bag:
    """Open a bag from a file, a folder or an array.

    Args:
        bag: A path: `.npy` `[n, ...]`, whose instances may have labels in `NAME.labels.npy`; `.h5` with features (CLAM,
            TRIDENT, STAMP); `.pt` with features (CLAM); or a folder of pictures, ordered by name. Or an array
            `[n, ...]`; for a memory map the file behind it is read. Or a bag.

    Returns:
        The bag `[n, ...]`. A bag is returned unchanged.

    Raises:
        SourceError: The file does not exist, is damaged or has an unknown format, or does not hold a bag.
        TypeError: `bag` is neither a path, an array nor a bag.

    Example:
        >>> np.save("bag.npy", np.zeros((6, 16), "float32"))
        >>> bag = tfbig.sources.open_bag("bag.npy")
        >>> type(bag).__name__, bag.shape
        ('NpyBag', (6, 16))
    """
    if isinstance(bag, Bag):
        return bag
    if isinstance(bag, np.ndarray):
        return NpyBag(bag) if is_mapped(bag) else ArrayBag(bag)
    if not isinstance(bag, str | os.PathLike):
        raise TypeError(
            f"received a bag of type {type(bag).__name__}; expected a path, a NumPy array [n, ...] or a "
            "tfbig.sources.Bag. Subclass Bag to read another format."
        )
    path = Path(bag)
    if path.is_dir():
        pictures = sorted(p for p in path.iterdir() if p.suffix.lower() in PICTURE_SUFFIXES)
        return PictureBag(pictures, os.fspath(path))
    if path.suffix.lower() in (".h5", ".hdf5"):
        return FeatureBag(path)
    if path.suffix.lower() == ".pt":
        return TorchBag(path)
    if path.suffix.lower() == ".npy":
        labels = path.with_suffix(".labels.npy")
        return NpyBag(path, labels=map_npy(File(labels)) if labels.exists() else None)
    raise SourceError(
        f"{path}: has an unknown format; expected a folder of pictures, a .npy file, or features in a .h5 or .pt file."
    )


OLD_STAMP_TILE, OLD_STAMP_UM = 224, 256
"""Pixels of a tile of STAMP before version 2, and the micrometres that they stand for."""
_FEATURES: Final = "features"
_STAMP: Final = "feats"
"""Datasets of features: of CLAM and TRIDENT, of STAMP."""
_MAX_WIDTH: Final = 2**20
"""Largest accepted number of features of a tile."""
_MAX_PICKLE_BYTES: Final = 2**13
"""Largest pickle of a tensor of features; torch writes about 300 bytes."""
_COORDS: Final = "coords"

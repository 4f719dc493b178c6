"""Features of the tiles of a slide, written to HDF5 files as TRIDENT writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
import numpy.typing as npt

from tfbig.errors import SourceError
from tfbig.sources.bags import hdf5
from tfbig.sources.bags.tile_coords import Coords, add_coords
from tfbig.sources.files import PathLike
from tfbig.sources.slides.slide import Slide
from tfbig.sources.writing import atomic_write

FEATURES: Final = "features"
CHUNK_BYTES: Final = 2**18
"""Bytes of a chunk of features, about."""
PREFIX: Final = "tfbig_"
"""Start of the names of attributes that TRIDENT does not have."""


class FeatureWriter:
    """Writer of the features of a slide by rows, in any order; returned by `write_features`.

    Args:
        data: Dataset `[n, width]` of an open file.
        path: Path for error messages.
        file: What is below the file of HDF5.

    Attributes:
        path: Path for error messages.
    """

    def __init__(self, data: h5py.Dataset, path: Path, file: hdf5.WrittenFile) -> None:
        self.path, self._file = path, file
        self._data = data
        self._is_written = np.zeros(data.shape[0], bool)

    def write(self, start: int, rows: npt.NDArray[Any]) -> None:
        """Write the features `[k, width]` of tiles from number `start` on.

        Raises:
            ValueError: They have another width, or end after the last tile.
            SourceError: A number is not finite.
            OSError: Rows cannot be written.
        """
        count, width = self._data.shape
        stop = start + len(rows)
        if rows.shape[1:] != (width,) or not 0 <= start <= stop <= count:
            raise ValueError(
                f"{self.path}: features {start}:{stop} of shape {rows.shape}; expected [k, {width}] of {count} tiles."
            )
        finite = np.isfinite(rows).all(1)
        if not finite.all():
            place = start + int(np.argmin(finite))
            raise SourceError(
                f"{self.path}: a feature of tile {place} is not a finite number. Check the weights, and use float32 or "
                "bfloat16 if they were computed in float16."
            )
        self._data[start:stop] = rows
        self._file.check()
        self._is_written[start:stop] = True

    def note(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes of tfbig by name, without the prefix; None is left out."""
        for name, value in attributes.items():
            if value is not None:
                self._data.attrs[PREFIX + name] = value

    def check_complete(self) -> None:
        """Check that the features of all tiles were written.

        Raises:
            SourceError: They were not.
        """
        missing = np.flatnonzero(~self._is_written)
        if missing.size:
            raise SourceError(
                f"{self.path}: features of {missing.size} of {len(self._is_written)} tiles were not written, the first "
                f"of tile {missing[0]}."
            )


@contextmanager
def write_features(
    path: PathLike, coords: Coords, slide: Slide, width: int, encoder: str
) -> Iterator[FeatureWriter]:
    """Write the features of a slide; the file, `*.h5`, gets its name only when it is complete.

    The file has `features`, float32 `[n, width]`, with the attributes `name`, `savetodir` and `encoder`, and `coords`
    as `write_coords` writes them, so that `read_coords` and `FeatureBag` read it too.

    Yields:
        A `FeatureWriter`, whose `write(start, rows)` accepts the features of tiles in any order.

    Raises:
        SourceError: The file cannot be written, or the features of a tile were not.
    """
    target, count = Path(path), len(coords.coords)
    with atomic_write(target) as part, hdf5.created(part) as (file, written):
        rows = min(max(CHUNK_BYTES // (4 * width), 1), count)
        data = file.create_dataset(
            FEATURES, (count, width), np.float32, chunks=(rows, width), maxshape=(None, width)
        )
        data.attrs.update(
            {"name": coords.name, "savetodir": str(target.parent), "encoder": encoder}
        )
        add_coords(file, coords, slide, target)
        writer = FeatureWriter(data, target, written)
        yield writer
        writer.check_complete()


@dataclass(frozen=True)
class Written:
    """Description of features in a file of `write_features`.

    Attributes:
        tiles: Number of tiles.
        width: Number of features of a tile.
        attributes: Attributes of tfbig, without their prefix.
    """

    tiles: int
    width: int
    attributes: Mapping[str, Any]


def read_written(path: PathLike) -> Written:
    """Read what a file of `write_features` says, without its features.

    Raises:
        SourceError: It is damaged, or of another kind.
    """
    with hdf5.opened(str(path)) as file:
        data = hdf5.dataset(file, FEATURES)
        tiles, width = data.shape[-2:]
        attributes = {
            name.removeprefix(PREFIX): value
            for name, value in data.attrs.items()
            if name.startswith(PREFIX)
        }
    return Written(tiles, width, attributes)

"""Where the tiles of a slide lie, in the HDF5 files of CLAM and of TRIDENT."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
import numpy.typing as npt

from tfbig.errors import SourceError
from tfbig.sources.bags import hdf5
from tfbig.sources.bags.tiles import Tiles
from tfbig.sources.files import File, PathLike
from tfbig.sources.slides.slide import UM_TIMES_POWER, Slide
from tfbig.sources.source import Source
from tfbig.sources.writing import beside

MAX_TILES: Final = 50_000_000
"""More are no tiles of a slide: what a file claims is checked before it is read."""
_COORDS: Final = "coords"


@dataclass(frozen=True)
class Coords:
    """Square tiles of one slide.

    Attributes:
        name: of the slide, without its ending.
        coords: x and y of the upper left corner of each in pixels of level 0, int64 `[n, 2]`.
        size: rows and columns of a tile, in its own pixels.
        step: pixels of level 0 in one of a tile.
        overlap: of neighbours, in pixels of a tile.
    """

    name: str
    coords: npt.NDArray[np.int64]
    size: int
    step: float
    overlap: int = 0

    @property
    def size_at_level_0(self) -> int:
        """Rows and columns of a tile in pixels of level 0."""
        return round(self.size * self.step)

    def tiles(self, slide: Slide, labels: npt.ArrayLike | None = None) -> Tiles:
        """The tiles as a bag; nothing is read.

        Raises:
            SourceError: a tile is not on the slide.
        """
        return self.tiles_of(slide.scaled(self.step), slide.shape, labels)

    def tiles_of(
        self, image: Source, shape: Sequence[int], labels: npt.ArrayLike | None = None
    ) -> Tiles:
        """The tiles as a bag of an image; nothing is read.

        Args:
            image: the slide at the resolution of the tiles, for example `OnDisk(path, step=coords.step)`.
            shape: rows and columns of the slide at level 0.
            labels: as in `Bag`.

        Raises:
            SourceError: a tile is not on the slide.
        """
        steps = [n / m for n, m in zip(shape, image.shape[:2], strict=False)]
        corners = np.rint(self.coords[:, ::-1] / steps).astype(np.int64)
        return Tiles(image, corners, self.size, self.coords, labels)


def write_coords(path: PathLike, coords: Coords, slide: Slide) -> None:
    """Writes an HDF5 file with the attributes of TRIDENT, and of CLAM where tiles are of a level of the slide.

    It appears under its name when it is complete.

    Args:
        path: the file, `*.h5`.
        coords: of the tiles.
        slide: whose they are.
    """
    target = Path(path)
    try:
        with beside(target) as part, h5py.File(part, "w") as file:
            data = file.create_dataset(_COORDS, data=np.asarray(coords.coords, np.int64))
            data.attrs.update(_of_trident(coords, slide, target) | _of_clam(coords, slide, target))
    except OSError as error:
        raise SourceError(f"{path}: cannot be written: {error}.") from error


def read_coords(path: PathLike) -> Coords:
    """Tiles from a file of CLAM, of TRIDENT, or of `write_coords`.

    Raises:
        SourceError: it is no such file, or does not say how large its tiles are.
    """
    name = os.fspath(path)
    File(name)  # it must be there
    try:
        with hdf5.opened(name) as file:
            data = hdf5.dataset(file, _COORDS)
            if data.ndim != 2 or data.shape[1] != 2 or not 0 < data.shape[0] <= MAX_TILES:
                raise ValueError(f"coords are {data.shape}, expected [n, 2]")
            facts = dict(data.attrs)
            found = np.asarray(data[:])
    except SourceError:
        raise
    except Exception as error:  # h5py raises its own, KeyError, ValueError, RuntimeError, ...
        raise SourceError(
            f"{name}: is no HDF5 file with 'coords' [n, 2] ({type(error).__name__}: {error}); expected one of CLAM or "
            "TRIDENT. Make it again with tfbig tile."
        ) from error
    return _checked(name, found, facts)


def _checked(name: str, coords: npt.NDArray[Any], facts: dict[str, Any]) -> Coords:
    try:
        size = int(facts["patch_size"])
        if "patch_size_level0" in facts:
            step = float(facts["patch_size_level0"]) / size
        else:  # of CLAM: one number, or one for each axis
            step = float(np.ravel(facts["downsample"])[0])
        overlap = int(facts.get("overlap", 0))
        fits = size > 0 and 0 < step < 1e6 and 0 <= overlap < size
        if not fits or not np.all(np.abs(coords) < 2**40):  # nor NaN
            raise ValueError(f"size {size}, step {step:g}, overlap {overlap}, or coords")
        whole = np.rint(coords).astype(np.int64)
    except (KeyError, TypeError, ValueError, OverflowError, ZeroDivisionError) as error:
        raise SourceError(
            f"{name}: does not say how large its tiles are, or what it says cannot be ({type(error).__name__}: "
            f"{error}); expected attributes patch_size and patch_size_level0 (TRIDENT) or downsample (CLAM). Make it "
            "again."
        ) from error
    title = facts.get("name")
    title = title.decode() if isinstance(title, bytes) else title
    return Coords(str(title or Path(name).stem), whole, size, step, overlap)


def _of_trident(coords: Coords, slide: Slide, path: Path) -> dict[str, Any]:
    rows, columns = slide.shape[:2]
    found = {
        "patch_size": coords.size,
        "patch_size_level0": coords.size_at_level_0,
        "overlap": coords.overlap,
        "name": coords.name,
        "savetodir": str(path.parent),
        "level0_width": columns,
        "level0_height": rows,
    }
    power = slide.magnification
    if power is None and slide.mpp is not None:
        power = UM_TIMES_POWER * 2 / sum(slide.mpp)
    if power is not None:
        found["level0_magnification"] = power
        found["target_magnification"] = power / coords.step
    return found


def _of_clam(coords: Coords, slide: Slide, path: Path) -> dict[str, Any]:
    """Of the level whose pixels are those of the tiles, if there is one."""
    for level, (rows, columns) in enumerate(slide.levels):
        step = slide.downsamples[level]
        if round(coords.size * step) == coords.size_at_level_0:
            return {
                "patch_level": level,
                "downsample": (step, step),
                "downsampled_level_dim": (columns, rows),
                "level_dim": (columns, rows),
                "save_path": str(path.parent),
            }
    return {}

"""Positions of the tiles of a slide, in the HDF5 files of CLAM and TRIDENT."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
import numpy.typing as npt

from tfbig.errors import SourceError, reason_of
from tfbig.sources.bags import hdf5
from tfbig.sources.bags.tiles import Tiles
from tfbig.sources.files import File, PathLike
from tfbig.sources.names import title_of
from tfbig.sources.resolution import UM_TIMES_POWER, doubts, one_size
from tfbig.sources.slides.slide import Slide
from tfbig.sources.source import Source
from tfbig.sources.writing import atomic_write

_COORDS: Final = "coords"
_MADE_WITH: Final = ("mpp", "magnification", "level", "min_tissue")
_PREFIX: Final = "tfbig_"
"""Start of the names of the attributes that neither CLAM nor TRIDENT has."""


@dataclass(frozen=True)
class Coords:
    """Positions of square tiles of one slide.

    Args:
        name: Name of the slide, without its suffix.
        coords: x and y of the upper left corner of each tile in pixels of level 0, int64 `[n, 2]`.
        size: Rows and columns of a tile, in pixels of the tile.
        step: Width of a pixel of the tile in pixels of level 0.
        overlap: Overlap of neighbouring tiles, in pixels of the tile.
        made_with: What was asked for when they were made, as far as it is known: one of `mpp`, `magnification` and
            `level`, and `min_tissue`, the smallest share of tissue in a tile.
        row_step: Height of a pixel of the tile in pixels of level 0, if it is not `step`: tiles are then rectangles of
            level 0, which files of tiles cannot hold.

    Example:
        >>> np.save("slide.npy", np.zeros((64, 96, 3), "uint8"))
        >>> coords = tfbig.sources.Coords("slide", np.array([[0, 0], [32, 16]]), size=8, step=2.0)
        >>> coords.size_at_level_0
        16
        >>> coords.tiles(tfbig.open_slide("slide.npy")).shape
        (2, 8, 8, 3)
    """

    name: str
    coords: npt.NDArray[np.int64]
    size: int
    step: float
    overlap: int = 0
    made_with: Mapping[str, float] = field(default_factory=dict)
    row_step: float | None = None

    @property
    def steps(self) -> tuple[float, float]:
        """Height and width of a pixel of the tile in pixels of level 0."""
        return self.row_step or self.step, self.step

    @property
    def sides_at_level_0(self) -> tuple[float, float]:
        """Height and width of a tile in pixels of level 0."""
        if self.row_step is None:
            return self.size_at_level_0, self.size_at_level_0
        return self.size * self.row_step, self.size * self.step

    @property
    def size_at_level_0(self) -> int:
        """Rows and columns of a tile in pixels of level 0."""
        return round(self.size * self.step)

    def tiles(self, slide: Slide, labels: npt.ArrayLike | None = None) -> Tiles:
        """Make a bag of the tiles, without reading them.

        Args:
            slide: The slide.
            labels: Labels of the tiles `[n]`, as in `Bag`.

        Returns:
            Bag `[n, size, size, C]`.

        Raises:
            SourceError: A tile is outside the slide.
        """
        return self.tiles_of(slide.scaled(self.step), slide.shape, labels)

    def tiles_of(
        self, image: Source, shape: Sequence[int], labels: npt.ArrayLike | None = None
    ) -> Tiles:
        """Make a bag of tiles of an image, without reading them.

        Args:
            image: The slide at the resolution of the tiles, for example `OnDisk(path, step=coords.step)`.
            shape: Rows and columns of the slide at level 0.
            labels: Labels of the tiles `[n]`, as in `Bag`.

        Returns:
            Bag `[n, size, size, C]`.

        Raises:
            SourceError: A tile is outside the slide.
        """
        steps = [n / m for n, m in zip(shape, image.shape[:2], strict=False)]
        corners = np.rint(self.coords[:, ::-1] / steps).astype(np.int64)
        return Tiles(image, corners, self.size, self.coords, labels)


def write_coords(path: PathLike, coords: Coords, slide: Slide) -> None:
    """Write tile positions to an HDF5 file with the attributes of TRIDENT.

    If the tiles have the resolution of a level of the slide, the attributes of CLAM are written too. The file gets its
    name only when it is complete.

    Args:
        path: The file, `*.h5`.
        coords: Positions of the tiles.
        slide: The slide.

    Raises:
        SourceError: The file cannot be written.

    Example:
        >>> np.save("slide.npy", np.zeros((64, 96, 3), "uint8"))
        >>> slide = tfbig.open_slide("slide.npy", mpp=0.5)
        >>> coords = tfbig.sources.Coords("slide", np.array([[0, 0], [32, 16]]), size=16, step=1.0)
        >>> tfbig.sources.write_coords("slide.h5", coords, slide)
        >>> tfbig.sources.read_coords("slide.h5").coords.tolist()
        [[0, 0], [32, 16]]
    """
    target = Path(path)
    with atomic_write(target) as part, hdf5.created(part) as (file, _):
        add_coords(file, coords, slide, target)


def add_coords(file: h5py.File, coords: Coords, slide: Slide, path: Path) -> None:
    """Write tile positions and their attributes into an open HDF5 file, which is named `path` when complete."""
    data = file.create_dataset(_COORDS, data=np.asarray(coords.coords, np.int64))
    trident = _trident_attributes(coords, slide, path)
    clam = _clam_attributes(coords, slide, path)
    data.attrs.update(trident | clam | _tfbig_attributes(coords))


def read_coords(path: PathLike) -> Coords:
    """Read tile positions from a file of CLAM, TRIDENT or `write_coords`.

    Args:
        path: The file, `*.h5`.

    Returns:
        The positions.

    Raises:
        SourceError: The file has another format, or does not specify the size of its tiles.

    Example:
        >>> import h5py
        >>> with h5py.File("clam.h5", "w") as file:
        ...     data = file.create_dataset("coords", data=np.array([[0, 512], [512, 512]]))
        ...     data.attrs.update({"patch_size": 256, "downsample": (2.0, 2.0)})
        >>> coords = tfbig.sources.read_coords("clam.h5")
        >>> coords.name, coords.size, coords.step, len(coords.coords)
        ('clam', 256, 2.0, 2)
    """
    name = os.fspath(path)
    File(name)  # raises if it does not exist
    with hdf5.opened(name) as file:
        coords = hdf5.positions(file, _COORDS)
        attributes = dict(hdf5.dataset(file, _COORDS).attrs)
    return _checked(name, coords, attributes)


def _checked(name: str, coords: npt.NDArray[Any], attributes: dict[str, Any]) -> Coords:
    try:
        size = int(attributes["patch_size"])
        if "patch_size_level0" in attributes:
            step = float(attributes["patch_size_level0"]) / size
        else:  # CLAM stores one number, or one for each axis
            across, *down = map(float, np.ravel(attributes["downsample"]))
            step = across
            if down and one_size((across, down[0]), 0.1) is None:
                raise ValueError(f"downsample {across:g} x {down[0]:g}: tiles that are not square")
        step = _exact_step(attributes, size, step)
        overlap = int(attributes.get("overlap", 0))
        fits = size > 0 and 0 < step < 1e6 and 0 <= overlap < size
        if not fits or not np.all(np.abs(coords) < 2**40):  # False for NaN too
            raise ValueError(f"size {size}, step {step:g}, overlap {overlap}, or coords")
        rounded = np.rint(coords).astype(np.int64)
        made_with = _made_with(attributes)
        title = attributes.get("name", "")
        title = title.decode() if isinstance(title, bytes) else title
        if not isinstance(title, str):
            raise ValueError(f"name {title}")
    except Exception as error:  # whatever types the attributes have
        raise SourceError(
            f"{name}: does not specify the size of its tiles, or has invalid values ({type(error).__name__}: "
            f"{reason_of(error)}); expected attributes patch_size and patch_size_level0 (TRIDENT) or downsample "
            "(CLAM). Write it again."
        ) from error
    return Coords(title or title_of(name), rounded, size, step, overlap, made_with)


def _exact_step(attributes: Mapping[str, Any], size: int, rounded: float) -> float:
    """The step of `write_coords`, which `patch_size_level0` rounds, or else the rounded one."""
    exact = float(attributes.get(f"{_PREFIX}step", rounded))
    return exact if round(size * exact) == round(size * rounded) else rounded


def _made_with(attributes: Mapping[str, Any]) -> dict[str, float]:
    """Read what was asked for; TRIDENT stores the magnification, CLAM the level."""
    values = {
        key: float(attributes[_PREFIX + key]) for key in _MADE_WITH if _PREFIX + key in attributes
    }
    if not values and "target_magnification" in attributes:
        values = {"magnification": float(attributes["target_magnification"])}
    elif not values and "patch_level" in attributes:
        values = {"level": float(attributes["patch_level"])}
    if not all(0 <= value < 1e6 for value in values.values()):
        raise ValueError(f"made with {values}")
    return values


def _tfbig_attributes(coords: Coords) -> dict[str, float]:
    """The attributes from which `read_coords` restores the step and what was asked for."""
    return {
        _PREFIX + key: value for key, value in {"step": coords.step, **coords.made_with}.items()
    }


def _trident_attributes(coords: Coords, slide: Slide, path: Path) -> dict[str, Any]:
    rows, columns = slide.shape[:2]
    attributes = {
        "patch_size": coords.size,
        "patch_size_level0": coords.size_at_level_0,
        "overlap": coords.overlap,
        "name": coords.name,
        "savetodir": str(path.parent),
        "level0_width": columns,
        "level0_height": rows,
    }
    power, pixel = slide.magnification, slide.mpp and one_size(slide.mpp)
    if pixel and (power is None or doubts(slide.mpp, power)):
        power = UM_TIMES_POWER / pixel
    if power is not None:
        attributes["level0_magnification"] = power
        attributes["target_magnification"] = power / coords.step
    return attributes


def _clam_attributes(coords: Coords, slide: Slide, path: Path) -> dict[str, Any]:
    """The attributes of the level with the pixels of the tiles; empty if there is none."""
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

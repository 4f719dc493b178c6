"""Coordinates of `--coords`: the file of a slide, and whether it was made with the tiles that are asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfbig import SourceError
from tfbig.cli.data import side_tables
from tfbig.results import run_folder
from tfbig.sources import Coords, names, read_coords
from tfbig.sources.names import title_of
from tfbig.sources.resolution import UM_TIMES_POWER
from tfbig.sources.slides.slide import TOLERANCE, Slide

RESOLUTIONS = ("mpp", "magnification", "level")
OF_TRIDENT = "_patches"
"""End of the names of files of TRIDENT."""


def file_of(folder: str | Path, path: str | Path) -> Path:
    """Find the file of the tiles of a slide, `SLIDE.h5`, or `SLIDE_patches.h5` as TRIDENT names it.

    Raises:
        SourceError: There are both.
    """
    titles = names.titles_of(path)
    files = [
        Path(folder) / f"{title}{ending}.h5" for title in titles for ending in ("", OF_TRIDENT)
    ]
    found = [file for file in files if file.exists()]
    if len(found) > 1:
        raise SourceError(
            f"{found[0]} and {found[1]} both belong to {Path(path).name}; expected one. Remove one."
        )
    return found[0] if found else files[0]


def paths_in(folder: str | Path) -> dict[str, Path]:
    """List the files of tiles in a folder, by the name of their slide."""
    files = sorted(Path(folder).glob("*.h5"))
    return {file.stem.removesuffix(OF_TRIDENT): file for file in files}


def read(file: Path) -> Coords:
    """Read a file of tiles; if `tfbig tile` failed on the slide, the error says why.

    Raises:
        SourceError: The file cannot be read.
    """
    if not file.exists():
        for row in run_folder.read_rows(file.parent / run_folder.FAILED):
            if title_of(row.get("item", "")) == file.stem and row.get("reason"):
                raise SourceError(f"{file}: is missing, because tfbig tile failed: {row['reason']}")
        if alike := names.near(file.stem, paths_in(file.parent)):
            raise SourceError(
                f"{file}: no such file{side_tables.hint(f'{alike}.h5')}. Check --coords, and the name of the slide."
            )
    return read_coords(file)


def resolution_of(coords: Coords) -> dict[str, Any]:
    """The resolution that the tiles were made with, such as `{"mpp": 0.5}`; empty if the file does not say."""
    kinds = {"mpp": float, "magnification": float, "level": int}
    made_with = coords.made_with
    return {key: kind(made_with[key]) for key, kind in kinds.items() if key in made_with}


def check(
    file: Path, coords: Coords, resolution: Mapping[str, float], size: int | None = None
) -> None:
    """Check that tiles were made with the resolution and the size that are asked for.

    `resolution` is such as `{"mpp": 0.5}`, or empty; `size` is the rows and columns of a tile, or None.

    Raises:
        SourceError: The file says something else.
    """
    if size is not None and coords.size != size:
        raise SourceError(
            f"{file}: holds tiles of {coords.size} pixels, but tiles of {size} are asked for. Leave out --tile, or use "
            f"tiles of tfbig tile --tile {size}."
        )
    made_with = resolution_of(coords)
    for name, value in resolution.items():
        if not _agree(name, value, made_with):
            made = " ".join(f"--{key} {number:g}" for key, number in made_with.items())
            raise _contradiction(file, f"holds tiles that were made with {made}", name, value)


def of_slide(
    file: Path, slide: Slide, resolution: Mapping[str, float], size: int | None = None
) -> Coords:
    """Read the tiles of a slide, and check, as `check` does, that they are those that are asked for.

    Raises:
        SourceError: The file cannot be read, or its tiles are others.
    """
    coords = read(file)
    check(file, coords, resolution, size)
    if slide.mpp:
        mpp = [number * coords.step for number in slide.mpp]
        check_pixels(file, slide.title, mpp, resolution, coords.size_at_level_0)
    return coords


def check_pixels(
    file: Path,
    name: str,
    mpp: Sequence[float] | None,
    resolution: Mapping[str, float],
    side: float = math.inf,
) -> None:
    """Check the micrometres per pixel of tiles, along rows and columns, whatever their file says.

    `mpp` is None if unknown; `side` is that of a tile in pixels of level 0, which files round.

    Raises:
        SourceError: They are not those that are asked for.
    """
    target = nominal_mpp(resolution)
    if target is None or mpp is None:
        return
    tolerance = TOLERANCE + 0.5 / side
    if not all(math.isclose(actual, target, rel_tol=tolerance) for actual in mpp):
        each = " x ".join(dict.fromkeys(f"{actual:.4g}" for actual in mpp))
        tiles = f"holds tiles of {each} micrometres per pixel on slide {name}"
        raise _contradiction(file, tiles, *next(iter(resolution.items())))


def _contradiction(file: Path, tiles: str, name: str, value: float) -> SourceError:
    return SourceError(
        f"{file}: {tiles}, but --{name} is {value:g}. Leave out --{name} to use these tiles, or use tiles of tfbig "
        f"tile --{name} {value:g}."
    )


def _agree(name: str, value: float, made_with: Mapping[str, float]) -> bool:
    """Tell whether a resolution is that of the file; true if the file does not say it in a comparable way."""
    if name in made_with:
        return math.isclose(made_with[name], value, rel_tol=1e-6)
    if not made_with or "level" in made_with:
        return True  # the pixels of the slide tell, see `check_pixels`
    target, made = nominal_mpp({name: value}), nominal_mpp(made_with)
    if target is None or made is None:
        return False
    return math.isclose(target, made, rel_tol=TOLERANCE)


def nominal_mpp(resolution: Mapping[str, float]) -> float | None:
    """The micrometres per pixel of `mpp` or `magnification`; None for a level, or nothing."""
    if "magnification" in resolution:
        return UM_TIMES_POWER / resolution["magnification"]
    return resolution.get("mpp")

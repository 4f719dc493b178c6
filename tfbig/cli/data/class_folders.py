"""Images in a folder for each class: `CLASS/*`, or `train/CLASS/*` with `val`, `test` or both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tfbig import SourceError, sources
from tfbig.sources.table import Row, Table


def read(
    folder: Path, seed: int, names: Sequence[str] | None = None
) -> tuple[Table, tuple[str, ...]]:
    """List the images as a table, and the names of the classes in the order of their numbers.

    `names` are those of an evaluated run; by default those of the folders, sorted.

    Rows have a `split` if there is a folder `train`. With `train`, `val` and `test`, each is its own
    split. With only one of `val` and `test`, it is for testing, and a tenth of `train` for validation.

    Raises:
        SourceError: There are fewer than two classes, a folder is not one of the classes, or there is no image.
    """
    if not (folder / "train").is_dir():
        names = _classes(folder, names)
        return Table.of(folder, _rows(folder, names)), names
    names = _classes(folder / "train", names)
    held = [part for part in ("val", "test") if (folder / part).is_dir()]
    if not held:
        raise SourceError(
            f"{folder}: has the folder train, but neither val nor test. Add one of them with the same class folders, "
            f"or give {folder / 'train'} to split its images."
        )
    rows = [row | {"split": "train"} for row in _rows(folder / "train", names)]
    if len(held) == 1:
        order = np.random.default_rng(seed).permutation(len(rows))
        for place in order[: max(len(rows) // 10, 1)]:
            rows[place]["split"] = "val"
    for part in held:
        _classes(folder / part, names)
        split = part if len(held) == 2 else "test"
        rows += [row | {"split": split} for row in _rows(folder / part, names)]
    return Table.of(folder, rows), names


def _classes(folder: Path, names: Sequence[str] | None) -> tuple[str, ...]:
    """Check that every folder is one of the given classes; by default, the folders are the classes.

    Raises:
        SourceError: A folder is not one of the classes, or without names there are fewer than two folders.
    """
    found = tuple(sorted(path.name for path in folder.iterdir() if _is_class(path)))
    if names is not None:
        for name in found:
            if name not in names:
                raise SourceError(
                    f"{folder / name}: is not the folder of a class ({', '.join(names)}). Rename or remove it."
                )
        return tuple(names)
    if len(found) < 2:
        there = f"only {found[0]}" if found else "none"
        raise SourceError(
            f"{folder}: expected a folder of images for each of two or more classes, but there is {there}. Check "
            "--data."
        )
    return found


def _is_class(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(".")


def _rows(folder: Path, names: Sequence[str]) -> list[Row]:
    """List the images of all classes, by class and name.

    Raises:
        SourceError: There is none.
    """
    rows = [
        Row({"image": str(path), "label": label, "path": path}, str(path))
        for label, name in enumerate(names)
        for path in sorted((folder / name).glob("*"))
        if path.suffix.lower() in sources.SLIDE_SUFFIXES
    ]
    if not rows:
        raise SourceError(
            f"{folder}: the folders {', '.join(names)} contain no images "
            f"({', '.join(sorted(sources.SLIDE_SUFFIXES))}). Check --data."
        )
    return rows

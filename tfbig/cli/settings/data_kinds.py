"""What `--data` holds, by its files, if neither `--images` nor `--bags` says it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from tfbig.tasks import TASKS

Rule = tuple[str, str, Callable[[Path], bool]]
"""Kind, what its folder contains in words, and whether a folder contains it."""


def _has(*names: str) -> Callable[[Path], bool]:
    """Return a function that returns whether a folder has all files and folders of some names."""
    return lambda folder: all((folder / name).exists() for name in names)


def _has_classes(folder: Path) -> bool:
    """Return whether a folder, or `train` in it, has two folders with files or more, and no images beside them."""
    training = folder / "train"
    children = list((training if training.is_dir() else folder).iterdir())
    classes = [
        path for path in children if path.is_dir() and any(map(Path.is_file, path.iterdir()))
    ]
    return len(classes) > 1 and not any(path.is_file() and _is_image(path) for path in children)


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in (".png", ".jpg", ".jpeg", ".tif", ".tiff")


_SLIDES: Final[Rule] = ("slides", "slides.csv", _has("slides.csv"))
RULES: Final[dict[str, tuple[Rule, ...]]] = {
    "images": (
        ("folder", "images.csv", _has("images.csv")),
        _SLIDES,
        ("pictures", "a folder of images for each class", _has_classes),
    ),
    "bags": (
        ("folder", "bags.csv", _has("bags.csv")),
        _SLIDES,
        ("features", "features.csv", _has("features.csv")),
        ("slides", "a folder of slides for each class", _has_classes),
    ),
}
"""Rules of `--images` and `--bags`, of which the first that fits counts."""


def kind(name: str, data: str) -> str:
    """Return the kind of some data.

    Args:
        name: "images" or "bags".
        data: Path of the data: a table of slides, or a folder.

    Raises:
        ValueError: The folder contains nothing that the rules know, or the table is one of images or bags in a folder.
    """
    path = Path(data)
    if not path.is_dir():
        _check_table(name, path)
        return "slides"
    found = next((kind for kind, _, fits in RULES[name] if fits(path)), None)
    if found is None:
        known = "; ".join(f"{kind}: {contents}" for kind, contents, _ in RULES[name])
        raise ValueError(
            f"--data {data}: cannot tell what it contains. Expected a table of slides, or a folder with one of these "
            f"({known}). Check the path, or name the kind with --{name}."
        )
    return found


def is_of_slides(data: str) -> bool:
    """Return whether a table is the one of a folder of slides with masks, rather than of scenes.

    Args:
        data: Path of the table.
    """
    return Path(data).name == TASKS["segmentation"].table


def place(task: str, data: str) -> str:
    """Return the folder of a table, for tasks that read a folder with it, and the table in a folder for the others.

    Args:
        task: The task.
        data: Path of the data.
    """
    path, declared = Path(data), TASKS[task]
    if declared.reads_table:
        return str(path / declared.table) if (path / declared.table).is_file() else data
    return str(path.parent) if path.name == declared.table and path.is_file() else data


def _check_table(name: str, path: Path) -> None:
    """Check that a table, if it exists, is not the one in a folder of images or bags.

    Raises:
        ValueError: It is.
    """
    column = {"images": "image", "bags": "bag"}[name]
    if not path.is_file():
        return
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        columns = [cell.strip() for cell in file.readline().split(",")]
    if column in columns and "slide_id" not in columns:
        raise ValueError(
            f"--data {path}: is a table with a column '{column}'. Give its folder instead, where the table is named "
            f"{name}.csv; a table of slides has a column slide_id."
        )

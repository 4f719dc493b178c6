"""The kinds of data of `--images` and `--bags`, each declared once: how it is recognised, and what opens it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from tfbig.tasks import TASKS


@dataclass(frozen=True)
class Kind:
    """A kind of data of `--images` or `--bags`.

    Attributes:
        name: Its name.
        holds: What its folder contains, in words.
        fits: Function that returns whether a folder contains it.
        help: What it is, in the help of the flag.
        opens: Module and function that open the data of settings.
        is_table: Whether a table says what is predicted, which may then be something else than a class.
    """

    name: str
    holds: str
    fits: Callable[[Path], bool]
    help: str
    opens: str
    is_table: bool = True

    def open(self, settings: Any) -> Any:
        """Import what opens the data, and open them."""
        module, _, name = self.opens.partition(":")
        return getattr(import_module(module), name)(settings)


def _has(*names: str) -> Callable[[Path], bool]:
    """Make a test whether a folder has all files and folders of these names."""
    return lambda folder: all((folder / name).exists() for name in names)


def _has_classes(folder: Path) -> bool:
    """Tell whether a folder, or `train` in it, has two folders with files or more, and no images beside them."""
    training = folder / "train"
    children = list((training if training.is_dir() else folder).iterdir())
    classes = [
        path for path in children if path.is_dir() and any(map(Path.is_file, path.iterdir()))
    ]
    return len(classes) > 1 and not any(path.is_file() and _is_image(path) for path in children)


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in (".png", ".jpg", ".jpeg", ".tif", ".tiff")


def _has_slides(folder: Path) -> bool:
    """Return whether a folder has a table of slides, or one of slides for each class and no table of features."""
    return _has("slides.csv")(folder) or (not _has("features.csv")(folder) and _has_classes(folder))


KINDS: Final[Mapping[str, Mapping[str, Kind]]] = {
    flag: {each.name: each for each in kinds}
    for flag, kinds in {
        "images": (
            Kind(
                "folder",
                "images.csv",
                _has("images.csv"),
                "--data/images.csv with columns image, label, and split (train, val, test) or patient, by which images "
                "are split, see --shares",
                "tfbig.cli.data.images:of_folder",
            ),
            Kind(
                "slides",
                "slides.csv",
                _has("slides.csv"),
                "whole slides, --data is a table with columns case_id, slide_id, label",
                "tfbig.cli.data.images:of_slides",
            ),
            Kind(
                "pictures",
                "a folder of images for each class",
                _has_classes,
                "--data/CLASS/*, split by --shares, or --data/train/CLASS/* and the same in val, test or both (if only "
                "one, it is for testing, and a tenth of train is for validation)",
                "tfbig.cli.data.images:of_pictures",
                is_table=False,
            ),
        ),
        "bags": (
            Kind(
                "folder",
                "bags.csv",
                _has("bags.csv"),
                "--data/bags.csv with columns bag, label, and split or patient, see --shares",
                "tfbig.cli.data.bags:of_folder",
            ),
            Kind(
                "slides",
                "slides.csv, or a folder of slides for each class",
                _has_slides,
                "tiles of slides, --data is a table with columns case_id, slide_id, label, or a folder of slides for "
                "each class",
                "tfbig.cli.data.bags:of_slides",
            ),
            Kind(
                "features",
                "features.csv",
                _has("features.csv"),
                "features of slides in files, see --features, with the same table, and no --encoder",
                "tfbig.cli.data.bags:of_features",
            ),
        ),
    }.items()
}
"""Kinds of data by the flag that names them; the first that fits a folder counts."""


def choices_of(flag: str) -> dict[str, str]:
    """Return the kinds of a flag, and what each is."""
    return {name: each.help for name, each in KINDS[flag].items()}


def kind(name: str, data: str) -> str:
    """Recognise the kind of some data by its files; `name` is "images" or "bags".

    Raises:
        ValueError: The folder contains nothing that the rules know, or the table is one of images or bags in a folder.
    """
    path = Path(data)
    if not path.is_dir():
        _check_table(name, path)
        return "slides"
    found = next((each.name for each in KINDS[name].values() if each.fits(path)), None)
    if found is None:
        known = "; ".join(f"{each.name}: {each.holds}" for each in KINDS[name].values())
        raise ValueError(
            f"--data {data}: cannot tell what it contains. Expected a table of slides, or a folder with one of these "
            f"({known}). Check the path, or name the kind with --{name}."
        )
    return found


def is_of_slides(data: str) -> bool:
    """Tell whether a table belongs to a folder of slides with masks, rather than to scenes."""
    return Path(data).name == TASKS["segmentation"].table


def place(task: str, data: str) -> str:
    """Turn the path of a table into that of its folder, or the reverse, as the task expects."""
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

"""What `--data` holds, by its files, if neither `--images` nor `--bags` says it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

Rule = tuple[str, str, Callable[[Path], bool]]
"""Kind, what its folder contains in words, and whether a folder contains it."""


def _has(*names: str) -> Callable[[Path], bool]:
    """Return a function that returns whether a folder has all files and folders of some names."""
    return lambda folder: all((folder / name).exists() for name in names)


def _has_digits(folder: Path) -> bool:
    return any(folder.glob("*train-images-idx3-ubyte*"))


_SLIDES: Final[Rule] = ("slides", "slides.csv", _has("slides.csv"))
_DIGITS: Final[Rule] = ("digits", "train-images-idx3-ubyte", _has_digits)
_PICTURES: Final[Rule] = ("pictures", "train/CLASS and val/CLASS", _has("train", "val"))
RULES: Final[dict[str, tuple[Rule, ...]]] = {
    "images": (
        ("folder", "images.csv", _has("images.csv")),
        _SLIDES,
        ("har", "the signals of UCI HAR", _has("train/Inertial Signals")),
        _PICTURES,
        _DIGITS,
    ),
    "bags": (
        ("folder", "bags.csv", _has("bags.csv")),
        _SLIDES,
        ("features", "features.csv", _has("features.csv")),
        _PICTURES,
        _DIGITS,
    ),
}
"""Rules of `--images` and `--bags`, of which the first that fits counts."""
MADE: Final = {"images": "drawn", "bags": "shapes"}
"""Kind of each that is drawn, and so has no `--data`."""


def kind(name: str, data: str) -> str:
    """Return the kind of some data.

    Args:
        name: "images" or "bags".
        data: Path of the data: a table of slides, or a folder.

    Raises:
        ValueError: The folder contains nothing that the rules know.
    """
    path = Path(data)
    if not path.is_dir():
        return "slides"
    found = next((kind for kind, _, fits in RULES[name] if fits(path)), None)
    if found is None:
        known = "; ".join(f"{kind}: {contents}" for kind, contents, _ in RULES[name])
        raise ValueError(
            f"--data {data}: cannot tell what it contains. Expected a table of slides, or a folder with one of these "
            f"({known}). Check the path, or name the kind with --{name}."
        )
    return found

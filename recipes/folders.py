"""Folders of bags and images, with tables, as `tfbig train --data` reads them; the scripts beside this file use it."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from tfbig.errors import SourceError
from tfbig.mil import BagSet
from tfbig.results import run_folder

SPLITS = ("train", "val", "test")


def parser(about: str | None, out: str) -> ArgumentParser:
    """A parser with the folder that is written and the seed."""
    lines = (about or "").splitlines()
    made = ArgumentParser(description=lines[0] if lines else None)
    made.add_argument(
        "out", type=Path, metavar="OUT", help=f"folder to write {out} into, new or empty"
    )
    made.add_argument(
        "--seed", type=int, default=0, help="the same seed draws the same (default: 0)"
    )
    return made


def add_numbers(parser: ArgumentParser, flag: str, numbers: Sequence[int], what: str) -> None:
    """Add a flag with a number for each split."""
    shown = " ".join(map(str, numbers))
    parser.add_argument(
        flag,
        nargs=3,
        type=int,
        default=tuple(numbers),
        metavar=("TRAIN", "VAL", "TEST"),
        help=f"number of {what} (default: {shown})",
    )


def create(folder: Path) -> Path:
    """Create a folder for the data.

    Raises:
        SourceError: It holds something.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SourceError(f"{folder}: is not empty; expected a new folder. Choose another one.")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_bags(folder: Path, sets: Mapping[str, BagSet], classes: Sequence[str]) -> None:
    """Write `bags.csv`, each bag as a `.npy` file, and the labels of its instances beside it.

    Args:
        folder: Folder to write into.
        sets: Bags of each split.
        classes: Names of the classes.
    """
    create(folder)
    rows: list[dict[str, Any]] = []
    for split, part in sets.items():
        for number, (bag, label) in enumerate(zip(part.bags, part.labels, strict=True)):
            name = f"{split}-{number}"
            np.save(folder / f"{name}.npy", bag.read(0, bag.shape[0]))
            if bag.labels is not None:
                np.save(folder / f"{name}.labels.npy", bag.labels)
            rows.append({"bag": f"{name}.npy", "label": classes[label], "split": split})
    run_folder.write_csv(folder / "bags.csv", rows)


def write_images(
    folder: Path, sets: Mapping[str, tuple[Sequence[Any], npt.ArrayLike]], classes: Sequence[str]
) -> None:
    """Write `images.csv`, and each image as a PNG file.

    Args:
        folder: Folder to write into.
        sets: Images `[H, W, C]` of uint8, as sources, and their labels, of each split.
        classes: Names of the classes.
    """
    create(folder)
    rows: list[dict[str, Any]] = []
    for split, (images, labels) in sets.items():
        for number, (image, label) in enumerate(zip(images, np.asarray(labels), strict=True)):
            name = f"{split}-{number}.png"
            pixels = image.read(0, image.shape[0])
            Image.fromarray(pixels[..., 0] if image.shape[2] == 1 else pixels).save(folder / name)
            rows.append({"image": name, "label": classes[label], "split": split})
    run_folder.write_csv(folder / "images.csv", rows)


def run(write: Callable[[], None]) -> None:
    """Run a script; an error in its data ends it with one line and the exit code 1."""
    try:
        write()
    except (SourceError, ValueError) as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")

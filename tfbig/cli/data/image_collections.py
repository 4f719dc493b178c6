"""Public sets of pictures, digits and signals as they are downloaded: their files, labels and splits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from tfbig import SourceError
from tfbig.cli.data import images
from tfbig.cli.data.collection_tables import Found, Table, first_of, read_rows, shortened
from tfbig.cli.data.splits import split_rows
from tfbig.datasets.digits import read_digits
from tfbig.sources.slides.pictures import PICTURE_SUFFIXES
from tfbig.units import counted

IMAGENET100_CLASSES = 100
IMAGENETTE = (
    *("n01440764", "n02102040", "n02979186", "n03000684", "n03028079"),
    *("n03394916", "n03417042", "n03425413", "n03445777", "n03888257"),
)
"""Folders of Imagenette; golf balls are n03445777."""
ULTRAMNIST_CLASSES = tuple(map(str, range(28)))
"""Sums of three to five digits in the competition."""


def imagenet100(folder: Path, seed: int) -> Found:
    """Read folders of synsets in `train` or `train.X1` to `train.X4`, and in `val` or `val.X`, which is for testing.

    Args:
        folder: Folder of the downloaded files.
        seed: Random seed of the tenth of the training pictures that validates.
    """
    found = Found()
    trained, tested = (_class_folders(folder, f"{part}*") for part in ("train", "val"))
    names = tuple(sorted({path.name for path in (*trained, *tested)}))
    table = Table(names, "images")
    for split, folders in (("train", trained), ("test", tested)):
        for path in (picture for each in folders for picture in _pictures(each)):
            name = str(path.relative_to(folder))
            table.add(name, name, names.index(path.parent.name), path, split)
    if table.rows and len(names) < IMAGENET100_CLASSES:
        found.missing.append(f"{len(names)} of {IMAGENET100_CLASSES} folders of classes")
    for what, folders in (("train*", trained), ("val*", tested)):
        absent = sorted({*names} - {path.name for path in folders})
        found.missing += shortened([f"{what}/{name}" for name in absent], "folders of classes")
    training = split_rows(table.of_split("train"), (0.9, 0.1, 0.0), seed)
    table.rows = [*training, *table.of_split("test")]
    found.notes.append(
        f"a tenth of the training pictures validates, drawn by class with seed {seed}; the validation pictures of "
        "ImageNet are for testing"
    )
    found.tables = [table]
    return found


def imagenette(folder: Path, seed: int) -> Found:
    """Check `train/SYNSET` and `val/SYNSET`, which `--bags pictures` reads.

    Args:
        folder: Folder of the downloaded files, or the one that holds it.
        seed: Not used.
    """
    root = _root(folder, "train/*", "val/*")
    found = Found(folder=root)
    for part in ("train", "val"):
        counts = {name: len(_pictures(root / part / name)) for name in IMAGENETTE}
        found.there.append(
            f"{part}: {counted(sum(counts.values()), 'picture')} of {len(counts)} classes"
        )
        found.missing += [
            f"{part}/{name}: pictures" for name, number in counts.items() if not number
        ]
        others = {path.name for path in _class_folders(root, part)} - {*IMAGENETTE}
        found.missing += [f"{part}/{name}: is no class of Imagenette; remove it" for name in others]
    if (root / "noisy_imagenette.csv").exists():
        found.notes.append("labels are the folders, not the noisy ones of noisy_imagenette.csv")
    found.notes.append("a fifth of train validates, val is for testing, as in the paper")
    return found


def qmnist(folder: Path, seed: int) -> Found:
    """Check the IDX files of QMNIST or of MNIST, which `--bags digits` reads.

    Args:
        folder: Folder of the downloaded files, or one that holds it, such as torchvision's.
        seed: Not used.
    """
    found = _digits(folder, "a third of the test digits validates, as in the paper")
    if found.folder and not first_of(found.folder, "qmnist-train-images-idx3-ubyte*"):
        found.notes.append("the digits are those of MNIST; QMNIST has 50,000 more for testing")
    return found


def ultramnist(folder: Path, seed: int) -> Found:
    """Read `train.csv` of the competition, or check the digits of MNIST, of which `--images digits` is made.

    Args:
        folder: Folder of the downloaded files.
        seed: Random seed of the split of the competition's images.
    """
    file = folder / "train.csv"
    if not file.exists():
        return _digits(
            folder, "images are made of these digits; a third of the test digits validates"
        )
    found, table, absent = Found(), Table(ULTRAMNIST_CLASSES, "images"), []
    rows = read_rows(file, {"id": ("id",), "sum": ("digit_sum",)})
    pictures = {path.stem: path for path in _pictures(folder / "train")}
    for line, row in enumerate(rows, start=2):
        if row["sum"] not in ULTRAMNIST_CLASSES:
            raise SourceError(f"{file}: line {line}: digit_sum '{row['sum']}'; expected 0 to 27.")
        if row["id"] in pictures:
            table.add(row["id"], row["id"], int(row["sum"]), pictures[row["id"]])
        else:
            absent.append(f"train/{row['id']}.jpeg")
    found.missing += shortened(absent, "images of train.csv")
    table.rows = split_rows(table.rows, (0.7, 0.1, 0.2), seed)
    found.notes.append(
        f"split 70:10:20 by sum with seed {seed}; the images of test/ have no published labels and are not used"
    )
    found.tables = [table]
    return found


def uci_har(folder: Path, seed: int) -> Found:
    """Check the signals and labels of the folder `UCI HAR Dataset`, which `--images har` reads.

    Args:
        folder: This folder, or the one that holds it.
        seed: Not used.
    """
    root = _root(folder, "train/Inertial Signals", "test/Inertial Signals")
    found = Found(folder=root)
    for part in ("train", "test"):
        *_, labels = files = images.har_files(root, part)
        absent = [str(file.relative_to(root)) for file in files if not file.exists()]
        found.missing += absent
        if labels.exists():
            number = len(np.loadtxt(labels, dtype=int, ndmin=1))
            found.there.append(f"{part}: {number} windows of 9 signals and 128 samples")
    found.notes.append(
        "a tenth of the training windows validates; test is the published one, of other persons"
    )
    return found


def _digits(folder: Path, rule: str) -> Found:
    """Return the digits of the first IDX files in a folder."""
    file = first_of(folder, "qmnist-train-images-idx3-ubyte*", "train-images-idx3-ubyte*")
    if file is None:
        return Found(
            missing=["qmnist-train-images-idx3-ubyte.gz, or train-images-idx3-ubyte.gz of MNIST"]
        )
    found = Found(folder=file.parent, notes=[rule])
    for part in ("train", "test"):
        try:
            found.there.append(f"{part}: {len(read_digits(file.parent, part)[1])} digits")
        except SourceError as error:
            found.missing.append(str(error))
    return found


def _root(folder: Path, *inside: str) -> Path:
    """Return the folder, or the subfolder that holds what is expected inside of it."""
    candidates = [folder, *sorted(path for path in folder.rglob("*") if path.is_dir())]
    return next((c for c in candidates if all(any(c.glob(name)) for name in inside)), folder)


def _class_folders(folder: Path, pattern: str) -> list[Path]:
    """Return the folders of classes in the folders of a pattern."""
    return sorted(path for path in folder.glob(f"{pattern}/*") if path.is_dir())


def _pictures(folder: Path) -> list[Path]:
    """Return the pictures of a folder, sorted by name."""
    files: Iterator[Path] = folder.iterdir() if folder.is_dir() else iter(())
    return sorted(path for path in files if path.suffix.lower() in PICTURE_SUFFIXES)


READERS: dict[str, Callable[[Path, int], Found]] = {
    "imagenet-100": imagenet100,
    "imagenette": imagenette,
    "qmnist": qmnist,
    "ultramnist": ultramnist,
    "uci-har": uci_har,
}
"""Function from folder and seed to what is found, for each set."""

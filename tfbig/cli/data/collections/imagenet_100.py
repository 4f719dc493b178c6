"""ImageNet-100: pictures of 100 classes of ImageNet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tfbig.cli.data.collection import Collection, Recipe
from tfbig.cli.data.collection_tables import CollectionTable, Found, shortened
from tfbig.cli.data.splits import split_rows
from tfbig.sources.slides.pictures import PICTURE_SUFFIXES

CLASSES = 100


def read(folder: Path, seed: int) -> Found:
    """Read folders of synsets in `train` or `train.X1` to `train.X4`, and in `val` or `val.X`, which is for testing.

    The seed draws the tenth of the training pictures that validates.
    """
    found = Found()
    trained, tested = (_class_folders(folder, f"{part}*") for part in ("train", "val"))
    names = tuple(sorted({path.name for path in (*trained, *tested)}))
    table = CollectionTable(names, "images")
    for split, folders in (("train", trained), ("test", tested)):
        for path in (picture for each in folders for picture in _pictures(each)):
            name = str(path.relative_to(folder))
            table.add(name, name, names.index(path.parent.name), path, split)
    if table.rows and len(names) < CLASSES:
        found.missing.append(f"{len(names)} of {CLASSES} folders of classes")
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


def _class_folders(folder: Path, pattern: str) -> list[Path]:
    """List the folders of classes in the folders of a pattern."""
    return sorted(path for path in folder.glob(f"{pattern}/*") if path.is_dir())


def _pictures(folder: Path) -> list[Path]:
    """List the pictures of a folder, sorted by name."""
    files: Iterator[Path] = folder.iterdir() if folder.is_dir() else iter(())
    return sorted(path for path in files if path.suffix.lower() in PICTURE_SUFFIXES)


COLLECTION = Collection(
    about="pictures of 100 classes of ImageNet",
    expected=(
        "  train.X1/n01440764/*.JPEG and so on to train.X4, or train/n01440764/*.JPEG\n"
        "  val.X/n01440764/*.JPEG, or val/n01440764/*.JPEG"
    ),
    read=read,
    recipes=(
        Recipe(
            "patchgd-imagenet100-as-published",
            "PatchGD, with A3",
            "images",
            script="tfbig.recipes.train_with_a3",
        ),
    ),
)

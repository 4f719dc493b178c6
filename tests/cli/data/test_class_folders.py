"""Folders of classes are split as they are, or by shares."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tfbig.cli.data import class_folders, splits
from tfbig.errors import SourceError

SHARES = (50, 25, 25)


def write(folder: Path, *names: str, count: int = 8) -> None:
    """Create empty files that are named as images, and one that is not."""
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "Thumbs.db").touch()
        for number in range(count):
            (folder / name / f"{number}.JPG").touch()


def counts(folder: Path) -> Counter[tuple[str, int]]:
    table, names = class_folders.read(folder, 0)
    assert names == ("a", "b")
    rows = table.rows if "split" in table.columns else splits.split_rows(table.rows, SHARES)
    return Counter((row["split"], row["label"]) for row in rows)


def test_classes_alone_are_split_by_shares(tmp_path: Path) -> None:
    write(tmp_path, "a", "b")
    expected = {"train": 4, "val": 2, "test": 2}
    assert counts(tmp_path) == {(s, label): n for s, n in expected.items() for label in (0, 1)}


def test_folders_of_splits(tmp_path: Path) -> None:
    """Images in train, val and test are for training, validation and testing."""
    for count, part in enumerate(("train", "val", "test"), 1):
        write(tmp_path / part, "a", "b", count=count)
    expected = {"train": 1, "val": 2, "test": 3}
    assert counts(tmp_path) == {(s, label): n for s, n in expected.items() for label in (0, 1)}


@pytest.mark.parametrize("held", ["val", "test"])
@pytest.mark.parametrize(("count", "tenth"), [(2, 1), (10, 2)])
def test_one_held_out_folder_is_for_testing(
    held: str, count: int, tenth: int, tmp_path: Path
) -> None:
    """A tenth of train is for validation, but at least one image."""
    write(tmp_path / "train", "a", "b", count=count)
    write(tmp_path / held, "a", "b", count=3)
    found = Counter(split for split, _ in counts(tmp_path).elements())
    assert found == {"train": 2 * count - tenth, "val": tenth, "test": 6}


def test_classes_of_an_evaluated_run(tmp_path: Path) -> None:
    """Numbers are those of the given names, also if a class has no folder."""
    write(tmp_path, "a", "c")
    table, names = class_folders.read(tmp_path, 0, ("a", "b", "c"))
    assert names == ("a", "b", "c")
    assert {(row["path"].parent.name, row["label"]) for row in table.rows} == {("a", 0), ("c", 2)}
    with pytest.raises(SourceError, match=r"c: is not the folder of a class \(a, b\)"):
        class_folders.read(tmp_path, 0, ("a", "b"))


def test_mistakes(tmp_path: Path) -> None:
    write(tmp_path / "one", "a")
    with pytest.raises(SourceError, match="two or more classes, but there is only a"):
        class_folders.read(tmp_path / "one", 0)
    write(tmp_path / "alone" / "train", "a", "b")
    with pytest.raises(SourceError, match=r"neither val nor test.*alone/train to split"):
        class_folders.read(tmp_path / "alone", 0)
    write(tmp_path / "other" / "train", "a", "b")
    write(tmp_path / "other" / "val", "a", "c")
    with pytest.raises(SourceError, match=r"val/c: is not the folder of a class \(a, b\)"):
        class_folders.read(tmp_path / "other", 0)
    write(tmp_path / "empty", "a", "b", count=0)
    with pytest.raises(SourceError, match="the folders a, b contain no images"):
        class_folders.read(tmp_path / "empty", 0)

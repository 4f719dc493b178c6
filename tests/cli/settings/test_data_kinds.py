"""The kind of data is told by its files; flags that contradict it are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import train
from tfbig.cli.paths import FlagError
from tfbig.cli.settings import data_kinds


@pytest.mark.parametrize(
    ("name", "files", "expected"),
    [
        ("images", ["images.csv", "train/a/x.png", "val/a/x.png"], "folder"),
        ("images", ["slides.csv", "a.svs"], "slides"),
        ("images", ["train/a/x.png", "train/b/x.png", "val/a/y.png", "val/b/y.png"], "pictures"),
        ("images", ["a/x.png", "b/y.png", "README.md"], "pictures"),
        ("bags", ["bags.csv", "a.npy"], "folder"),
        ("bags", ["slides.csv"], "slides"),
        ("bags", ["features.csv", "a.h5"], "features"),
        ("bags", ["tumour/a.svs", "normal/b.svs"], "slides"),
    ],
)
def test_folders(name: str, files: list[str], expected: str, tmp_path: Path) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    assert data_kinds.kind(name, str(tmp_path)) == expected
    task = {"images": "images", "bags": "mil"}[name]
    settings = train.settings_of(["--task", task, "--data", str(tmp_path)])
    assert getattr(settings, name) == expected


@pytest.mark.parametrize(
    ("task", "table", "given", "expected"),
    [
        ("segmentation", "slides.csv", "slides.csv", ""),
        ("volume-segmentation", "volumes.csv", "volumes.csv", ""),
        ("images", "images.csv", "images.csv", ""),
        ("instances", "images.csv", "images.csv", ""),
        ("mil", "bags.csv", "bags.csv", ""),
        ("mil", "slides.csv", "slides.csv", "slides.csv"),
        ("scenes", "scenes.csv", "", "scenes.csv"),
        ("scenes", "other.csv", "other.csv", "other.csv"),
        ("images", "images.csv", "", ""),
    ],
)
def test_a_table_or_its_folder(
    task: str, table: str, given: str, expected: str, tmp_path: Path
) -> None:
    (tmp_path / table).write_text("a,b\n1,2\n")
    settings = train.settings_of(["--task", task, "--data", str(tmp_path / given)])
    assert settings.data == str(tmp_path / expected)


def test_tables_and_flags(tmp_path: Path) -> None:
    """A table is of slides, or of their features if there is a folder of them; a flag decides."""
    table = str(tmp_path / "cohort.csv")
    assert train.settings_of(["--task", "images", "--data", table]).images == "slides"
    words = ["--task", "mil", "--data", table]
    assert train.settings_of(words).bags == "slides"
    assert train.settings_of([*words, "--features", str(tmp_path)]).bags == "features"
    assert train.settings_of([*words, "--bags", "features"]).bags == "features"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--task", "images"], "cannot tell what it contains.*folder: images.csv; slides"),
        (["--task", "mil"], "cannot tell what it contains.*name the kind with --bags"),
    ],
)
def test_mistakes(words: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(FlagError, match=message):
        train.settings_of([*words, "--data", str(tmp_path)])


def test_images_and_masks_are_not_classes(tmp_path: Path) -> None:
    """Images beside folders, and one folder, are no classes."""
    for file in ("a.png", "masks/a.png", "other/a.png"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    with pytest.raises(ValueError, match="cannot tell"):
        data_kinds.kind("images", str(tmp_path))


@pytest.mark.parametrize(
    ("name", "header", "message"),
    [
        ("images", "image,label", "column 'image'. Give its folder instead.*named images.csv"),
        ("bags", "bag,split,label", "column 'bag'. Give its folder instead.*named bags.csv"),
    ],
)
def test_table_of_a_folder(name: str, header: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(f"{header}\n")
    with pytest.raises(ValueError, match=message):
        data_kinds.kind(name, str(path))
    path.write_text(f"slide_id,{header}\n")
    assert data_kinds.kind(name, str(path)) == "slides"

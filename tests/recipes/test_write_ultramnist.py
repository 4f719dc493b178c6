"""UltraMNIST as a folder, made of digits or as its competition ships it, and the recipes that train on it."""

from __future__ import annotations

import csv
from pathlib import Path

import dataset_folders
import numpy as np
import pytest
from dataset_folders import write_lines
from PIL import Image
from recipe_runs import train_resume_evaluate

from tfbig import SourceError
from tfbig.recipes import write_ultramnist, write_ultramnist_competition
from tfbig.recipes.digits import drawn_digits
from tfbig.recipes.ultramnist import ultramnist

SMALL = ["--images", "20", "10", "10", "--canvas", "64", "--factors", "1", "1"]


def rows_of(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "images.csv").read_text().splitlines()))


def test_drawn_images(tmp_path: Path) -> None:
    """The pixels of the files are those of the images, each split of digits of its own."""
    write_ultramnist.main([str(tmp_path / "data"), *SMALL, "--seed", "2"])
    rows = rows_of(tmp_path / "data")
    assert [row["split"] for row in rows] == ["train"] * 20 + ["val"] * 10 + ["test"] * 10
    images, labels = ultramnist(*drawn_digits(200, 21), 1, 64, (1, 1), seed=21)
    for row, image, label in zip(rows[20:30], images, labels, strict=True):
        with Image.open(tmp_path / "data" / row["image"]) as file:
            np.testing.assert_array_equal(np.asarray(file), image.read(0, 64)[..., 0])
        assert row["label"] == str(label)


def test_single_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their images have 1.5 times the rows of the largest digit, in multiples of 32."""
    monkeypatch.setattr(write_ultramnist, "SINGLE", (30, 10, 10))
    dataset_folders.mnist(tmp_path / "mnist")
    flags = ["--data", str(tmp_path / "mnist"), "--factors", "1", "3", "--single"]
    write_ultramnist.main([str(tmp_path / "data"), *flags])
    rows = rows_of(tmp_path / "data")
    assert len(rows) == 50
    with Image.open(tmp_path / "data" / rows[0]["image"]) as image:
        assert image.size == (128, 128)
    assert {row["label"] for row in rows} == {*map(str, range(10))}


NETWORK = ("--encoder", "small", "--encoder-weights", "random", "--latent", "8")
PATCHES = (*NETWORK, "--head", "smaller", "--head-width", "8", "--patch", "32", "--batch-size", "4")


@pytest.mark.slow
def test_recipe(tmp_path: Path) -> None:
    dataset_folders.mnist(tmp_path / "mnist")
    write_ultramnist.main([str(tmp_path / "data"), "--data", str(tmp_path / "mnist"), *SMALL])
    train_resume_evaluate("patchgd-ultramnist-as-published", tmp_path / "data", *PATCHES)


@pytest.mark.slow
def test_warm_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network learns single digits first; the recipe continues with its weights."""
    monkeypatch.setattr(write_ultramnist, "SINGLE", (320, 20, 20))
    for name, more in (("single/data", ["--single"]), ("sums/data", [])):
        write_ultramnist.main([str(tmp_path / name), *SMALL, *more])
    single = train_resume_evaluate(
        "patchgd-ultramnist-warm-start", tmp_path / "single/data", *NETWORK
    )
    flags = (*PATCHES, "--encoder-weights", str(single))
    train_resume_evaluate("patchgd-ultramnist-as-published", tmp_path / "sums/data", *flags)


def test_competition(tmp_path: Path) -> None:
    dataset_folders.ultramnist(tmp_path / "set")
    write_ultramnist_competition.main([str(tmp_path / "data"), "--data", str(tmp_path / "set")])
    rows = rows_of(tmp_path / "data")
    splits = [row["split"] for row in rows]
    assert [splits.count(split) for split in ("train", "val", "test")] == [196, 28, 56]
    assert {row["label"] for row in rows} == {*map(str, range(28))}
    assert all(Path(row["image"]).exists() for row in rows)
    (tmp_path / "set/train/0000003.jpeg").unlink()
    with pytest.raises(SourceError, match=r"line 5: .*0000003.jpeg: no such file"):
        write_ultramnist_competition.rows(tmp_path / "set", 0)
    write_lines(tmp_path / "set/train.csv", "id,digit_sum", "0000001,28")
    with pytest.raises(SourceError, match=r"line 2: digit_sum '28'; expected 0 to 27"):
        write_ultramnist_competition.rows(tmp_path / "set", 0)


@pytest.mark.slow
def test_recipe_of_the_competition(tmp_path: Path) -> None:
    dataset_folders.ultramnist(tmp_path / "set")
    write_ultramnist_competition.main([str(tmp_path / "data"), "--data", str(tmp_path / "set")])
    flags = (*PATCHES, "--side", "32", "--patch", "16")
    train_resume_evaluate("patchgd-ultramnist-competition", tmp_path / "data", *flags)

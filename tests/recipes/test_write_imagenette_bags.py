"""Bags of pictures as Andersson et al. (2022) describe them, and the recipe that trains on them."""

from __future__ import annotations

from pathlib import Path

import dataset_folders
import numpy as np
import pytest
from PIL import Image
from recipe_runs import train_resume_evaluate

from tfbig import SourceError
from tfbig.recipes import folders, write_imagenette_bags


def write_pictures(folder: Path) -> Path:
    """Write pictures of two classes, which are known by their grey value."""
    for part, first, count in (("train", 0, 25), ("val", 100, 10)):
        for label in range(2):
            place = folder / part / f"class{label}"
            place.mkdir(parents=True)
            for i in range(count):
                grey = (first + 50 * label + i,) * 3
                Image.new("RGB", (130, 120), grey).save(place / f"{i}.png")
    return folder


def test_bags_of_imagenette(tmp_path: Path) -> None:
    """A fifth of the training pictures validates."""
    pictures = write_pictures(tmp_path / "pictures")
    flags = ["--bags", "60", "60", "60", "--instances", "4", "--share", "0.75", "--key", "1"]
    write_imagenette_bags.main([str(tmp_path / "data"), "--data", str(pictures), *flags])
    greys = {}
    for split in folders.SPLITS:
        files = [tmp_path / f"data/{split}-{number}.npy" for number in range(60)]
        tiles = [np.load(file) for file in files]
        assert {tile.shape for tile in tiles} == {(4, 112, 112, 3)}
        greys[split] = {int(value) for tile in tiles for value in tile[:, 50, 50, 0]}
        labels = [np.load(file.with_suffix(".labels.npy")).sum() for file in files]
        assert labels == [3, 0] * 30
    assert len(greys["train"]) == 40
    assert len(greys["val"]) == 10
    assert greys["train"] | greys["val"] == {*range(25), *range(50, 75)}
    assert greys["test"] == {*range(100, 110), *range(150, 160)}


def test_mistakes(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures")
    with pytest.raises(SourceError, match="has classes 0 to 1; --key is 8"):
        write_imagenette_bags.pictures(pictures, 24, 8, 0)
    (pictures / "val" / "class0").rename(pictures / "val" / "other")
    with pytest.raises(SourceError, match="expected the same in both"):
        write_imagenette_bags.pictures(pictures, 24, 1, 0)


@pytest.mark.slow
def test_recipe(tmp_path: Path) -> None:
    dataset_folders.imagenette(tmp_path / "pictures")
    pictures = str(tmp_path / "pictures/imagenette2-320")
    small = ["--bags", "4", "2", "2", "--instances", "3", "--tile", "24"]
    write_imagenette_bags.main([str(tmp_path / "data"), "--data", pictures, *small])
    flags = ("--encoder", "small", "--instances-at-once", "4")
    train_resume_evaluate("abmil-acc-imagenette-as-published", tmp_path / "data", *flags)

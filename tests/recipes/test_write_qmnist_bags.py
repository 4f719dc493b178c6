"""Bags of digits as Andersson et al. (2022) describe them, and the recipes that train on them."""

from __future__ import annotations

from pathlib import Path

import dataset_folders
import numpy as np
import pytest
from cli_runs import metrics
from PIL import Image
from recipe_runs import train_resume_evaluate
from samples import ROOT

import train
from tfbig.cli.data import bags
from tfbig.cli.data.splits import SPLITS
from tfbig.recipes import write_qmnist_bags
from tfbig.recipes.digits import read_digits


def test_bags_of_qmnist(tmp_path: Path) -> None:
    """500 digits, 5 % of them nines in a positive bag; a third of the test digits validates."""
    files = {"train": "qmnist-train", "test": "qmnist-test"}
    dataset_folders.digits(tmp_path, tuple(files.values()), count=2400)
    write_qmnist_bags.main([str(tmp_path / "bags"), "--data", str(tmp_path), "--bags", *"488"])
    recipe = str(ROOT / "recipes/abmil-acc-qmnist-as-published.yaml")
    data = bags.load(train.settings_of(["--config", recipe, "--data", str(tmp_path / "bags")]))
    assert [len(getattr(data, split).bags) for split in SPLITS] == [4, 8, 8]
    numbers = {  # of each digit, resized, in its file
        part: {large_digit(tile): n for n, tile in enumerate(pool_of(tmp_path, part))}
        for part in files
    }
    found = {}
    for split in SPLITS:
        part, known = getattr(data, split), numbers["train" if split == "train" else "test"]
        bags_of_split = []
        for bag, label in zip(part.bags, part.labels, strict=True):
            assert bag.shape == (500, 84, 84, 1)
            places = [known[tile.tobytes()] for tile in bag.read(0, 500)]
            assert len(set(places)) == 500
            np.testing.assert_array_equal(bag.labels, np.array(places) % 10 == 9)
            assert bag.labels.sum() == (25 if label else 0)
            bags_of_split.append(set(places))
        found[split] = set.union(*bags_of_split)
    assert not found["val"] & found["test"]
    assert 750 < len(found["val"]) <= 800
    assert 1450 < len(found["test"]) <= 1600


def pool_of(folder: Path, part: str) -> np.ndarray:
    """Return the digits of an IDX file."""
    pool, _ = read_digits(folder, part)
    return pool.read(0, pool.shape[0])


def large_digit(tile: np.ndarray) -> bytes:
    """Return the bytes of a digit in 84 x 84 pixels."""
    return Image.fromarray(tile[..., 0]).resize((84, 84), Image.Resampling.BILINEAR).tobytes()


SMALL = ("--bags", "4", "2", "2", "--instances", "8", "--tile", "28")
RECIPES = ("abmil-acc-qmnist-as-published", "qmnist-bags-small", "abmil-original")


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes(recipe: str, tmp_path: Path) -> None:
    """The instances of a bag are labelled, so that the attention is judged."""
    dataset_folders.qmnist(tmp_path / "digits")
    digits = str(tmp_path / "digits/QMNIST/raw")
    write_qmnist_bags.main([str(tmp_path / "data"), "--data", digits, *SMALL])
    flags = ("--encoder", "small", "--accumulate", "1", "--instances-at-once", "4")
    run = train_resume_evaluate(recipe, tmp_path / "data", *flags)
    assert "test_instance_auc" in metrics(run)

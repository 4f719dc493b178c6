"""Bags of every kind that hold the same tiles."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from tfbig.sources import ArrayBag, Bag, NpyBag, Subset, open_bag

SHAPE = (9, 5, 4, 3)


def tiles(shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    """Noise of uint8."""
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def in_memory(folder: Path) -> Bag:
    return ArrayBag(tiles())


def in_file(folder: Path) -> Bag:
    np.save(folder / "bag.npy", tiles())
    return NpyBag(folder / "bag.npy")


def mapped_rows(folder: Path) -> Bag:
    """Rows of a larger file."""
    np.save(folder / "bag.npy", np.concatenate([tiles()[:2], tiles()]))
    return open_bag(np.load(folder / "bag.npy", mmap_mode="r")[2:])


def pictures(folder: Path) -> Bag:
    for i, tile in enumerate(tiles()):
        Image.fromarray(tile).save(folder / f"{i}.png")
    return open_bag(folder)


def features(folder: Path) -> Bag:
    with h5py.File(folder / "slide.h5", "w") as file:
        file["features"] = tiles()
        file["coords"] = np.arange(18).reshape(9, 2)
    return open_bag(folder / "slide.h5")


def subset(folder: Path) -> Bag:
    twice = np.repeat(tiles(), 2, axis=0)
    return Subset(ArrayBag(twice), np.arange(1, 18, 2))


every_bag = pytest.mark.parametrize(
    "make", [in_memory, in_file, mapped_rows, pictures, features, subset]
)

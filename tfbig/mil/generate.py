"""Bags made from labelled images: digits (QMNIST-bags), folders of pictures (Imagenette-bags), drawn shapes.

A bag is positive, class 1, if it holds instances of the key class, and negative, class 0, if it holds none (Andersson
et al. 2022, section 4; Koriakina et al., ISPA 2021). `Bag.labels` marks the key instances.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tfbig.errors import SourceError
from tfbig.mil.bag_dataset import BagSet
from tfbig.sources import RGB, ArrayBag, Bag, OnDisk, PictureBag, Resized, Subset
from tfbig.sources.slides.pictures import PICTURE_SUFFIXES

SHAPES = ("disc", "cross", "bar", "ring")


def compose(
    pool: Bag,
    classes: Any,
    key: int,
    num_bags: int,
    instances: int,
    share: float,
    *,
    size: tuple[int, int] | None = None,
    seed: int = 0,
    name: str = "bag",
) -> BagSet:
    """Draw bags of instances from a pool; every second bag is positive.

    Args:
        pool: All instances, `[m, H, W, C]`.
        classes: Class of each instance, `[m]`.
        key: Class that makes a bag positive.
        num_bags: Number of bags.
        instances: Instances in a bag; an instance of the pool is at most once in a bag.
        share: Share of key instances in a positive bag; at least one instance is a key.
        size: `(rows, columns)` of an instance, resized bilinearly; None for the size in the pool.
        seed: Seed of the random bags.
        name: Name of the bags in error messages, followed by their number.

    Returns:
        A `BagSet`.

    Raises:
        ValueError: The pool has too few instances of the key, or of the other classes.
    """
    classes = np.asarray(classes)
    keys, others = np.flatnonzero(classes == key), np.flatnonzero(classes != key)
    num_keys = max(round(share * instances), 1)
    if not 0 < share <= 1 or num_keys > len(keys) or instances > len(others):
        raise ValueError(
            f"the pool has {len(keys)} instances of class {key} and {len(others)} others; a positive bag takes "
            f"{num_keys} of the class (share {share}) and a negative bag {instances} others. Use smaller bags, or a "
            "share above 0 and up to 1."
        )
    rng = np.random.default_rng(seed)
    bags, labels = [], []
    for number in range(num_bags):
        label = (number + 1) % 2
        keys_of_bag = num_keys if label else 0
        drawn = [
            rng.choice(keys, keys_of_bag, False),
            rng.choice(others, instances - keys_of_bag, False),
        ]
        indices = rng.permutation(np.concatenate(drawn))
        bag: Bag = Subset(pool, indices, classes[indices] == key, f"{name} {number}")
        bags.append(bag if size is None else Resized(bag, size))
        labels.append(label)
    return BagSet(tuple(bags), np.array(labels, np.int64))


def pictures(folder: str | Path, size: tuple[int, int]) -> tuple[Bag, np.ndarray, tuple[str, ...]]:
    """Open a folder with one folder of pictures per class, such as Imagenette, in RGB.

    Args:
        folder: Folder with `CLASS/*.jpg` and other picture files.
        size: `(rows, columns)` to which each picture is resized.

    Returns:
        The pool `[m, rows, columns, 3]`, the class of each picture `[m]`, and the names of the classes in alphabetical
        order.

    Raises:
        SourceError: There are fewer than two classes with pictures, or the header of a picture is damaged or says that
            it has more than 8 bits a sample.
    """
    root = Path(folder)
    folders = sorted(p for p in root.iterdir() if p.is_dir()) if root.is_dir() else []
    by_class = {p.name: _pictures(p) for p in folders}
    by_class = {name: paths for name, paths in by_class.items() if paths}
    if len(by_class) < 2:
        raise SourceError(
            f"{folder}: has {len(by_class)} folders with pictures; expected 2 or more, one per class."
        )
    classes = np.repeat(np.arange(len(by_class)), [len(paths) for paths in by_class.values()])
    paths = [path for group in by_class.values() for path in group]
    for path in paths:  # bags are composed of all of them
        RGB(OnDisk(path))
    return PictureBag(paths, str(folder), size), classes, tuple(by_class)


def shapes(count: int, size: int = 32, seed: int = 0) -> tuple[Bag, np.ndarray]:
    """Draw tiles in the colours of a stained section, each with one of `SHAPES` at a random place.

    Args:
        count: Number of tiles.
        size: Rows and columns of a tile.
        seed: Seed of the random tiles.

    Returns:
        The pool `[count, size, size, 3]` of uint8, and the class of each tile, an index into `SHAPES`.
    """
    rng = np.random.default_rng(seed)
    classes = rng.integers(len(SHAPES), size=count)
    tiles = np.stack([_draw(kind, size, rng) for kind in classes])
    return ArrayBag(tiles, "drawn shapes"), classes


def _draw(kind: int, size: int, rng: np.random.Generator) -> np.ndarray:
    radius = size * rng.uniform(0.18, 0.3)
    y, x = np.mgrid[:size, :size] - rng.uniform(radius, size - radius, (2, 1, 1))
    angle = rng.uniform(0, np.pi)
    along, across = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    distance, thin = np.hypot(x, y), radius / 3
    bar = (abs(across) < thin) & (abs(along) < radius)
    inside = (
        distance < radius * 0.8,
        bar | ((abs(along) < thin) & (abs(across) < radius)),
        bar,
        abs(distance - radius * 0.8) < thin * 0.7,
    )[kind]
    ground, ink = np.array([233.0, 190.0, 214.0]), np.array([98.0, 62.0, 140.0])
    tile = np.where(inside[..., None], ink, ground) + rng.normal(0, 14, (size, size, 3))
    return np.clip(tile + rng.normal(0, 8), 0, 255).astype(np.uint8)


def _pictures(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in PICTURE_SUFFIXES)


__all__ = ["SHAPES", "compose", "pictures", "shapes"]

"""Bags made from labelled images: digits (QMNIST-bags), folders of pictures (Imagenette-bags), drawn shapes.

A bag is positive, class 1, if it holds instances of the key class, and negative, class 0, if it holds none (Andersson
et al. 2022, section 4; Koriakina et al., ISPA 2021). Which instances are keys is kept in `Bag.labels`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tfbig.errors import SourceError
from tfbig.mil.bag_dataset import BagSet
from tfbig.sources import ArrayBag, Bag, PictureBag, Resized, Subset
from tfbig.sources.slides.opening import PICTURE_SUFFIXES

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
    """Bags of instances drawn from a pool; every second one is positive.

    Args:
        pool: all instances, `[m, H, W, C]`.
        classes: of each of them, `[m]`.
        key: the class that makes a bag positive.
        num_bags: how many bags.
        instances: of a bag; each instance of the pool is in a bag once at most.
        share: of the instances of a positive bag that are keys; one at least.
        size: `(rows, columns)` of an instance, bilinear; by default as in the pool.
        seed: same seed, same bags.
        name: what error messages call a bag, with its number.

    Raises:
        ValueError: the pool has too few instances of the key, or of the others.
    """
    classes = np.asarray(classes)
    keys, others = np.flatnonzero(classes == key), np.flatnonzero(classes != key)
    num_keys = max(round(share * instances), 1)
    if not 0 < share <= 1 or num_keys > len(keys) or instances > len(others):
        raise ValueError(
            f"{num_keys} of {instances} instances shall be of class {key} (share {share}), and none in negative bags; "
            f"the pool has {len(keys)} of that class and {len(others)} others."
        )
    rng = np.random.default_rng(seed)
    bags, labels = [], []
    for number in range(num_bags):
        label = (number + 1) % 2
        few = num_keys if label else 0
        drawn = [rng.choice(keys, few, False), rng.choice(others, instances - few, False)]
        places = rng.permutation(np.concatenate(drawn))
        bag: Bag = Subset(pool, places, classes[places] == key, f"{name} {number}")
        bags.append(bag if size is None else Resized(bag, size))
        labels.append(label)
    return BagSet(tuple(bags), np.array(labels, np.int64))


def pictures(folder: str | Path, size: tuple[int, int]) -> tuple[Bag, np.ndarray, tuple[str, ...]]:
    """Pictures of a folder with one folder for each class, as Imagenette has them.

    Args:
        folder: `folder/CLASS/*.jpg` and other pictures.
        size: `(rows, columns)` that each becomes.

    Returns:
        The pool `[m, rows, columns, C]`, classes `[m]`, and names of the classes, in alphabetical order.

    Raises:
        SourceError: there are not two classes with pictures.
    """
    root = Path(folder)
    inside = sorted(p for p in root.iterdir() if p.is_dir()) if root.is_dir() else []
    found = {p.name: _pictures(p) for p in inside}
    found = {name: paths for name, paths in found.items() if paths}
    if len(found) < 2:
        raise SourceError(
            f"{folder}: has {len(found)} folders with pictures; expected one for each class, 2 or more."
        )
    classes = np.repeat(np.arange(len(found)), [len(paths) for paths in found.values()])
    paths = [path for group in found.values() for path in group]
    return PictureBag(paths, str(folder), size), classes, tuple(found)


def shapes(count: int, size: int = 32, seed: int = 0) -> tuple[Bag, np.ndarray]:
    """Drawn tiles in the colours of a stained section, each with one of `SHAPES` at a random place.

    Args:
        count: how many.
        size: rows and columns of a tile.
        seed: same seed, same tiles.

    Returns:
        The pool `[count, size, size, 3]` of uint8, and the classes, positions in `SHAPES`.
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

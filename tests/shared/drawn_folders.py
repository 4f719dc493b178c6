"""Folders of drawn bags and images that small runs train on, written once, into a folder that ends with the process."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from argparse import Namespace
from functools import cache
from pathlib import Path
from typing import Any

from tfbig.mil import generate
from tfbig.recipes import folders, write_qmnist_bags, write_ultramnist
from tfbig.recipes.digits import drawn_digits
from tfbig.recipes.ultramnist import ultramnist

TILES, DIGITS = 500, 100
"""Number of tiles, and of digits, of which a split is made; few, because drawing them takes time."""

_tiles, _digits = cache(generate.shapes), cache(drawn_digits)


@cache
def _root() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="tfbig-drawn-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def bags(*numbers: int) -> str:
    """Return a folder with numbers of bags for training, validation and testing: eight drawn shapes, or a ring too."""
    folder = _root() / f"bags-{numbers}"
    ring = generate.SHAPES.index("ring")
    given = Namespace(bags=numbers, instances=8, share=0.2, key=ring, tile=24, seed=0)
    pools: list[Any] = [_tiles(TILES, 24, place) for place in range(3)]
    folders.write_bags(folder, write_qmnist_bags.composed(given, pools), write_qmnist_bags.CLASSES)
    return str(folder)


@cache
def images(*numbers: int) -> str:
    """Return a folder with numbers of images for training, validation and testing: drawn digits on 64 x 64 pixels."""
    folder = _root() / f"images-{numbers}"
    sets = {
        split: ultramnist(*_digits(DIGITS, place), max(number // 10, 1), 64, (1, 1), seed=place)
        for place, (split, number) in enumerate(zip(folders.SPLITS, numbers, strict=True))
    }
    folders.write_images(folder, sets, write_ultramnist.CLASSES)
    return str(folder)

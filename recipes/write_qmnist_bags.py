"""Write bags of handwritten digits, for the recipes `abmil-acc-qmnist-*`, `abmil-original` and `qmnist-bags-small`.

    python -m tfbig.recipes.write_qmnist_bags data/qmnist --data QMNIST
    tfbig train --config recipes/abmil-acc-qmnist-as-published.yaml --data data/qmnist --out runs/qmnist

The bags are those of Andersson et al. (2022), section 4: a bag is positive if it holds digits of the key class, and a
third of the test digits validates. `--data` has the IDX files of QMNIST, or those of MNIST. Other papers:

    as coded     --bags 300 30 60 --instances 50
    small        --bags 300 60 120 --instances 100 --tile 28
    Ilse (2018)  --bags 200 50 50 --instances 10 --share 0.1 --tile 28
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tfbig.mil import BagSet, generate
from tfbig.recipes import folders
from tfbig.recipes.digits import read_digits
from tfbig.sources import Bag, Subset

CLASSES = ("negative", "positive")

Pool = tuple[Bag, npt.NDArray[np.int64]]
"""Instances and their classes."""


def add_bag_flags(
    parser: ArgumentParser,
    bags: Sequence[int],
    instances: int,
    share: float,
    key: int,
    tile: int | None,
) -> None:
    """Add the flags of composed bags, with their defaults."""
    folders.add_numbers(parser, "--bags", bags, "bags")
    parser.add_argument(
        "--instances",
        type=int,
        default=instances,
        help=f"instances of a bag (default: {instances})",
    )
    parser.add_argument(
        "--share",
        type=float,
        default=share,
        help=f"share of instances of the key class in a positive bag (default: {share:g})",
    )
    parser.add_argument(
        "--key", type=int, default=key, help=f"the key class, from 0 (default: {key})"
    )
    parser.add_argument(
        "--tile", type=int, default=tile, help=f"rows and columns of an instance (default: {tile})"
    )


def composed(given: Namespace, pools: Sequence[Pool]) -> dict[str, BagSet]:
    """Compose the bags of each split from its own instances.

    Args:
        given: Values of the flags.
        pools: Instances and their classes, for training, validation and testing.
    """
    return {
        split: generate.compose(
            *pool,
            given.key,
            number,
            given.instances,
            given.share,
            size=(given.tile, given.tile),
            seed=given.seed * 10 + place,
            name=split,
        )
        for place, (split, pool, number) in enumerate(
            zip(folders.SPLITS, pools, given.bags, strict=True)
        )
    }


def digits(folder: Path, seed: int) -> list[Pool]:
    """Divide the digits for training, validation and testing."""
    train = read_digits(folder, "train")
    instances, classes = read_digits(folder, "test")
    order = np.random.default_rng(seed).permutation(len(classes))
    third = len(order) // 3
    parts = (order[:third], order[third:])
    return [train, *((Subset(instances, part), classes[part]) for part in parts)]


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line, and write the folder."""
    parser = folders.parser(__doc__, "the bags")
    parser.add_argument("--data", type=Path, required=True, help="folder of the IDX files")
    add_bag_flags(parser, (100, 30, 60), 500, 0.05, 9, 84)
    given = parser.parse_args(argv)
    sets = composed(given, digits(given.data, given.seed))
    folders.write_bags(given.out, sets, CLASSES)


if __name__ == "__main__":
    folders.run(main)

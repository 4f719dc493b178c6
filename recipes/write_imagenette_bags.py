"""Write bags of pictures of Imagenette, for the recipe `abmil-acc-imagenette-as-published`.

    python -m tfbig.recipes.write_imagenette_bags data/imagenette --data imagenette2-320
    tfbig train --config recipes/abmil-acc-imagenette-as-published.yaml --data data/imagenette --out runs/imagenette

The bags are those of Andersson et al. (2022), section 4: a bag is positive if it holds golf balls, n03445777, which is
class 8 in alphabetical order. A fifth of `train/CLASS` validates, and `val/CLASS` is for testing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tfbig.errors import SourceError
from tfbig.mil import generate
from tfbig.recipes import folders
from tfbig.recipes.write_qmnist_bags import CLASSES, Pool, add_bag_flags, composed
from tfbig.sources import Subset


def pictures(folder: Path, tile: int, key: int, seed: int) -> list[Pool]:
    """Divide the pictures for training, validation and testing.

    Raises:
        SourceError: The two folders have different classes, or there is no such key class.
    """
    size = (tile, tile)
    instances, classes, names = generate.pictures(folder / "train", size)
    test, test_classes, test_names = generate.pictures(folder / "val", size)
    if names != test_names:
        raise SourceError(
            f"{folder}: train has classes {names}, val has {test_names}; expected the same in both."
        )
    if not 0 <= key < len(names):
        raise SourceError(f"{folder}: has classes 0 to {len(names) - 1}; --key is {key}.")
    order = np.random.default_rng(seed).permutation(len(classes))
    fifth = len(order) // 5
    train, val = ((Subset(instances, p), classes[p]) for p in (order[fifth:], order[:fifth]))
    return [train, val, (test, test_classes)]


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line, and write the folder."""
    parser = folders.parser(__doc__, "the bags")
    parser.add_argument("--data", type=Path, required=True, help="folder of train/CLASS, val/CLASS")
    add_bag_flags(parser, (300, 60, 60), 150, 0.3, 8, 112)
    given = parser.parse_args(argv)
    pools = pictures(given.data, given.tile, given.key, given.seed)
    folders.write_bags(given.out, composed(given, pools), CLASSES)


if __name__ == "__main__":
    folders.run(main)

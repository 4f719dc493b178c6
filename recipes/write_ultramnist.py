"""Write images of digits of all sizes, UltraMNIST, for the recipes `patchgd-ultramnist-*`.

    python -m tfbig.recipes.write_ultramnist data/ultramnist --data MNIST
    tfbig train --config recipes/patchgd-ultramnist-as-published.yaml --data data/ultramnist --out runs/ultramnist

The images are those of PatchGD (Gupta et al.), appendix C.2, made of the digits of MNIST or QMNIST: the label is the
sum of the digits. A third of the test digits is for images that validate. Without `--data`, digits are drawn, by fonts;
with `--images 5000 200 500 --canvas 256 --factors 1 1`, two cores learn them in minutes.

Sums alone are hard to learn. A warm start trains the network on single digits first (appendix D, low-memory runs), and
`--encoder-weights runs/single` continues from there:

    python -m tfbig.recipes.write_ultramnist data/single --data MNIST --single
    tfbig train --config recipes/patchgd-ultramnist-warm-start.yaml --data data/single --out runs/single
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tfbig.recipes import folders
from tfbig.recipes.digits import drawn_digits, read_digits
from tfbig.recipes.ultramnist import COUNTS, DigitCanvas, ultramnist
from tfbig.sources import Bag, Subset
from tfbig.units import ceil_div

CLASSES = tuple(map(str, range(10)))
MOST_DRAWN = 4000
"""Most drawn digits of a split; handwritten ones are used all."""

SINGLE = (20000, 1000, 1000)
"""Number of images of single digits."""

Pool = tuple[Bag, npt.NDArray[np.int64]]
"""Digits and their classes."""
Images = tuple[tuple[DigitCanvas, ...], npt.NDArray[np.int64]]
"""Images and their labels."""


def drawn(numbers: Sequence[int], seed: int) -> list[Pool]:
    """Draw digits for images of training, validation and testing."""
    counts = [min(20 * number, MOST_DRAWN) for number in numbers]
    return [drawn_digits(count, seed * 10 + part) for part, count in enumerate(counts)]


def handwritten(folder: Path) -> list[Pool]:
    """Divide the digits of IDX files for images of training, validation and testing."""
    pool, classes = read_digits(folder, "test")
    third, places = len(classes) // 3, np.arange(len(classes))
    val, test = (
        (Subset(pool, places[part]), classes[part]) for part in (np.s_[:third], np.s_[third:])
    )
    return [read_digits(folder, "train"), val, test]


def images(given: Namespace) -> dict[str, Images]:
    """Compose the images of each split.

    Args:
        given: Values of the flags.

    Raises:
        ValueError: The digits do not fit.
    """
    pools = handwritten(given.data) if given.data else drawn(given.images, given.seed)
    return {
        split: ultramnist(
            *pool,
            max(number // 10, 1),
            given.canvas,
            tuple(given.factors),
            given.digits,
            given.seed * 10 + part,
            split,
        )
        for part, (split, pool, number) in enumerate(
            zip(folders.SPLITS, pools, given.images, strict=True)
        )
    }


def single(given: Namespace) -> Namespace:
    """Change the flags to images of one digit each, with 1.5 times the rows of the largest digit or a little more."""
    side = ceil_div(42 * given.factors[1], 32) * 32
    changes = {"canvas": side, "digits": (1,), "images": SINGLE}
    return Namespace(**vars(given) | changes)


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line, and write the folder."""
    parser = folders.parser(__doc__, "the images")
    parser.add_argument("--data", type=Path, help="folder of the IDX files (default: drawn digits)")
    folders.add_numbers(parser, "--images", (10000, 1000, 1000), "images, tens of them")
    parser.add_argument(
        "--canvas", type=int, default=512, help="rows and columns of an image (default: 512)"
    )
    parser.add_argument(
        "--factors",
        nargs=2,
        type=int,
        default=(1, 9),
        metavar=("LOW", "HIGH"),
        help="smallest and largest size of a digit, in units of 28 pixels (default: 1 9)",
    )
    parser.add_argument(
        "--digits",
        nargs="+",
        type=int,
        default=COUNTS,
        metavar="N",
        help="numbers of digits in an image (default: 3 4 5)",
    )
    parser.add_argument(
        "--single", action="store_true", help="write 22,000 images of single digits instead"
    )
    given = parser.parse_args(argv)
    sets = images(single(given) if given.single else given)
    folders.write_images(given.out, sets, CLASSES)


if __name__ == "__main__":
    folders.run(main)

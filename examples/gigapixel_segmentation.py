"""Segment the tissue of a slide of any size, from labels to a trained network and an overlay.

    python examples/gigapixel_segmentation.py [SLIDE] [--crop 1024x1024] [--steps 400] [--out overlay.png]

The slide is never held in memory: its crops, its tissue labels and its prediction are read and written strip by strip.
For a slide of 16000x64000 use `--crop 16000x64000`. The script ends by printing the Dice score on the third of the
slide that it was not trained on.
"""

"""## Setup"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import keras
import numpy as np
import tensorflow as tf

import tfbig
from tfbig import sources
from tfbig.models.gigapixel_unet import STRIDE, gigapixel_unet
from tfbig.results import figures
from tfbig.tissue.masks import tissue_mask

SLIDE = ROOT / "examples/data/esophagus_eosinophilic.tif"
Place = tuple[tuple[int, int], tuple[int, int]]
"""Rows and columns of a crop, both `(start, stop)`."""

"""
## Prepare the data

A dataset carries handles, short strings. The rows of a crop are read when a step needs them.
"""


def crops(shape: Sequence[int], size: tuple[int, int], count: int, seed: int = 0) -> list[Place]:
    """Return the places of random crops in the left two thirds: `count` pairs of row and column intervals."""
    random = np.random.default_rng(seed)
    top = random.integers(0, shape[0] - size[0] + 1, count)
    left = random.integers(0, shape[1] * 2 // 3 - size[1] + 1, count)
    return [
        ((t, t + size[0]), (c, c + size[1]))
        for t, c in zip(top.tolist(), left.tolist(), strict=True)
    ]


def handles(
    image: sources.Source, labels: sources.Source, places: Sequence[Place]
) -> tuple[tf.data.Dataset, list[tuple[sources.Source, sources.Source]]]:
    """Return a dataset of handles, one crop per step, and the sources that must live as long as it."""
    parts = [(image.crop(*place), labels.crop(*place)) for place in places]
    names = [[source.handle] for pair in parts for source in pair]
    data = tf.data.Dataset.from_tensor_slices((names[::2], names[1::2]))
    return data, parts


"""## Evaluate the prediction"""


def dice(prediction: sources.Source, labels: sources.Source) -> float:
    """Return the Dice score of a prediction against labels, both sources, computed by bands of rows."""
    both = total = 0
    for start in range(0, labels.shape[0], 256):
        rows = start, min(start + 256, labels.shape[0])
        p, y = prediction.read(*rows) > 0.5, labels.read(*rows) > 0
        both, total = both + int((p & y).sum()), total + int(p.sum()) + int(y.sum())
    return 2 * both / max(total, 1)


"""## Train, predict and draw"""


def main(
    slide: str | Path = SLIDE,
    size: tuple[int, int] = (1024, 1024),
    steps: int = 400,
    out: str | Path = "overlay.png",
) -> float:
    """Label, train, predict and draw the overlay; return the Dice score of the unseen third."""
    keras.utils.set_random_seed(0)
    source = tfbig.open(slide)
    image, labels = sources.Grayscale(source, invert=True), tissue_mask(source)
    big = tfbig.stream(gigapixel_unet(), tfbig.Budget(device="256MB"))
    big.plan((1, *size, 1)).summary()
    big.compile(keras.optimizers.Adam(1e-2), "binary_crossentropy")
    data, sources_of_crops = handles(image, labels, crops(image.shape, size, steps))
    big.fit(data, shuffle=False, verbose=2)
    rows = image.shape[0] // STRIDE * STRIDE
    first = image.shape[1] * 2 // 3
    columns = first, first + (image.shape[1] - first) // STRIDE * STRIDE
    unseen, truth = (s.crop((0, rows), columns) for s in (image, labels))
    with tempfile.TemporaryDirectory() as folder:
        prediction = big.predict_to(unseen, str(Path(folder) / "tissue.npy"))
        score = dice(prediction, truth)
        figures.overlay(out, unseen, truth, prediction, f"unseen third, Dice {score:.3f}")
    print(f"trained on {len(sources_of_crops)} crops; overlay written to {out}")
    print(f"Dice on the unseen third {score:.3f}")
    return score


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "slide", nargs="?", default=SLIDE, help="a slide, RGB or gray, bright background"
    )
    parser.add_argument("--crop", default="1024x1024", help="rows x columns, multiples of 128")
    parser.add_argument("--steps", type=int, default=400, help="crops to train on")
    parser.add_argument("--out", default="overlay.png", help="picture to write")
    arguments = parser.parse_args()
    crop_rows, crop_columns = (int(n) for n in arguments.crop.split("x"))
    main(arguments.slide, (crop_rows, crop_columns), arguments.steps, arguments.out)

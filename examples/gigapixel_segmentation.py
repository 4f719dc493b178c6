"""Segment the tissue of gigapixel images, from labels to a trained network and an overlay, within 2 GB.

    python examples/gigapixel_segmentation.py [SLIDE] [--crop 16000x64000] [--steps 4] [--out runs/gigapixel]

Without a SLIDE, the slides in `examples/data` are first joined to a mosaic of 16000 x 80000 pixels, a tiled TIFF of 108
MB. The network (Remedios et al. 2023) is first trained on small crops for minutes, and then on crops of a gigapixel,
each one training step. No image is ever held in memory: crops, labels and the prediction are read and written strip by
strip. The script prints the plan of a step, the memory that was used, and the Dice score on the part of the image that
the network was not trained on; the overlay shows this part.
"""

"""## Setup"""

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import keras
import numpy as np
import tensorflow as tf
import tifffile

import tfbig
from tfbig import sources
from tfbig.choices import UNET_STRIDE
from tfbig.models.gigapixel_unet import gigapixel_unet
from tfbig.results import figures
from tfbig.sources.writing import atomic_write
from tfbig.system import output_folder
from tfbig.tissue.masks import tissue_mask

SLIDES = sorted((ROOT / "examples" / "data").glob("*.tif"))
SMALL = (1024, 1024)
"""Rows and columns of the small crops."""
RATE = 1e-2
"""Learning rate of the first small crop; it decreases to a tenth, which large crops keep."""

TILE, BAND, WHITE = 512, 4096, 242
"""Side of a tile of the mosaic, rows that its slides are cut to, and the grey value between them."""

TRAINED = 0.8
"""Share of the columns that crops are taken from."""

Place = tuple[tuple[int, int], tuple[int, int]]
"""Rows and columns of a crop, both `(start, stop)`."""

"""
## Join slides to a mosaic

Slides of random order, mirrored at random, fill bands of rows from left to right.
"""


def mosaic_tiles(rows: int, columns: int, seed: int = 0) -> Iterator[np.ndarray]:
    """Yield the tiles `[512, 512, 3]` of a mosaic, row by row; a row of tiles is in memory at a time."""
    random = np.random.default_rng(seed)
    slides = [tfbig.open(path) for path in SLIDES]
    for top in range(0, rows, BAND):
        band: list[tuple[sources.Source, bool]] = []
        while sum(slide.shape[1] for slide, _ in band) < columns:
            band.append((slides[random.integers(len(slides))], bool(random.integers(2))))
        for first in range(0, min(BAND, rows - top), TILE):
            parts = [rows_of(slide, first, is_mirrored) for slide, is_mirrored in band]
            row = np.pad(
                np.concatenate(parts, axis=1)[:, :columns],
                [(0, 0), (0, -columns % TILE), (0, 0)],
                constant_values=WHITE,
            )
            yield from (tile.copy() for tile in np.split(row, row.shape[1] // TILE, axis=1))


def rows_of(slide: sources.Source, first: int, is_mirrored: bool) -> np.ndarray:
    """Return 512 rows of a slide, bright below its end."""
    start, stop = (min(n, slide.shape[0]) for n in (first, first + TILE))
    rows = slide.read(start, stop) if start < stop else np.empty((0, *slide.shape[1:]), np.uint8)
    rows = rows[:, ::-1] if is_mirrored else rows
    return np.pad(rows, [(0, TILE - len(rows)), (0, 0), (0, 0)], constant_values=WHITE)


def write_mosaic(path: Path, rows: int, columns: int) -> None:
    """Write the mosaic as a tiled TIFF with JPEG compression, 2.02 micrometres per pixel."""
    with atomic_write(path) as part:
        tifffile.imwrite(
            part,
            mosaic_tiles(rows, columns),
            shape=(rows, columns, 3),
            dtype=np.uint8,
            bigtiff=True,
            tile=(TILE, TILE),
            photometric="rgb",
            compression="jpeg",
            compressionargs={"level": 85},
            buffersize=2**24,
            resolution=(1e4 / 2.02, 1e4 / 2.02),
            resolutionunit="CENTIMETER",
        )


"""
## Prepare the data

A dataset carries handles, short strings. The rows of a crop are read when a step needs them.
"""


def crops(shape: Sequence[int], size: tuple[int, int], count: int, seed: int = 0) -> list[Place]:
    """Return the places of random crops in the part for training: `count` pairs of row and column intervals."""
    random = np.random.default_rng(seed)
    top = random.integers(0, shape[0] - size[0] + 1, count)
    left = random.integers(0, int(shape[1] * TRAINED) - size[1] + 1, count)
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


def train(
    big: tfbig.StreamedModel,
    image: sources.Source,
    labels: sources.Source,
    size: tuple[int, int],
    steps: int,
    rate: float | keras.optimizers.schedules.LearningRateSchedule,
    seed: int,
) -> None:
    """Train on random crops, one in a step, and print what they took."""
    big.compile(keras.optimizers.Adam(rate), "binary_crossentropy")
    data, _parts = handles(image, labels, crops(image.shape, size, steps, seed))
    big.plan((1, *size, 1)).summary()
    start = time.perf_counter()
    loss = big.fit(data, shuffle=False, verbose=0).history["loss"][0]
    seconds = (time.perf_counter() - start) / steps
    print(
        f"{steps} steps on crops of {size[0]} x {size[1]}: loss {loss:.4f}, {seconds:.2f} s a step"
    )


def main(
    slide: str | Path | None = None,
    size: tuple[int, int] = (16000, 64000),
    steps: int = 4,
    out: str | Path = "runs/gigapixel",
    small_steps: int = 1000,
    mosaic: tuple[int, int] = (16000, 80000),
    seed: int = 0,
) -> float:
    """Label, train, predict and draw the overlay; return the Dice score of the unseen part.

    Args:
        slide: The image; by default a mosaic in the folder `out`, written if it is not there.
        size: Most rows and columns of the large crops; those of a smaller slide are smaller.
        steps: Number of large crops.
        out: Folder of the mosaic and the overlay.
        small_steps: Number of small crops, at most 1024 x 1024.
        mosaic: Rows and columns of the mosaic.
        seed: Seed of the weights and of the places of the crops.
    """
    keras.utils.set_random_seed(seed)
    out = output_folder.claim(out, [] if slide is None else [slide])
    if slide is None:
        slide = out / f"mosaic_{mosaic[0]}x{mosaic[1]}.tif"
        if not slide.exists():
            print(f"joining {len(SLIDES)} slides to {slide}")
            write_mosaic(slide, *mosaic)
    source = tfbig.open(slide)
    image, labels = sources.Grayscale(source, invert=True), tissue_mask(source)
    big = tfbig.stream(gigapixel_unet(), tfbig.Budget(device="256MB", host="800MB"))
    most = image.shape[0], int(image.shape[1] * TRAINED)
    decreasing = keras.optimizers.schedules.CosineDecay(RATE, small_steps, alpha=0.1)
    for largest, count, rate in ((SMALL, small_steps, decreasing), (size, steps, RATE / 10)):
        rows, columns = (
            min(*n) // UNET_STRIDE * UNET_STRIDE for n in zip(largest, size, most, strict=True)
        )
        train(big, image, labels, (rows, columns), count, rate, seed)
    rows = image.shape[0] // UNET_STRIDE * UNET_STRIDE
    first = int(image.shape[1] * TRAINED)
    stop = first + (image.shape[1] - first) // UNET_STRIDE * UNET_STRIDE
    unseen, truth = (s.crop((0, rows), (first, stop)) for s in (image, labels))
    with tempfile.TemporaryDirectory() as folder:
        prediction = big.predict_to(unseen, str(Path(folder) / "tissue.npy"))
        score = dice(prediction, truth)
        figures.overlay(
            out / "overlay.png", unseen, truth, prediction, f"unseen part, Dice {score:.3f}"
        )
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
    print(f"largest memory of the process, Python and TensorFlow included: {peak:.2f} GB")
    print(f"overlay of the unseen part, {rows} x {stop - first}: {out / 'overlay.png'}")
    print(f"Dice on the unseen part {score:.3f}")
    return score


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "slide", nargs="?", help="a slide, RGB or gray, bright background; by default a mosaic"
    )
    parser.add_argument("--crop", default="16000x64000", help="rows x columns, multiples of 128")
    parser.add_argument("--steps", type=int, default=4, help="crops to train on")
    parser.add_argument("--out", default="runs/gigapixel", help="folder of mosaic and overlay")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights and the crops")
    arguments = parser.parse_args()
    crop_rows, crop_columns = (int(n) for n in arguments.crop.split("x"))
    crop_size = crop_rows, crop_columns
    main(arguments.slide, crop_size, arguments.steps, arguments.out, seed=arguments.seed)

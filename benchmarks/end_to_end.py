"""Compare frozen features with end-to-end training, on the same images, for the same processor time.

    python benchmarks/end_to_end.py [--data FOLDER] [--plot end_to_end.png]

Four ways to learn one label per image:

- frozen: an encoder trained without labels (SimCLR on tiles, for as long again, which is not counted) gives the
  features of all tiles once; attention pools them.
- sampling: encoder and attention learn together from a quarter of the tiles of each image, drawn anew in each step.
- tiles: the same from all tiles, by `tfbig.mil.MIL`.
- whole: the same encoder runs over the whole image, by `tfbig.stream`, and attention pools its pixels.

Three tasks, of images of 8 x 8 tiles:

- digits: each tile is a digit; is there a 9? With `--data`, digits of MNIST, without it, digits in eight fonts.
- local: tissue with marks drawn on it; is there a ring among the discs? A tile shows a ring.
- context: nuclei lie around three glands; do they follow the circle, or point anywhere? A tile shows one nucleus.

Prints one JSON line per task, with the AUC on 200 test images after every eighth of the time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parent)

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from sklearn.metrics import roc_auc_score

import tfbig
from benchmarks import report
from tfbig.recipes.digits import drawn_digits, read_digits

GRID, BATCH, LOOKS = 8, 4, 8
WAYS = ("frozen", "sampling", "tiles", "whole")
TASKS = ("digits", "local", "context")
CASE = "end to end: "
SLIDES = ("esophagus_eosinophilic", "gastritis_lymphocytic", "pancreas_pdac_1")


@dataclass(frozen=True)
class Images:
    """Images uint8 `[m, 8 t, 8 t, C]` and their labels, float32 `[m, 1]`."""

    pixels: np.ndarray
    labels: np.ndarray

    @property
    def tiles(self) -> np.ndarray:
        """The tiles of every image, `[m, 64, t, t, C]`."""
        count, side, _, channels = self.pixels.shape
        tile = side // GRID
        cut = self.pixels.reshape(count, GRID, tile, GRID, tile, channels)
        return cut.swapaxes(2, 3).reshape(count, GRID * GRID, tile, tile, channels)


# ---------------------------------------------------------------------------------------- images


def digit_images(count: int, digits: tuple[np.ndarray, np.ndarray], seed: int) -> Images:
    """Return mosaics of digits; those with label 1 have one or two nines."""
    rng = np.random.default_rng(seed)
    pixels, classes = digits
    nines, others = np.flatnonzero(classes == 9), np.flatnonzero(classes != 9)
    labels = np.arange(count) % 2
    mosaics = []
    for label in labels:
        chosen = rng.choice(others, GRID * GRID)
        if label:
            chosen[: rng.integers(1, 3)] = rng.choice(nines)
        rows = pixels[rng.permutation(chosen)].reshape(GRID, GRID, 28, 28, 1)
        mosaics.append(rows.swapaxes(1, 2).reshape(GRID * 28, GRID * 28, 1))
    return Images(np.stack(mosaics), labels[:, None].astype("float32"))


def tissue(half: int) -> list[np.ndarray]:
    """Return the left or right half of the tissue of the example slides, every second pixel."""
    halves = []
    for name in SLIDES:
        slide = tfbig.open(HERE.parent / "examples" / "data" / f"{name}.tif")
        pixels = slide.read(0, slide.shape[0])[::2, ::2]
        halves.append(np.array_split(pixels, 2, axis=1)[half])
    return halves


def slide_images(count: int, task: str, half: int, seed: int, tile: int = 16) -> Images:
    """Return pieces of tissue from one half of the slides with marks drawn on them.

    The halves of the slides keep the tissue of training and test apart.
    """
    rng = np.random.default_rng(seed)
    side = GRID * tile
    halves = tissue(half)
    labels = np.arange(count) % 2
    images = [marked(piece(halves, side, rng), task, bool(label), tile, rng) for label in labels]
    return Images(np.stack(images), labels[:, None].astype("float32"))


def piece(halves: list[np.ndarray], side: int, rng: np.random.Generator) -> np.ndarray:
    """Return a piece of a slide, at least a third of it tissue, turned at random."""
    while True:
        slide = halves[rng.integers(len(halves))]
        row, column = (rng.integers(n - side + 1) for n in slide.shape[:2])
        part = slide[row : row + side, column : column + side]
        if (part.min(axis=2) < 220).mean() > 1 / 3:
            return np.rot90(part, rng.integers(4)).copy()


def marked(
    image: np.ndarray, task: str, label: bool, tile: int, rng: np.random.Generator
) -> np.ndarray:
    """Return the image with the marks of its label: discs and a ring, or rings of nuclei."""
    if task == "context":
        shapes = [shape for _ in range(3) for shape in gland(label, len(image), tile, rng)]
    else:
        kinds = ["ring" if label else "disc", *["disc"] * 9]
        shapes = [(kind, place(len(image), tile, rng), 0.0) for kind in kinds][::-1]
    for kind, centre, angle in shapes:
        pixels = mark(kind, centre, angle, len(image), tile)
        image[pixels] = rng.integers((40, 20, 90), (90, 60, 140))
    return image


def gland(
    label: bool, side: int, tile: int, rng: np.random.Generator
) -> list[tuple[str, np.ndarray, float]]:
    """Return eight nuclei on a circle of three tiles: along it for label 1, turned at random for label 0.

    Neighbours are 1.15 tiles apart, and the angles of each nucleus alone have the same distribution for both labels.
    """
    centre = place(side, 3.5 * tile, rng)
    around = rng.uniform(0, 2 * np.pi) + np.arange(8) * np.pi / 4
    angles = around if label else rng.uniform(0, 2 * np.pi, 8)
    places = centre + 1.5 * tile * np.stack([np.sin(around), np.cos(around)], axis=1)
    return [("nucleus", *nucleus) for nucleus in zip(places, angles, strict=True)]


def place(side: int, extent: float, rng: np.random.Generator) -> np.ndarray:
    """Return the centre `(y, x)` of something of the given extent inside the image."""
    return rng.uniform(extent / 2, side - extent / 2, 2)


def mark(kind: str, centre: np.ndarray, angle: float, side: int, tile: int) -> np.ndarray:
    """Return the pixels of a mark, bool `[side, side]`; a disc is three eighths of a tile wide."""
    y, x = np.mgrid[:side, :side] - centre[:, None, None]
    if kind == "nucleus":
        along, across = y * np.cos(angle) - x * np.sin(angle), y * np.sin(angle) + x * np.cos(angle)
        return np.hypot(along / 0.35, across / 0.12) < tile
    distance = np.hypot(y, x) / tile
    return (distance < 0.19) if kind == "disc" else (distance < 0.25) & (distance > 0.13)


def load(task: str, data: str | None, seed: int, count: int, tests: int) -> tuple[Images, Images]:
    """Return the images to train on and to test with."""
    if task != "digits":
        return (
            slide_images(count, task, 0, seed),
            slide_images(tests, task, 1, seed + 1000),
        )
    if data:
        parts = [read_digits(data, part) for part in ("train", "test")]
    else:
        parts = [drawn_digits(n, n) for n in (20000, 5000)]
    arrays = [(bag.take(np.arange(len(classes))), classes) for bag, classes in parts]
    return digit_images(count, arrays[0], seed), digit_images(tests, arrays[1], seed + 1000)


# -------------------------------------------------------------------------------------- networks


def trunk(channels: int) -> keras.Model:
    """Return four stages of two convolutions, each with BatchNormalization; a pixel sees 91 x 91 of the image."""
    x = image = keras.Input((None, None, channels))
    x = layers.Rescaling(1 / 127.5, -1)(x)
    for filters in (16, 32, 64, 96):
        for strides in (2, 1):
            x = layers.Conv2D(filters, 3, strides, "same", use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization()(x))
    return keras.Model(image, x, name="trunk")


def encoder(channels: int) -> keras.Model:
    """Return the trunk with a mean over its pixels: tiles to features `[96]`."""
    network = trunk(channels)
    features = layers.GlobalAveragePooling2D()(network.output)
    return keras.Model(network.input, features, name="encoder")


def whole_network(channels: int) -> keras.Model:
    """Return the trunk with attention over its pixels and a logit."""
    network = trunk(channels)
    pooled = tfbig.layers.AttentionPooling(64)(network.output)
    return keras.Model(network.input, layers.Dense(1)(pooled), name="whole")


def contrastive_loss(z: tf.Tensor, temperature: float = 0.5) -> tf.Tensor:
    """Return NT-Xent of two views `[2 n, d]`, view i beside view i + n (Chen et al. 2020, equation 1)."""
    z = tf.math.l2_normalize(z, axis=1)
    count = tf.shape(z)[0]
    similar = tf.linalg.matmul(z, z, transpose_b=True) / temperature
    similar = tf.linalg.set_diag(similar, tf.fill([count], np.float32(-1e9)))
    partner = (tf.range(count) + count // 2) % count
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(partner, similar))


def view(tiles: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return tiles shifted by up to an eighth of a tile, turned and brightened at random."""
    shift = rng.integers(-(tiles.shape[1] // 8), tiles.shape[1] // 8 + 1, 2)
    turned = np.rot90(np.roll(tiles, shift, axis=(1, 2)), rng.integers(4), axes=(1, 2))
    gain = rng.uniform(0.8, 1.2, (len(tiles), 1, 1, tiles.shape[3]))
    return np.clip(turned * gain, 0, 255).astype("float32")


def pretrained(images: Images, seconds: float, seed: int) -> keras.Model:
    """Return an encoder trained on tiles without labels (SimCLR, Chen et al. 2020)."""
    rng = np.random.default_rng(seed)
    tiles = images.tiles.reshape(-1, *images.tiles.shape[2:])
    network = encoder(tiles.shape[-1])
    head = keras.Sequential([layers.Dense(128, "relu"), layers.Dense(64)])
    model = keras.Sequential([network, head])
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)

    @tf.function(reduce_retracing=True)
    def step(views: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = contrastive_loss(model(views, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    end = time.process_time() + seconds
    while time.process_time() < end:
        chosen = tiles[rng.choice(len(tiles), 128, replace=False)]
        step(tf.constant(np.concatenate([view(chosen, rng), view(chosen, rng)])))
    return network


# -------------------------------------------------------------------------------------- training


@dataclass(frozen=True)
class Way:
    """A model, what it sees of an image in training and in a test, and the processor time spent before it trains."""

    model: keras.Model
    train: np.ndarray
    test: np.ndarray
    sample: Callable[[np.ndarray, np.random.Generator], np.ndarray] = lambda x, rng: x
    spent: float = 0.0


def make(name: str, train: Images, test: Images, seconds: float, seed: int) -> Way:
    """Return one of the four ways."""
    keras.utils.set_random_seed(seed)
    channels = train.pixels.shape[-1]
    if name == "whole":
        return Way(tfbig.stream(whole_network(channels)), train.pixels, test.pixels)
    head = tfbig.mil.ABMIL(classes=1, hidden=64, gated=True)
    if name == "frozen":
        network = pretrained(train, seconds, seed)
        start = time.process_time()
        features = [extracted(network, images) for images in (train, test)]
        bag = keras.Input(features[0].shape[1:])
        return Way(keras.Model(bag, head(bag)), *features, spent=time.process_time() - start)
    shape = train.tiles.shape[2:]
    model = tfbig.mil.MIL(encoder(channels), head, instance_shape=shape)
    sample = quarter if name == "sampling" else Way.sample
    return Way(model, train.tiles, test.tiles, sample)


def extracted(network: keras.Model, images: Images) -> np.ndarray:
    """Return the features `[m, 64, 96]` of all tiles."""
    tiles = images.tiles
    flat = tiles.reshape(-1, *tiles.shape[2:])
    return network.predict(flat, batch_size=512, verbose=0).reshape(*tiles.shape[:2], -1)


def quarter(bags: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a quarter of the tiles of each bag, without repetition."""
    chosen = rng.permuted(np.tile(np.arange(bags.shape[1]), (len(bags), 1)), axis=1)
    return np.take_along_axis(bags, chosen[:, : bags.shape[1] // 4, None, None, None], axis=1)


def order(count: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield batches of the numbers below count, epoch after epoch."""
    while True:
        yield from rng.permutation(count)[: count // BATCH * BATCH].reshape(-1, BATCH)


def fit(way: Way, train: Images, test: Images, seconds: float, seed: int) -> list[dict[str, float]]:
    """Train for the given processor time; return time, steps and AUC on the test images at every eighth of it.

    Tests are not counted as time.
    """
    rng = np.random.default_rng(seed)
    way.model.compile(
        keras.optimizers.Adam(1e-3),
        keras.losses.BinaryCrossentropy(from_logits=True),
        jit_compile=False,
    )
    batches = order(len(train.labels), rng)
    spent, steps, looks = way.spent, 0, []
    while spent < seconds:
        start = time.process_time()
        until = start + seconds * (len(looks) + 1) / LOOKS - spent
        while time.process_time() < until:
            chosen = next(batches)
            x = way.sample(way.train[chosen], rng).astype("float32")
            way.model.train_on_batch(x, train.labels[chosen])
            steps += 1
        spent += time.process_time() - start
        looks.append({"seconds": round(spent, 1), "steps": steps, "auc": auc(way, test)})
    return looks


def auc(way: Way, test: Images) -> float:
    """Return the area under the ROC curve on the test images."""
    batches = range(0, len(test.labels), BATCH)
    scores = [
        way.model.predict_on_batch(way.test[i : i + BATCH].astype("float32")) for i in batches
    ]
    return round(float(roc_auc_score(test.labels[:, 0], np.concatenate(scores)[:, 0])), 4)


# ---------------------------------------------------------------------------------------- report


def figures(runs: list[list[dict[str, float]]]) -> dict[str, Any]:
    """Return the mean and deviation over the seeds of the last AUC of a way, its steps, and the curves."""
    last = [run[-1]["auc"] for run in runs]
    return {
        "auc": round(statistics.mean(last), 4),
        "deviation": round(statistics.stdev(last), 4) if len(last) > 1 else 0.0,
        "steps": round(statistics.mean(run[-1]["steps"] for run in runs)),
        "curves": [[[look["seconds"], look["auc"]] for look in run] for run in runs],
    }


def draw(lines: list[dict[str, Any]], path: Path) -> None:
    """Plot the AUC of each way against processor time: the mean over the seeds, and the range."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * len(lines), 3.6), layout="constrained")
    axes = figure.subplots(1, len(lines), sharey=True, squeeze=False)[0]
    for axis, line in zip(axes, lines, strict=True):
        for way in (way for way in WAYS if way in line):
            curves = line[way]["curves"]
            length = min(map(len, curves))
            seconds, scores = np.moveaxis([curve[:length] for curve in curves], 2, 0)
            axis.plot(seconds.mean(axis=0), scores.mean(axis=0), marker=".", label=way)
            axis.fill_between(
                seconds.mean(axis=0), scores.min(axis=0), scores.max(axis=0), alpha=0.2
            )
        axis.axhline(0.5, color="grey", linewidth=0.8, linestyle=":")
        task = line["case"].removeprefix(CASE)
        axis.set(title=task, xlabel="processor time (s)", ylim=(0.35, 1.02))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel(f"AUC on test images, {lines[0]['seeds']} seeds")
    axes[0].legend(loc="upper left")
    figure.savefig(path, dpi=110)


def learn(task: str, arguments: argparse.Namespace) -> str:
    """Train all ways on a task with every seed; return a JSON line."""
    runs: dict[str, list[list[dict[str, float]]]] = {way: [] for way in WAYS}
    for seed in range(arguments.seeds):
        train, test = load(task, arguments.data, seed, arguments.images, arguments.tests)
        for name in WAYS:
            way = make(name, train, test, arguments.seconds, seed)
            looks = fit(way, train, test, arguments.seconds, seed)
            runs[name].append(looks)
            print(f"{task}, seed {seed}, {name}: {looks[-1]}", file=sys.stderr, flush=True)
            keras.backend.clear_session()
    shape, count = list(train.pixels.shape[1:]), len(train.labels)
    budget = {"seconds": arguments.seconds, "seeds": arguments.seeds, "images": count}
    by_way = {way: figures(runs) for way, runs in runs.items()}
    return report.line(f"{CASE}{task}", shape, **budget, **by_way)


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--seconds", type=float, default=100, help="processor time of a run")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--images", type=int, default=1024, help="images to train on")
    parser.add_argument("--tests", type=int, default=200, help="images to test with")
    parser.add_argument("--data", help="folder with the IDX files of MNIST or QMNIST")
    parser.add_argument("--plot", type=Path, help="write the curves of all tasks to this PNG file")
    return parser.parse_args(words)


def main() -> None:
    arguments = parse_arguments()
    lines = []
    for task in arguments.tasks:
        lines.append(learn(task, arguments))
        print(lines[-1], flush=True)
    if arguments.plot:
        draw([json.loads(line) for line in lines], arguments.plot)


if __name__ == "__main__":
    main()

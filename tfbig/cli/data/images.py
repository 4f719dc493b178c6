"""Images with one label each for `--task patchgd`: UltraMNIST, a folder with its `images.csv`, class folders, HAR."""

from dataclasses import dataclass, replace
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from tfbig import SourceError, sources
from tfbig.cli import settings as command_line
from tfbig.cli.data import cohort, splits
from tfbig.cli.data.splits import SPLITS, Data
from tfbig.data import epochs
from tfbig.data.worker_shards import ALL_BATCHES
from tfbig.datasets.digits import drawn_digits, read_digits
from tfbig.datasets.ultramnist import ultramnist

SIGNALS = [f"{kind}_{axis}" for kind in ("total_acc", "body_acc", "body_gyro") for axis in "xyz"]
ACTIVITIES = ("walking", "upstairs", "downstairs", "sitting", "standing", "laying")


@dataclass(frozen=True)
class ImageSet:
    """Images that could be opened, their classes, and `(name, reason)` of the others."""

    images: tuple[sources.Readable, ...]
    labels: np.ndarray
    failed: tuple[tuple[str, str], ...] = ()


def add_flags(add):
    """Flags that say which images."""
    number = command_line.count
    add(
        "--images",
        choices=["drawn", "digits", "folder", "pictures", "har", "slides"],
        default="drawn",
        help="drawn: UltraMNIST of printed digits; digits: UltraMNIST of the IDX files of --data; "
        "folder: --data/images.csv with columns image, label, and split (train, val, test) or "
        "patient, by which it is split 70:10:20; pictures: --data/train/CLASS and --data/val/CLASS; "
        "har: the folder of UCI HAR; slides: those of --data, a table with columns case_id, slide_id, label "
        "(default: %(default)s)",
    )
    add("--data", metavar="FOLDER", help="where digits, images or signals are")
    add(
        "--num-images",
        nargs=3,
        type=number,
        default=[5000, 200, 500],
        metavar=("TRAIN", "VAL", "TEST"),
        help="images of UltraMNIST, rounded down to tens (default: 5000 200 500)",
    )
    add("--canvas", type=number, default=256, help="side of UltraMNIST's images (default: 256)")
    add(
        "--factors",
        nargs=2,
        type=number,
        default=[1, 1],
        metavar=("LOW", "HIGH"),
        help="size of UltraMNIST's digits in 28 pixels, half of the smallest are 14; 1 9 as published for 512 "
        "(default: 1 1)",
    )
    add(
        "--digits",
        nargs="+",
        type=number,
        default=[3, 4, 5],
        metavar="N",
        help="how many digits an image of UltraMNIST may have (default: 3 4 5)",
    )
    add("--side", type=number, help="images are scaled to so many rows and columns")
    add("--level", type=int, default=0, help="of slides: 0 is full resolution (default: 0)")
    add("--classes", type=number, help="of images.csv (default: the largest label and 1)")
    add(
        "--augment",
        choices=["a3", "slide"],
        help="a3: random crops, flips, RandAugment, mixup and cutmix of Wightman et al. (2021), A3; "
        "images in memory. slide: blur, colours, flips and turns, one set for a whole image, anew in every epoch, "
        "as it is read",
    )
    cohort.add_flags(add)


def load(settings):
    """The data that `--images` names."""
    loaders = dict.fromkeys(POOLS, _ultramnist) | {
        "folder": _folder,
        "pictures": _pictures,
        "har": _har,
        "slides": _slides,
    }
    if settings.augment == "slide" and settings.images == "har":
        raise SourceError("--augment slide changes images; signals are none. Leave it out.")
    return loaders[settings.images](settings)


def print_counts(data):
    """Images, sizes and classes of every split; what was left out goes to standard error."""

    def of(found):
        shapes = sorted({image.shape for image in found.images})
        words = [" x ".join(map(str, shape)) for shape in (shapes[0], shapes[-1])]
        return f"of {words[0]}" if len(shapes) == 1 else f"of {words[0]} to {words[1]}"

    splits.print_counts(data, "images", of)


def image_shape(data, any_size=False):
    """`(*extents, C)` of all images; None where they differ, or everywhere but of the channels."""
    shapes = {i.shape for split in SPLITS for i in getattr(data, split).images}
    first = next(iter(shapes))
    if any_size:
        return (*[None] * (len(first) - 1), first[-1])
    return tuple(n if all(s[a] == n for s in shapes) else None for a, n in enumerate(first))


def steps(found, settings):
    """Batches that hold all images; the last may be smaller."""
    return -(-len(found.labels) // settings.batch_size)


def dataset(found, settings, learns=False, shard=ALL_BATCHES, dense=False, classes=0):
    """Handles of images, or images, and labels: the batches of an epoch, and of the next each time they are asked for.

    Args:
        found: an `ImageSet`.
        settings: of the run.
        learns: whether images are shuffled and augmented, in every epoch otherwise.
        shard: which batches, of which epoch on.
        dense: give tensors instead of handles.
        classes: how many, where labels become shares of classes by mixing.
    """
    mixes = learns and settings.augment == "a3"
    changes = learns and settings.augment == "slide"
    read = replace(shard, first=0) if mixes else shard  # what mixes draws batch after batch

    def item(number, drawn):
        image = found.images[number]
        handle = image.changed_handle(drawn) if changes else image.handle
        return handle, found.labels[number]

    data = epochs.dataset(
        item,
        len(found.images),
        settings.batch_size,
        (tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.int64)),
        seed=settings.seed,
        shuffle=learns,
        sizes=[np.prod(i.shape) for i in found.images] if settings.like_sizes else None,
        shard=read,
    )
    if dense:
        first = found.images[0]
        shape = [n if settings.batch_size > 1 else None for n in first.shape[:-1]]
        data = data.map(lambda h, y: (_read(h, [*shape, first.shape[-1]], first.dtype), y))
    data = data.batch(settings.batch_size)
    if mixes:
        drawn = np.random.default_rng([settings.seed, shard.epoch, 1, shard.own.start])
        data = data.map(_a3(found.images[0].shape, classes, int(drawn.integers(2**31))))
        data = data.skip(shard.first // shard.replicas * len(shard.own))
    return data.prefetch(1) if dense else data


def _read(handle, shape, dtype):
    def read(name):
        image = sources.resolve(name.decode())
        return image.read(0, image.shape[0])

    return tf.ensure_shape(tf.numpy_function(read, [handle], tf.as_dtype(dtype)), shape)


def _a3(shape, classes, seed):
    """Batches changed as in "ResNet strikes back", A3: RandAugment of strength 6, mixup 0.1 or cutmix 1.0."""
    layers = keras.layers
    change = [
        layers.RandomCrop(*shape[:2], seed=seed),
        layers.RandomFlip("horizontal", seed=seed),
        layers.RandAugment((0, 255), num_ops=2, factor=0.6, seed=seed),
    ]
    larger = layers.Resizing(shape[0] * 8 // 7, shape[1] * 8 // 7)
    mixed = [layers.MixUp(0.1, seed=seed), layers.CutMix(1.0, seed=seed)]

    def changed(x, y):
        x = larger(tf.cast(x, tf.float32))
        for layer in change:
            x = layer(x, training=True)
        both = {"images": x, "labels": tf.one_hot(y, classes)}
        either = tf.random.uniform([], seed=seed) < 0.5
        both = tf.cond(either, lambda: mixed[0](both), lambda: mixed[1](both))
        return both["images"], both["labels"]

    return changed


def _printed(settings):
    counts = [min(20 * number, 4000) for number in settings.num_images]
    return [drawn_digits(count, settings.seed * 10 + part) for part, count in enumerate(counts)]


def _handwritten(settings):
    """A third of the test digits validates."""
    pool, classes = read_digits(_needed(settings), "test")
    third = len(classes) // 3
    val, test = (
        (sources.Subset(pool, np.arange(len(classes))[part]), classes[part])
        for part in (np.s_[:third], np.s_[third:])
    )
    return [read_digits(settings.data, "train"), val, test]


POOLS = {"drawn": _printed, "digits": _handwritten}
"""Digits of UltraMNIST: to train, to validate and to test with."""


def _ultramnist(settings):
    try:
        sets = [
            ultramnist(
                *pool,
                max(number // 10, 1),
                settings.canvas,
                tuple(settings.factors),
                settings.digits,
                settings.seed * 10 + part,
                split,
            )
            for part, (split, pool, number) in enumerate(
                zip(SPLITS, POOLS[settings.images](settings), settings.num_images, strict=True)
            )
        ]
    except ValueError as error:
        raise SourceError(f"--canvas, --factors: {error}") from error
    found = [ImageSet(tuple(_prepared(i, settings) for i in images), y) for images, y in sets]
    return Data(*found, classes=tuple(map(str, range(10))))


def single_digits(settings, count):
    """Images of one digit each, sized as in the images: an `ImageSet`.

    They have half as many rows again as the largest digit, up to a multiple of 32.
    """
    low, high = settings.factors
    side = -(-42 * high // 32) * 32
    pool = POOLS[settings.images](settings)[0]
    found, classes = ultramnist(
        *pool, count // 10, side, (low, high), (1,), settings.seed, "single digit"
    )
    if settings.side:
        scaled = (max(round(side * settings.side / settings.canvas), 32),) * 2
        found = tuple(sources.Scaled(image, scaled) for image in found)
    return ImageSet(found, classes)


def _folder(settings):
    """`images.csv`: columns `image` (a path in the folder), `label`, and `split` or `patient`."""
    folder = Path(_needed(settings))
    table = folder / "images.csv"
    rows = splits.read_table(table, ("image", "label"))
    if "split" not in rows[0]:
        rows = splits.split_rows(rows, seed=settings.seed)
    if settings.confine:
        splits.check_inside((folder / row["image"] for row in rows), (folder,))
    num_classes = settings.classes or max(int(row["label"]) for row in rows) + 1
    settings.classes = num_classes  # saved, so that a run judges other images by its own classes
    found = []
    for split in SPLITS:
        chosen = splits.of_split(rows, split, table)
        paths = [folder / row["image"] for row in chosen]
        found.append(_opened(paths, [int(row["label"]) for row in chosen], num_classes, settings))
    return Data(*found, classes=tuple(str(i) for i in range(num_classes)))


def _slides(settings):
    """Whole slides at one resolution; one that cannot be read is left out."""
    known = cohort.read(settings)
    opener = cohort.Opener(settings)

    first = []

    def image(path):
        found = _prepared(opener.image(path), settings)
        first.append(found) if not first else None
        _check_alike(found, first[0], path)
        return found

    def opened(rows):
        images, labels, failed = cohort.opened(rows, image)
        return ImageSet(tuple(images), np.array(labels, np.int64), tuple(failed))

    return cohort.load(settings, known, opened)


def _pictures(settings):
    """`DATA/train/CLASS/*` and `DATA/val/CLASS/*`; a tenth of the former validates, the latter tests."""
    folder = Path(_needed(settings))
    names = sorted(p.name for p in (folder / "train").glob("*") if p.is_dir())
    if len(names) < 2:
        raise SourceError(f"{folder / 'train'}: has {len(names)} folders of classes; expected 2.")
    rows = [
        {"image": path, "label": label, "split": split}
        for split, part in (("train", "train"), ("test", "val"))
        for label, name in enumerate(names)
        for path in sorted((folder / part / name).glob("*"))
    ]
    learned = [row for row in rows if row["split"] == "train"]
    rng = np.random.default_rng(settings.seed)
    for place in rng.permutation(len(learned))[: len(learned) // 10]:
        learned[place]["split"] = "val"
    found = []
    for split in SPLITS:
        chosen = splits.of_split(rows, split, folder)
        paths, labels = [row["image"] for row in chosen], [row["label"] for row in chosen]
        found.append(_opened(paths, labels, len(names), settings))
    return Data(*found, classes=tuple(names))


def _har(settings):
    """The official folder; a tenth of the training windows validates."""
    folder = Path(_needed(settings))
    series, labels = _signals(folder, "train")
    order = np.random.default_rng(settings.seed).permutation(len(labels))
    tenth = len(order) // 10
    found = [(series[part], labels[part]) for part in (order[tenth:], order[:tenth])]
    sets = [_series(*pair) for pair in (*found, _signals(folder, "test"))]
    return Data(*sets, classes=ACTIVITIES)


def _signals(folder, part):
    files = [folder / part / "Inertial Signals" / f"{name}_{part}.txt" for name in SIGNALS]
    files.append(folder / part / f"y_{part}.txt")
    for file in files:
        if not file.exists():
            raise SourceError(f"{file}: there is no such file of UCI HAR. Check --data.")
    try:
        *signals, labels = (np.loadtxt(file, dtype=np.float32) for file in files)
        return np.stack(signals, -1), labels.astype(np.int64) - 1
    except ValueError as error:
        raise SourceError(f"{folder / part}: is not as UCI HAR has it ({error}).") from error


def _series(series, labels):
    return ImageSet(tuple(sources.ArrayBag(one) for one in series), labels)


def _opened(paths, labels, num_classes, settings):
    """The images that can be used; the first says what channels and samples they have."""
    images, known, failed = [], [], []
    for path, label in zip(paths, labels, strict=True):
        try:
            image = _prepared(sources.OnDisk(path, settings.level), settings)
            _check_alike(image, images[0] if images else image, path)
            if label >= num_classes:
                raise SourceError(f"{path}: label {label} is none of {num_classes} classes.")
        except SourceError as error:
            failed.append((str(path), str(error)))
            continue
        images.append(image)
        known.append(label)
    if not images:
        raise SourceError(f"none of {len(paths)} images can be used. The first: {failed[0][1]}")
    return ImageSet(tuple(images), np.array(known, np.int64), tuple(failed))


def _check_alike(image, first, path):
    if (image.shape[-1], image.dtype) != (first.shape[-1], first.dtype):
        raise SourceError(
            f"{path}: has {image.shape[-1]} channels of {image.dtype}, the others have "
            f"{first.shape[-1]} of {first.dtype}."
        )


def _prepared(image, settings):
    side = (settings.side, settings.side)
    return sources.Scaled(image, side) if settings.side and image.shape[:2] != side else image


def _needed(settings):
    if settings.data is None:
        raise SourceError(f"--images {settings.images} needs --data FOLDER.")
    return settings.data

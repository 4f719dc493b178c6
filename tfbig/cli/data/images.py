"""Images and labels for `--task images`: UltraMNIST, tables, class folders, UCI HAR, slides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfbig import SourceError, sources
from tfbig.cli.data import class_folders, cohort, drawn_splits, splits, target_columns
from tfbig.cli.data.background import Masking
from tfbig.cli.data.splits import SPLITS, Data, Row
from tfbig.cli.settings.tasks import ImageSettings
from tfbig.data import epochs
from tfbig.data.worker_shards import ALL_BATCHES, Shard
from tfbig.datasets.digits import drawn_digits, read_digits
from tfbig.datasets.ultramnist import ultramnist
from tfbig.sources import a3
from tfbig.system import callbacks

SIGNALS = [f"{kind}_{axis}" for kind in ("total_acc", "body_acc", "body_gyro") for axis in "xyz"]
ACTIVITIES = ("walking", "upstairs", "downstairs", "sitting", "standing", "laying")


@dataclass(frozen=True)
class ImageSet:
    """Images of a split.

    Attributes:
        ITEMS: What the items are, in the plural.
        images: Images that can be opened.
        labels: Class of each image, int64 `[n]`, or other labels `[n, ...]`.
        failed: `(name, reason)` of the others.
    """

    ITEMS: ClassVar[str] = "images"

    images: tuple[Any, ...]
    labels: npt.NDArray[Any]
    failed: tuple[tuple[str, str], ...] = ()


def load(settings: ImageSettings) -> Data:
    """Return the data that `--images` names."""
    loaders = dict.fromkeys(POOLS, _ultramnist) | {
        "folder": _folder,
        "pictures": _pictures,
        "har": _har,
        "slides": _slides,
    }
    if settings.augment and settings.images == "har":
        raise SourceError(
            f"--augment {settings.augment} is for images, not for signals. Remove it."
        )
    if settings.stain_jitter and (settings.augment == "a3" or settings.images == "har"):
        raise SourceError(
            "--stain-jitter changes images that are read in parts; it is for neither --augment a3 nor --images har. "
            "Remove it."
        )
    return loaders[settings.images](settings)


def print_counts(data: Data, count: Callable[[ImageSet], str] | None = None) -> None:
    """Print the images, sizes and labels of every split.

    Args:
        data: Data of the run.
        count: Function from a split to a few words about its labels; by default the images of each class.
    """

    def of(part: ImageSet) -> str:
        shapes = sorted({image.shape for image in part.images})
        words = [" x ".join(map(str, shape)) for shape in (shapes[0], shapes[-1])]
        return f"of {words[0]}" if len(shapes) == 1 else f"of {words[0]} to {words[1]}"

    splits.print_counts(data, "images", of, count)


def image_shape(data: Data, any_size: bool = False) -> tuple[int | None, ...]:
    """Return `(*extents, C)` of all images; None where they differ, or with `any_size` for all but C."""
    shapes = {i.shape for split in SPLITS for i in getattr(data, split).images}
    first = next(iter(shapes))
    if any_size:
        return (*[None] * (len(first) - 1), first[-1])
    return tuple(n if all(s[a] == n for s in shapes) else None for a, n in enumerate(first))


def steps(part: ImageSet, settings: ImageSettings) -> int:
    """Return the number of batches of all images; the last may be smaller."""
    return -(-len(part.labels) // settings.batch_size)


def dataset(
    part: ImageSet,
    settings: ImageSettings,
    learns: bool = False,
    shard: Shard = ALL_BATCHES,
    dense: bool = False,
    classes: int = 0,
) -> tf.data.Dataset:
    """Return the batches of an epoch; each iteration returns the next epoch.

    Args:
        part: An `ImageSet`.
        settings: Settings of the run.
        learns: Whether images are shuffled and augmented, differently in every epoch.
        shard: Batches of this worker, and the epoch to start with.
        dense: Whether to return tensors instead of handles.
        classes: Number of classes, if augmentation mixes labels.
    """
    mixes = learns and settings.augment == "a3"
    number, name = tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.string)
    label = tf.TensorSpec(part.labels.shape[1:], part.labels.dtype)
    data = epochs.dataset(
        partial(
            _seeded if mixes else _item,
            part,
            learns and settings.augment == "slide",
            settings.stain_jitter if learns else 0.0,
        ),
        len(part.images),
        settings.batch_size,
        (name, label, number) if mixes else (name, label),
        seed=settings.seed,
        shuffle=learns,
        sizes=[float(np.prod(i.shape)) for i in part.images] if settings.like_sizes else None,
        shard=replace(shard, first=0) if mixes else shard,  # mixing draws numbers batch after batch
    )
    if mixes:
        data = data.map(partial(_augmented, part.images[0].shape))
    elif dense:
        data = data.map(partial(_opened, part.images[0], settings.batch_size > 1))
    data = data.batch(settings.batch_size)
    if mixes:
        drawn = np.random.default_rng([settings.seed, shard.epoch, 1, shard.own.start])
        data = data.map(_mixed(classes, int(drawn.integers(2**31))))
        data = data.skip(shard.first // shard.replicas * len(shard.own))
    return data.prefetch(1) if dense else data


def _item(
    part: ImageSet, augments: bool, jitter: float, number: int, drawn: Any
) -> tuple[Any, Any]:
    """Return the handle and the label of an image, which is changed by a random number if asked for."""
    image, label = part.images[number], part.labels[number]
    if augments or jitter:
        return image.changed_handle(drawn, augments, jitter), label
    return image.handle, label


def _seeded(
    part: ImageSet, augments: bool, jitter: float, number: int, drawn: Any
) -> tuple[Any, Any, Any]:
    """Return the handle and the label of an image, and the random number that augments it."""
    return part.images[number].handle, part.labels[number], drawn


def _opened(first: Any, same_size: bool, handle: Any, label: Any) -> tuple[Any, Any]:
    """Return an image as a tensor, and its label; extents are known if all have the size of the first."""
    extents = [extent if same_size else None for extent in first.shape[:-1]]
    return _read(handle, [*extents, first.shape[-1]], first.dtype), label


def _read(handle: Any, shape: Sequence[int | None], dtype: Any) -> Any:
    def read(name: bytes) -> Any:
        image = sources.resolve(name.decode())
        return image.read(0, image.shape[0])

    return tf.ensure_shape(callbacks.numpy_function(read, [handle], tf.as_dtype(dtype)), shape)


def _augmented(shape: tuple[int, ...], handle: Any, label: Any, seed: Any) -> tuple[Any, Any]:
    """Return an image of `shape` as a tensor, augmented as in A3 from the whole image, and its label."""

    def read(name: bytes, seed: int) -> Any:
        image: Any = sources.resolve(name.decode())
        whole = image.whole if isinstance(image, sources.CenterCropped) else image
        return a3.augment(whole, (shape[0], shape[1]), int(seed))

    image = callbacks.numpy_function(read, [handle, seed], tf.uint8)
    return tf.ensure_shape(image, shape), label


def _mixed(classes: int, seed: int) -> Callable[[Any, Any], Any]:
    """Mix the images of a batch as in A3: by mixup 0.1 or by cutmix 1.0, each with probability 1/2."""
    mixup, cutmix = keras.layers.MixUp(0.1, seed=seed), keras.layers.CutMix(1.0, seed=seed)

    def mixed(x: Any, y: Any) -> tuple[Any, Any]:
        batch = {"images": tf.cast(x, tf.float32), "labels": tf.one_hot(y, classes)}
        either = tf.random.uniform([], seed=seed) < 0.5
        batch = tf.cond(either, lambda: mixup(batch), lambda: cutmix(batch))
        return batch["images"], batch["labels"]

    return mixed


def _printed_digits(settings: ImageSettings) -> list[Any]:
    counts = [min(20 * number, 4000) for number in settings.num_images]
    return [drawn_digits(count, settings.seed * 10 + part) for part, count in enumerate(counts)]


def _handwritten_digits(settings: ImageSettings) -> list[Any]:
    """Use a third of the test digits for validation."""
    pool, classes = read_digits(_data_folder(settings), "test")
    third = len(classes) // 3
    val, test = (
        (sources.Subset(pool, np.arange(len(classes))[part]), classes[part])
        for part in (np.s_[:third], np.s_[third:])
    )
    return [read_digits(_data_folder(settings), "train"), val, test]


POOLS = {"drawn": _printed_digits, "digits": _handwritten_digits}
"""Digits of UltraMNIST for training, validation and testing."""


def _ultramnist(settings: ImageSettings) -> Data:
    try:
        sets = [
            ultramnist(
                pool[0],
                pool[1],
                max(number // 10, 1),
                settings.canvas,
                settings.factors,
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
    parts = [ImageSet(tuple(_scaled(i, settings) for i in images), y) for images, y in sets]
    return Data.of(parts, classes=tuple(map(str, range(10))))


def single_digits(settings: ImageSettings, count: int) -> ImageSet:
    """Return an `ImageSet` of one digit each, sized as in the images.

    An image has 1.5 times as many rows as the largest digit, rounded up to a multiple of 32.

    Args:
        settings: Settings of the run.
        count: Number of images.
    """
    low, high = settings.factors
    side = -(-42 * high // 32) * 32
    pool, labels = POOLS[settings.images](settings)[0]
    digits, classes = ultramnist(
        pool, labels, count // 10, side, (low, high), (1,), settings.seed, "single digit"
    )
    if not settings.side:
        return ImageSet(tuple(digits), classes)
    rows = max(round(side * settings.side / settings.canvas), 32)
    return ImageSet(tuple(sources.Scaled(image, (rows, rows)) for image in digits), classes)


def _folder(settings: ImageSettings) -> Data:
    """Read `images.csv`: columns `image` (a path in the folder), those of the target, and `split` or `patient`."""
    folder = Path(_data_folder(settings))
    table, columns = folder / "images.csv", target_columns.of(settings)
    rows = splits.read_table(table, ("image", *columns.names))
    if settings.confine:
        splits.check_inside((folder / row["image"] for row in rows), (folder,))
    found = columns.labelled(rows, table, "image")
    rows = drawn_splits.with_splits(found.rows, settings)

    def opened(split: str) -> ImageSet:
        chosen = splits.of_split(rows, split, table)
        paths = [folder / row["image"] for row in chosen]
        return _open_images(paths, [row["label"] for row in chosen], settings, split)

    decided = {"num_classes": len(found.classes)} if columns.whole else {}
    return Data.opened(
        opened, found.classes, bool(settings.test_only), cases=found.cases, decided=decided
    )


def _slides(settings: ImageSettings) -> Data:
    """Open whole slides at one resolution; slides that cannot be read are skipped."""
    slides = cohort.read(settings, target_columns.of(settings))
    opener, masking = cohort.Opener(settings, slides.rows), Masking.of(settings)

    def image(path: Path) -> Any:
        whole: sources.Source = opener.image(path)
        if masking is not None:
            with closing(opener.slide(path)) as slide:
                whole = masking.apply(slide, whole)
        return _scaled(sources.RGB(whole), settings)

    def opened(rows: Sequence[Row]) -> ImageSet:
        images, labels, failed = cohort.open_rows(rows, image)
        return ImageSet(tuple(images), np.array(labels), tuple(failed))

    return opener.with_pixels(cohort.load(settings, slides, opened))


def _pictures(settings: ImageSettings) -> Data:
    """Read images in a folder for each class."""
    folder = Path(_data_folder(settings))
    rows, names = class_folders.read(folder, settings.seed, settings.class_names)
    rows = drawn_splits.with_splits(rows, settings)

    def opened(split: str) -> ImageSet:
        chosen = splits.of_split(rows, split, folder)
        paths, labels = [row["image"] for row in chosen], [row["label"] for row in chosen]
        return _open_images(paths, labels, settings, split)

    return Data.opened(opened, names, bool(settings.test_only))


def _har(settings: ImageSettings) -> Data:
    """Read the official folder; a tenth of the training windows is for validation."""
    folder = Path(_data_folder(settings))
    series, labels = _signals(folder, "train")
    order = np.random.default_rng(settings.seed).permutation(len(labels))
    tenth = len(order) // 10
    parts = [(series[part], labels[part]) for part in (order[tenth:], order[:tenth])]
    sets = [_series(*pair) for pair in (*parts, _signals(folder, "test"))]
    return Data.of(sets, classes=ACTIVITIES)


def har_files(folder: Path, part: str) -> list[Path]:
    """Return the files of a part of UCI HAR: nine of signals, and last the one of labels.

    Args:
        folder: The folder `UCI HAR Dataset`.
        part: "train" or "test".
    """
    signals = [folder / part / "Inertial Signals" / f"{name}_{part}.txt" for name in SIGNALS]
    return [*signals, folder / part / f"y_{part}.txt"]


def _signals(folder: Path, part: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    files = har_files(folder, part)
    for file in files:
        if not file.exists():
            raise SourceError(
                f"{file}: no such file; expected the folder of UCI HAR. Check --data."
            )
    try:
        *signals, labels = (np.loadtxt(file, dtype=np.float32) for file in files)
        series = np.stack(signals, -1)
    except ValueError as error:
        raise SourceError(f"{folder / part}: is not in the format of UCI HAR ({error}).") from error
    for line in np.flatnonzero((labels < 1) | (labels > len(ACTIVITIES)))[:1]:
        raise SourceError(
            f"{files[-1]}: line {line + 1}: label {labels[line]:g}; expected 1 to {len(ACTIVITIES)}."
        )
    return series, labels.astype(np.int64) - 1


def _series(series: npt.NDArray[Any], labels: npt.NDArray[Any]) -> ImageSet:
    return ImageSet(tuple(sources.ArrayBag(one) for one in series), labels)


def _open_images(
    paths: Sequence[Path], labels: Sequence[Any], settings: ImageSettings, split: str
) -> ImageSet:
    """Open the images of a split that can be used, in RGB; the others are listed with the reason."""
    images: list[Any] = []
    used: list[Any] = []
    failed: list[tuple[str, str]] = []
    for path, label in zip(paths, labels, strict=True):
        try:
            image = _scaled(sources.RGB(sources.OnDisk(path, settings.level)), settings)
        except SourceError as error:
            failed.append((str(path), str(error)))
            continue
        images.append(image)
        used.append(label)
    if not images:
        raise splits.none_usable("images", split, failed)
    return ImageSet(tuple(images), np.array(used), tuple(failed))


def _scaled(image: Any, settings: ImageSettings) -> Any:
    if not settings.side or image.shape[:2] == (settings.side, settings.side):
        return image
    if settings.keep_aspect:
        return sources.CenterCropped(image, settings.side)
    return sources.Scaled(image, (settings.side, settings.side))


def _data_folder(settings: ImageSettings) -> str:
    if settings.data is None:
        raise SourceError(f"--images {settings.images} needs --data FOLDER.")
    return settings.data

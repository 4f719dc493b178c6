"""Bags and their labels: opened one by one, passed to `fit` by handle, sampled anew in every epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tfbig import sources
from tfbig.data import epochs
from tfbig.data.worker_shards import ALL_BATCHES, Shard
from tfbig.errors import SourceError
from tfbig.sources import Bag, Subset
from tfbig.sources.augmentation import LUMA
from tfbig.system import callbacks
from tfbig.units import counted


@dataclass(frozen=True)
class BagSet:
    """Bags that could be opened, and the reasons why others could not.

    Attributes:
        ITEMS: What the items are, in the plural.
        bags: The opened bags.
        labels: Class of each bag, int64 `[len(bags)]`, or other labels `[len(bags), ...]`.
        failed: `(name, reason)` of the bags that were left out.

    Raises:
        dataclasses.FrozenInstanceError: An attribute is assigned.

    Example:
        >>> bags = [np.zeros((3, 8, 8, 3), "uint8"), np.zeros((0, 8, 8, 3), "uint8")]
        >>> found = tfbig.mil.read_bags(bags, labels=[1, 0], classes=2)
        >>> [bag.shape for bag in found.bags], found.labels
        ([(3, 8, 8, 3)], array([1]))
        >>> len(found.failed)  # the empty bag
        1
    """

    ITEMS: ClassVar[str] = "bags"

    bags: tuple[Bag, ...]
    labels: np.ndarray
    failed: tuple[tuple[str, str], ...] = ()


def read_bags(bags: Sequence[Any], labels: Sequence[Any], classes: int | None) -> BagSet:
    """Open bags; those that cannot be used are listed in `failed`, with the reason.

    The first bag that can be used sets the shape and dtype of an instance; bags with other instances are left out.

    Args:
        bags: Paths, arrays or bags, see `tfbig.sources.open_bag`.
        labels: Class of each bag, 0 to `classes` - 1, or other labels of one shape.
        classes: Number of classes, or None if labels are none, such as numbers to predict.

    Returns:
        A `BagSet` with the usable bags and their labels.

    Raises:
        ValueError: The number of labels differs from the number of bags.
        SourceError: No bag can be used.

    Example:
        >>> for name, n in (("first", 5), ("second", 3)):
        ...     np.save(f"{name}.npy", np.zeros((n, 8, 8, 3), "uint8"))  # n tiles of 8 x 8 pixels
        >>> found = tfbig.mil.read_bags(["first.npy", "second.npy"], labels=[0, 1], classes=2)
        >>> [bag.shape[0] for bag in found.bags], found.labels
        ([5, 3], array([0, 1]))
    """
    if len(bags) != len(labels):
        raise ValueError(
            f"{len(labels)} labels for {counted(len(bags), 'bag')}; expected one label per bag."
        )
    opened: list[Bag] = []
    labels_of_bags: list[Any] = []
    failed: list[tuple[str, str]] = []
    for item, label in zip(bags, labels, strict=True):
        name = getattr(item, "name", item if isinstance(item, str) else str(type(item).__name__))
        try:
            bag = sources.open_bag(item)
            if classes is not None:
                _check_label(bag.name, label, classes)
            _check_instances(bag, opened[0] if opened else bag)
        except (SourceError, ValueError) as error:
            failed.append((str(name), str(error)))
            continue
        opened.append(bag)
        labels_of_bags.append(label)
    if not opened:
        first = f" The first: {failed[0][1]}" if failed else ""
        raise SourceError(f"none of {len(bags)} bags can be used.{first}")
    dtype = None if classes is None else np.int64
    return BagSet(tuple(opened), np.array(labels_of_bags, dtype), tuple(failed))


def foreground(bag: Bag, share: float, low: int = 3, high: int = 230) -> Bag:
    """Return the tiles of a bag with enough foreground: pixels that are neither black nor white.

    Big-Layers (section 4.2) keeps tiles with 60 % of the pixels between grey levels 3 and 230. Reads the whole bag
    once, a few tiles at a time.

    Args:
        bag: Tiles `[n, H, W, C]` of uint8, C 1 or 3.
        share: Smallest share of foreground pixels in a tile, 0 to 1.
        low: Grey level (luma); foreground pixels are above it.
        high: Grey level (luma); foreground pixels are below it.

    Returns:
        A bag of the tiles that qualify; `bag` itself if all of them do.

    Raises:
        SourceError: No tile has enough foreground, or the instances are not tiles.

    Example:
        >>> tiles = np.full((3, 8, 8, 3), 120, "uint8")
        >>> tiles[1] = 255  # a white tile
        >>> bag = tfbig.sources.open_bag(tiles)
        >>> tfbig.mil.foreground(bag, share=0.6).shape
        (2, 8, 8, 3)
    """
    if len(bag.shape) != 4 or bag.dtype != np.uint8 or bag.shape[3] not in (1, 3):
        raise SourceError(
            f"{bag.name}: has shape {bag.shape} of {bag.dtype}; expected tiles [n, H, W, 1 or 3] of uint8."
        )
    at_once = max(2**26 // bag.shape[1] // bag.shape[2] // bag.shape[3] // 8, 1)
    shares = [
        _foreground_shares(bag.read(i, min(i + at_once, bag.shape[0])), low, high)
        for i in range(0, bag.shape[0], at_once)
    ]
    kept = np.flatnonzero(np.concatenate(shares) >= share)
    if not len(kept):
        raise SourceError(
            f"{bag.name}: none of {bag.shape[0]} tiles has a share of {share} of foreground. Exclude the bag."
        )
    return bag if len(kept) == bag.shape[0] else Subset(bag, kept)


def _foreground_shares(tiles: np.ndarray, low: int, high: int) -> np.ndarray:
    grey = tiles @ LUMA if tiles.shape[3] == 3 else tiles[..., 0]
    return ((grey > low) & (grey < high)).mean((1, 2))


def dataset(
    bags: Sequence[Any],
    labels: Any,
    batch_size: int = 1,
    *,
    sample: int | float | None = None,
    shuffle: bool = False,
    augment: bool = False,
    augment_each: bool = False,
    stain_jitter: float = 0.0,
    seed: int = 0,
    shard: Shard = ALL_BATCHES,
    like_sizes: bool = False,
    dense: bool = False,
) -> tf.data.Dataset:
    """Return a dataset of bags and labels for `fit`, `evaluate` and `predict`.

    Args:
        bags: Bags with instances of one shape and dtype, or what `tfbig.sources.open_bag` opens: arrays `[n, ...]` and
            paths.
        labels: One label per bag.
        batch_size: Bags in a batch; above 1, the bags of a batch must have equal numbers of instances.
        sample: Instances drawn from each bag, anew in every epoch (within-bag sampling): a number, or a share below 1.
            Fewer if the bag has fewer. None for all instances.
        shuffle: Whether to shuffle the bags in every epoch.
        augment: Whether to blur, colour, flip and turn tiles, all tiles of a bag in the same way, anew in every epoch;
            see `tfbig.sources.Augmentation`.
        augment_each: Whether to augment as with `augment`, but each tile in its own way.
        stain_jitter: Largest change of the stains, of all tiles of a bag in the same way, anew in every epoch; see
            `tfbig.sources.Augmentation.with_jitter`.
        seed: Seed of the samples, orders and augmentations.
        shard: The batches of this worker, and the epoch to start from when training resumes.
        like_sizes: Whether shuffled bags that follow each other have similar numbers of instances, see
            `tfbig.data.worker_shards.shuffled`.
        dense: Whether to yield tensors `[N, n, ...]` instead of handles `[N]`, for plain Keras models.

    Returns:
        A `tf.data.Dataset` of `(handles, labels)`: strings `[N]` or tensors `[N, n, ...]`, and labels `[N, ...]`.

    Raises:
        ValueError: `bags` is empty, the number of labels differs from the number of bags, or `sample` is not
            positive.
        SourceError: The instances of two bags differ in shape or dtype.

    Example:
        >>> bags = [np.zeros((n, 8, 8, 3), "uint8") for n in (5, 3)]
        >>> data = tfbig.mil.dataset(bags, labels=[0, 1], sample=4, dense=True)
        >>> [(tuple(x.shape), int(y[0])) for x, y in data]
        [((1, 4, 8, 8, 3), 0), ((1, 3, 8, 8, 3), 1)]
    """
    labels = np.asarray(labels)
    if not len(bags) or len(labels) != len(bags):
        raise ValueError(
            f"{len(labels)} labels for {counted(len(bags), 'bag')}; expected one label per bag."
        )
    if sample is not None and not (0 < sample < 1 or (sample >= 1 and sample == int(sample))):
        raise ValueError(f"sample={sample}: expected a number of instances, or a share below 1.")
    bags = [bag if isinstance(bag, Bag) else sources.open_bag(bag) for bag in bags]
    for bag in bags:
        _check_instances(bag, bags[0])
    changes = (augment, augment_each, stain_jitter)
    data = epochs.dataset(
        lambda i, drawn: (_handle(bags[i], sample, drawn, *changes), labels[i]),
        len(bags),
        batch_size,
        (tf.TensorSpec([], tf.string), tf.TensorSpec(labels.shape[1:], labels.dtype)),
        seed=seed,
        shuffle=shuffle,
        sizes=[sample_size(bag, sample) for bag in bags] if like_sizes else None,
        shard=shard,
    )
    if dense:
        shape, dtype = [None, *bags[0].shape[1:]], tf.as_dtype(bags[0].dtype)
        data = data.map(lambda handle, y: (_dense(handle, shape, dtype), y))
    return data.batch(batch_size)


def sample_size(bag: Bag, sample: int | float | None) -> int:
    """Return how many instances are drawn from a bag.

    Args:
        bag: The bag.
        sample: A number of instances, a share below 1, or None for all, as in `dataset`.

    Returns:
        The number of instances, at least 1 and at most the size of the bag.

    Raises:
        TypeError: `sample` is not a number.

    Example:
        >>> bag = tfbig.sources.open_bag(np.zeros((5, 8, 8, 3), "uint8"))
        >>> [tfbig.mil.sample_size(bag, sample) for sample in (None, 2, 0.4, 100)]
        [5, 2, 2, 5]
    """
    size = bag.shape[0]
    if sample is None:
        return size
    return min(max(round(sample * size), 1) if sample < 1 else int(sample), size)


def _handle(
    bag: Bag, sample: int | float | None, seed: int, augment: bool, each: bool, jitter: float
) -> str:
    size = sample_size(bag, sample)
    whole = size == bag.shape[0] and not augment and not each and not jitter
    return bag.handle if whole else bag.drawn_handle(size, seed, augment, each, jitter)


def _dense(handle: tf.Tensor, shape: list[int | None], dtype: tf.DType) -> tf.Tensor:
    def read(name: bytes) -> np.ndarray:
        source = sources.resolve(name.decode())
        return source.read(0, source.shape[0])

    return tf.ensure_shape(callbacks.numpy_function(read, [handle], dtype), shape)


def _check_instances(bag: Bag, first: Bag) -> None:
    if (bag.shape[1:], bag.dtype) != (first.shape[1:], first.dtype):
        raise SourceError(
            f"{bag.name}: has instances of shape {bag.shape[1:]} {bag.dtype}; expected {first.shape[1:]} "
            f"{first.dtype}, as in {first.name}. Convert the bags to one size and dtype, or exclude this one."
        )


def _check_label(name: str, label: Any, classes: int) -> None:
    if int(label) != label or not 0 <= label < classes:
        raise ValueError(
            f"{name}: has label {label}; expected an integer from 0 to {classes - 1} ({classes} classes)."
        )

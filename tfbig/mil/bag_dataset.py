"""Bags and their labels: opened one by one, given to `fit` by handle, sampled anew in every epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfbig import sources
from tfbig.data import epochs
from tfbig.data.worker_shards import ALL_BATCHES, Shard
from tfbig.errors import SourceError
from tfbig.sources import Bag, Subset
from tfbig.sources.bags.augmentation import LUMA


@dataclass(frozen=True)
class BagSet:
    """Bags that could be opened, and what was said of the others.

    Args:
        bags: opened.
        labels: class of each, int64 `[len(bags)]`.
        failed: `(name, reason)` of the bags that were left out.
    """

    bags: tuple[Bag, ...]
    labels: np.ndarray
    failed: tuple[tuple[str, str], ...] = ()


def read_bags(bags: Sequence[Any], labels: Sequence[int], classes: int) -> BagSet:
    """Opens bags; those that cannot be used are named in `failed`, and the others go on.

    Args:
        bags: paths, arrays or bags, see `tfbig.sources.open_bag`.
        labels: class of each, 0 to `classes` - 1.
        classes: how many there are.

    Raises:
        ValueError: there are more labels than bags, or fewer.
        SourceError: no bag can be used.

    The first bag that can be used says what instances are; bags of other instances are left out.
    """
    if len(bags) != len(labels):
        raise ValueError(f"{len(labels)} labels for {len(bags)} bags; expected one for each.")
    opened: list[Bag] = []
    known: list[int] = []
    failed: list[tuple[str, str]] = []
    for given, label in zip(bags, labels, strict=True):
        name = getattr(
            given, "name", given if isinstance(given, str) else str(type(given).__name__)
        )
        try:
            bag = sources.open_bag(given)
            _check_label(bag.name, label, classes)
            _check_alike(bag, opened[0] if opened else bag)
        except (SourceError, ValueError) as error:
            failed.append((str(name), str(error)))
            continue
        opened.append(bag)
        known.append(int(label))
    if not opened:
        first = f" The first: {failed[0][1]}" if failed else ""
        raise SourceError(f"none of {len(bags)} bags can be used.{first}")
    return BagSet(tuple(opened), np.array(known, np.int64), tuple(failed))


def foreground(bag: Bag, share: float, low: int = 3, high: int = 230) -> Bag:
    """The tiles of which a share is neither black nor white (Big-Layers, section 4.2: 60 %, grey between 3 and 230).

    Reads the whole bag once, a few tiles at a time.

    Args:
        bag: tiles `[n, H, W, C]` of uint8, C 1 or 3.
        share: of the pixels, 0 to 1.
        low, high: grey levels (luma) between which a pixel is foreground, both excluded.

    Raises:
        SourceError: no tile has so much of it, or the bag holds no tiles.
    """
    if len(bag.shape) != 4 or bag.dtype != np.uint8 or bag.shape[3] not in (1, 3):
        raise SourceError(
            f"{bag.name}: is {bag.shape} {bag.dtype}; expected tiles [n, H, W, 1 or 3] of uint8."
        )
    at_once = max(2**26 // bag.shape[1] // bag.shape[2] // bag.shape[3] // 8, 1)
    shares = [
        _shares(bag.read(i, min(i + at_once, bag.shape[0])), low, high)
        for i in range(0, bag.shape[0], at_once)
    ]
    places = np.flatnonzero(np.concatenate(shares) >= share)
    if not len(places):
        raise SourceError(
            f"{bag.name}: none of {bag.shape[0]} tiles has a share of {share} of foreground. Leave the bag out."
        )
    return bag if len(places) == bag.shape[0] else Subset(bag, places)


def _shares(tiles: np.ndarray, low: int, high: int) -> np.ndarray:
    grey = tiles @ LUMA if tiles.shape[3] == 3 else tiles[..., 0]
    return ((grey > low) & (grey < high)).mean((1, 2))


def dataset(
    bags: Sequence[Bag],
    labels: Any,
    batch_size: int = 1,
    *,
    sample: int | float | None = None,
    shuffle: bool = False,
    augment: bool = False,
    seed: int = 0,
    shard: Shard = ALL_BATCHES,
    like_sizes: bool = False,
    dense: bool = False,
) -> tf.data.Dataset:
    """Handles of bags, or bags, and labels, for `fit`, `evaluate` and `predict`.

    Args:
        bags: of one shape within a batch. Keep them as long as the dataset.
        labels: one for each bag.
        batch_size: bags of a batch.
        sample: instances of each bag, drawn anew in every epoch (within-bag sampling): a number, or a share below 1.
            Fewer where the bag has fewer. All by default.
        shuffle: in every epoch the bags come in another order.
        augment: tiles are blurred, coloured, flipped and turned, all of a bag alike, anew in every epoch; see
            `tfbig.sources.Augmentation`.
        seed: same seed, same samples and orders.
        shard: which batches, of which epoch on, where training goes on or is shared.
        like_sizes: shuffled bags that follow each other have about as many instances, see
            `tfbig.data.worker_shards.shuffled`.
        dense: give tensors `[N, n, ...]` instead of handles `[N]`, for plain models.

    Raises:
        ValueError: there are no bags, or not one label for each, or `sample` is not above 0.
        SourceError: instances of two bags differ in shape or element type.
    """
    labels = np.asarray(labels)
    if not len(bags) or len(labels) != len(bags):
        raise ValueError(f"{len(bags)} bags and {len(labels)} labels; expected one for each.")
    if sample is not None and not (0 < sample < 1 or (sample >= 1 and sample == int(sample))):
        raise ValueError(f"sample={sample}: expected a number of instances, or a share below 1.")
    for bag in bags:
        _check_alike(bag, bags[0])
    data = epochs.dataset(
        lambda i, drawn: (_handle(bags[i], sample, drawn, augment), labels[i]),
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
    """How many instances of a bag are drawn."""
    size = bag.shape[0]
    if sample is None:
        return size
    return min(max(round(sample * size), 1) if sample < 1 else int(sample), size)


def _handle(bag: Bag, sample: int | float | None, seed: int, augment: bool) -> str:
    size = sample_size(bag, sample)
    same = size == bag.shape[0] and not augment
    return bag.handle if same else bag.drawn_handle(size, seed, augment)


def _dense(handle: tf.Tensor, shape: list[int | None], dtype: tf.DType) -> tf.Tensor:
    def read(name: bytes) -> np.ndarray:
        source = sources.resolve(name.decode())
        return source.read(0, source.shape[0])

    return tf.ensure_shape(tf.numpy_function(read, [handle], dtype), shape)


def _check_alike(bag: Bag, first: Bag) -> None:
    if (bag.shape[1:], bag.dtype) != (first.shape[1:], first.dtype):
        raise SourceError(
            f"{bag.name}: its instances are {bag.shape[1:]} {bag.dtype}, those of {first.name} are {first.shape[1:]} "
            f"{first.dtype}. Make them alike, or leave the bag out."
        )


def _check_label(name: str, label: Any, classes: int) -> None:
    if int(label) != label or not 0 <= label < classes:
        raise ValueError(
            f"{name}: label {label} is none of the {classes} classes, 0 to {classes - 1}."
        )

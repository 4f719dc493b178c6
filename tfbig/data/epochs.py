"""Datasets whose epochs are identical in every process, can start in the middle, and can be sharded among workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np
import tensorflow as tf

from tfbig.data.worker_shards import ALL_BATCHES, Shard, shuffled
from tfbig.system import callbacks


def dataset(
    item: Callable[[int, int], Any],
    items: int,
    batch_size: int,
    spec: Any,
    *,
    seed: int = 0,
    shuffle: bool = False,
    sizes: Sequence[float] | None = None,
    shard: Shard = ALL_BATCHES,
) -> tf.data.Dataset:
    """Create a dataset of single items that yields one epoch per iteration.

    The first iteration yields the epoch of `shard`, each further iteration the next epoch.

    Args:
        item: Function that returns an item, called with its number and a seed that differs between items and epochs.
        items: Number of items per epoch.
        batch_size: Items per batch; `shard` counts batches of this size.
        spec: Signature of an item, as accepted by `tf.data.Dataset.from_generator`.
        seed: Seed; the same seed and epoch give the same order and the same seeds of items.
        shuffle: Shuffle the items anew in every epoch.
        sizes: Sizes of the items, so that consecutive shuffled items have similar sizes, see
            `tfbig.data.worker_shards.shuffled`.
        shard: Batches that this worker gets, and the first epoch.
    """
    times, read = count(), callbacks.reporting(item)

    def one_epoch() -> Iterator[Any]:
        now = shard.later(next(times))
        rng = np.random.default_rng([seed, now.epoch])
        order = shuffled(items, rng, sizes) if shuffle else np.arange(items)
        seeds = [int(rng.integers(2**31)) for _ in order]
        for place in now.items(items, batch_size):
            yield read(int(order[place]), seeds[place])

    data = tf.data.Dataset.from_generator(one_epoch, output_signature=spec)
    if shard.first:
        return data  # the cardinality is unknown: the next epoch has more items
    return data.apply(tf.data.experimental.assert_cardinality(len(shard.items(items, batch_size))))

"""Datasets of which an epoch is the same in every process, can begin in the middle, and be shared by workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np
import tensorflow as tf

from tfbig.data.worker_shards import ALL_BATCHES, Shard, shuffled


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
    """Items, one by one, of the first epoch of a shard; each time it is read again, of the next.

    Args:
        item: gives one, by its number and a seed of its own, which is another in every epoch.
        items: of an epoch.
        batch_size: items of the batches they are for, by which `shard` counts.
        spec: of an item, as `tf.data.Dataset.from_generator` takes it.
        seed: same seed and epoch, same order and seeds of items.
        shuffle: in every epoch they come in another order.
        sizes: of the items; shuffled ones that follow each other are about as large, see
            `tfbig.data.worker_shards.shuffled`.
        shard: which batches, of which epoch on.
    """
    times = count()

    def one_epoch() -> Iterator[Any]:
        now = shard.later(next(times))
        rng = np.random.default_rng([seed, now.epoch])
        order = shuffled(items, rng, sizes) if shuffle else np.arange(items)
        seeds = [int(rng.integers(2**31)) for _ in order]
        for place in now.items(items, batch_size):
            yield item(int(order[place]), seeds[place])

    data = tf.data.Dataset.from_generator(one_epoch, output_signature=spec)
    if shard.first:
        return data  # the next epoch has more
    return data.apply(tf.data.experimental.assert_cardinality(len(shard.items(items, batch_size))))

"""Rounds of batches: each batch is read once, by the replica that it belongs to, for rounds of any size."""

from __future__ import annotations

from itertools import chain

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfbig.data.worker_shards import Shard
from tfbig.training.rounds import Epochs, Rounds


def read(replicas: range, total: int, count: int, first: int, sizes: list[int]) -> list[list[int]]:
    """Return the batches, numbers from 0, that some replicas read in each round."""

    def numbers(shard: Shard) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(np.arange(count)[shard.items(count, 1)])

    rounds, step, found = Rounds(Epochs(count, numbers), 0, replicas, total), first, []
    for size in [*sizes, *[total] * count]:
        if step < count:
            found.append([int(x) for x in rounds.read(step, size)[0]])
            step += size
    return found


@given(
    count=st.integers(1, 9),
    total=st.integers(1, 4),
    first=st.integers(0, 3),
    sizes=st.lists(st.integers(1, 4), max_size=3),
)
@settings(max_examples=15, deadline=None)
def test_each_batch_is_read_once(count: int, total: int, first: int, sizes: list[int]) -> None:
    sizes = [min(size, total) for size in sizes]
    workers = [read(range(r, r + 1), total, count, first, sizes) for r in range(total)]
    rounds = [list(chain(*each)) for each in zip(*workers, strict=True)]
    assert list(chain(*rounds)) == list(range(first, count))
    assert rounds == read(range(total), total, count, first, sizes)

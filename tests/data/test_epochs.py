"""Datasets with reproducible epochs that can start in the middle and be sharded."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfbig.data.epochs import dataset
from tfbig.data.worker_shards import Shard

SPEC = (tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.int64))


def items_of(data: tf.data.Dataset) -> list[tuple[int, int]]:
    """Return number and seed of every item of one iteration."""
    return [(int(number), int(seed)) for number, seed in data.as_numpy_iterator()]


def make(**options: object) -> tf.data.Dataset:
    return dataset(lambda number, seed: (number, seed), 10, 2, SPEC, **options)


def test_order_and_seeds_are_reproducible() -> None:
    one, other = make(seed=3, shuffle=True), make(seed=3, shuffle=True)
    epochs = [items_of(one) for _ in range(2)]
    assert epochs == [items_of(other) for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert items_of(make(seed=4, shuffle=True)) != epochs[0]
    for epoch in epochs:
        assert sorted(number for number, _ in epoch) == list(range(10))
        assert len({seed for _, seed in epoch}) == 10


def test_without_shuffling_only_seeds_differ_between_epochs() -> None:
    data = make()
    first, second = items_of(data), items_of(data)
    assert [number for number, _ in first] == [number for number, _ in second] == list(range(10))
    assert [seed for _, seed in first] != [seed for _, seed in second]


def test_start_in_the_middle_of_an_epoch() -> None:
    whole, resumed = make(seed=1, shuffle=True), make(seed=1, shuffle=True, shard=Shard(1, 3))
    epochs = [items_of(whole) for _ in range(3)]
    assert items_of(resumed) == epochs[1][6:]  # three batches of two items were processed before
    assert items_of(resumed) == epochs[2]


def test_shards_share_an_epoch() -> None:
    shards = [
        make(seed=1, shuffle=True, shard=Shard(own=range(i, i + 1), replicas=2)) for i in (0, 1)
    ]
    first, second = (items_of(shard) for shard in shards)
    whole = items_of(make(seed=1, shuffle=True))
    assert first == [*whole[0:2], *whole[4:6], *whole[8:10]]
    assert second == [*whole[2:4], *whole[6:8]]


@pytest.mark.parametrize(
    ("shard", "cardinality"),
    [
        (Shard(), 10),
        (Shard(own=range(1, 2), replicas=2), 4),
        (Shard(first=2), tf.data.UNKNOWN_CARDINALITY),
    ],
)
def test_cardinality(shard: Shard, cardinality: int) -> None:
    assert int(make(shard=shard).cardinality()) == cardinality


def test_consecutive_shuffled_items_have_similar_sizes() -> None:
    sizes = np.random.default_rng(0).permutation(256)
    data = dataset(lambda number, _: number, 256, 2, SPEC[0], shuffle=True, sizes=sizes)
    groups = np.stack(list(data.as_numpy_iterator())).reshape(4, 64)
    assert {tuple(sorted(sizes[group])) for group in groups} == {
        tuple(range(first, first + 64)) for first in range(0, 256, 64)
    }

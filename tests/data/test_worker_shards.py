"""Batches of a worker, and orders in which the items of a round have similar sizes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tfbig.data.worker_shards import GROUP, GROUPS, Shard, shuffled


@given(
    st.integers(0, 40), st.integers(1, 5), st.integers(1, 3), st.integers(0, 9), st.integers(1, 4)
)
def test_every_item_belongs_to_one_worker(count, workers, local, rounds, batch_size):
    replicas = workers * local
    batches = -(-count // batch_size)
    first = min(rounds * replicas, batches)
    shards = [Shard(3, first, range(w * local, (w + 1) * local), replicas) for w in range(workers)]
    seen = sorted(item for shard in shards for item in shard.items(count, batch_size))
    assert seen == list(range(min(first * batch_size, count), count))
    assert sum(shard.count(batches) for shard in shards) == batches - first


def test_batches_are_dealt_in_rounds():
    shards = [Shard(0, 2, range(2 * i, 2 * i + 2), 6) for i in range(3)]
    dealt = [[n for n in range(10) if shard.has(n)] for shard in shards]
    assert dealt == [[2, 3, 8, 9], [4, 5], [6, 7]]
    assert [shard.count(10) for shard in shards] == [4, 2, 2]
    assert shards[0].items(19, 2) == [4, 5, 6, 7, 16, 17, 18]
    assert shards[0].later(1) == Shard(1, 0, range(2), 6)


@given(st.integers(0, 5000), st.integers(0, 3))
def test_shuffled_by_size_is_a_permutation(count, seed):
    rng = np.random.default_rng(seed)
    sizes = rng.lognormal(0, 0.7, count)
    order = shuffled(count, rng, sizes)
    assert sorted(order) == list(range(count))


def test_shuffled_rounds_have_similar_sizes():
    rng = np.random.default_rng(0)
    sizes = rng.lognormal(0, 0.7, 2 * GROUP * GROUPS)

    def efficiency(order, workers):
        rounds = sizes[order].reshape(-1, workers)
        return rounds.mean() / rounds.max(1).mean()

    plain = shuffled(len(sizes), rng)
    orders = [shuffled(len(sizes), np.random.default_rng(e), sizes) for e in range(2)]
    assert (orders[0] != orders[1]).any()
    for order in orders:
        assert efficiency(order, 64) > 0.9 > 0.3 > efficiency(plain, 64)
        assert efficiency(order, 8) > 0.95
        means = sizes[order].reshape(-1, GROUP).mean(1)
        assert (
            abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.4
        )  # large items are spread over the epoch

"""Which batches of an epoch a worker sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Shard:
    """The batches of an epoch from one on, those of a worker.

    Batches are dealt in rounds, one for each replica of all workers: batch number `n` is for replica
    `(n - first) % replicas`.

    Args:
        epoch: from 0.
        first: batches that were seen before.
        own: replicas of this worker.
        replicas: of all workers.
    """

    epoch: int = 0
    first: int = 0
    own: range = range(1)
    replicas: int = 1

    def has(self, batch: int) -> bool:
        """Whether the batch of this number is one of them."""
        return batch >= self.first and (batch - self.first) % self.replicas in self.own

    def count(self, batches: int) -> int:
        """How many they are, of so many in an epoch."""
        return sum(map(self.has, range(self.first, batches)))

    def items(self, count: int, batch_size: int) -> list[int]:
        """Positions of their items in an epoch of so many."""
        return [item for item in range(count) if self.has(item // batch_size)]

    def later(self, epochs: int) -> Shard:
        """The same so many epochs later; only of this one something was seen before."""
        return self if epochs == 0 else replace(self, epoch=self.epoch + epochs, first=0)


GROUP, GROUPS = 64, 64
"""Items of like size that follow each other, and groups of them that are sorted together."""


def shuffled(
    count: int, rng: np.random.Generator, sizes: Sequence[float] | None = None
) -> npt.NDArray[np.int64]:
    """An order of items; with their sizes one in which those that follow each other are about as large.

    Workers of a round wait for the largest of their items. Each run of `GROUP * GROUPS` items is sorted by size and cut
    into groups, which are shuffled; what is in an epoch, and when, stays random but for that.

    Args:
        count: how many items.
        rng: same generator, same order.
        sizes: of the items, by number.
    """
    order = rng.permutation(count)
    if sizes is None:
        return order
    known = np.asarray(sizes)
    found: list[npt.NDArray[np.int64]] = [order[:0]]
    for first in range(0, count, GROUP * GROUPS):
        run = order[first : first + GROUP * GROUPS]
        run = run[np.argsort(known[run], kind="stable")]
        groups = [run[at : at + GROUP] for at in range(0, len(run), GROUP)]
        # One that is smaller stays the last, or those after it would not begin with a round.
        whole = [group for group in groups if len(group) == GROUP]
        found += [whole[i] for i in rng.permutation(len(whole))]
        found += [group for group in groups if len(group) < GROUP]
    return np.concatenate(found)


ALL_BATCHES = Shard()
"""Every batch, from the first epoch on."""

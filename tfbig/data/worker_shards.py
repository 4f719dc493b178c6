"""Assignment of the batches of an epoch to workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Shard:
    """Batches of an epoch that one worker gets.

    Batches are dealt in rounds, one for each replica of all workers: batch `n` is for replica
    `(n - first) % replicas`.

    Args:
        epoch: Number of the epoch, from 0.
        first: Number of batches of this epoch that were processed before.
        own: Replicas of this worker.
        replicas: Number of replicas of all workers.
    """

    epoch: int = 0
    first: int = 0
    own: range = range(1)
    replicas: int = 1

    def has(self, batch: int) -> bool:
        """Tell whether this worker gets batch `batch`."""
        return batch >= self.first and (batch - self.first) % self.replicas in self.own

    def count(self, batches: int) -> int:
        """Count the batches of this worker, given the number of batches per epoch."""
        return sum(map(self.has, range(self.first, batches)))

    def items(self, count: int, batch_size: int) -> list[int]:
        """The positions of this worker's items in an epoch of `count` items."""
        return [item for item in range(count) if self.has(item // batch_size)]

    def later(self, epochs: int) -> Shard:
        """The shard `epochs` epochs later; a later epoch starts at its first batch."""
        return self if epochs == 0 else replace(self, epoch=self.epoch + epochs, first=0)


GROUP, GROUPS = 64, 64
"""Consecutive items of similar size, and the number of such groups that are sorted together."""


def shuffled(
    count: int, rng: np.random.Generator, sizes: Sequence[float] | None = None
) -> npt.NDArray[np.int64]:
    """Draw an order of items, in which consecutive items have similar sizes if `sizes` is set.

    Workers of a round wait for the largest of their items. Each run of `GROUP * GROUPS` items is sorted by size and
    cut into groups, which are shuffled. Apart from that, the order is random.

    Args:
        count: Number of items.
        rng: Random generator; the same state gives the same order.
        sizes: Sizes of the items, by number.
    """
    order = rng.permutation(count)
    if sizes is None:
        return order
    by_number = np.asarray(sizes)
    groups_in_order: list[npt.NDArray[np.int64]] = [order[:0]]
    for first in range(0, count, GROUP * GROUPS):
        run = order[first : first + GROUP * GROUPS]
        run = run[np.argsort(by_number[run], kind="stable")]
        groups = [run[at : at + GROUP] for at in range(0, len(run), GROUP)]
        # A smaller group stays last, so that every group after the first starts with a round.
        whole = [group for group in groups if len(group) == GROUP]
        groups_in_order += [whole[i] for i in rng.permutation(len(whole))]
        groups_in_order += [group for group in groups if len(group) < GROUP]
    return np.concatenate(groups_in_order)


ALL_BATCHES = Shard()
"""Shard of a single worker with one replica: every batch, from the first epoch on."""

"""Which batches of an epoch a worker sees."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Part:
    """The batches of an epoch from one on, those of a worker.

    Batches are dealt in rounds, one for each replica of all workers: batch number `n` is for replica
    `n % replicas`.

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

    def later(self, epochs: int) -> Part:
        """The same so many epochs later; only of this one something was seen before."""
        return self if epochs == 0 else replace(self, epoch=self.epoch + epochs, first=0)


ALL = Part()
"""Every batch, from the first epoch on."""

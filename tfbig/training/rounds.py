"""The batches of an epoch, dealt to workers in rounds, a batch for each replica."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfbig.data.worker_shards import Shard
from tfbig.errors import SourceError
from tfbig.system import tf_errors


@dataclass(frozen=True)
class Epochs:
    """The batches of every epoch.

    Args:
        steps: batches of an epoch, those of all workers.
        batches: from a shard of an epoch to a dataset of its batches. The same shard gives the same batches, in
            whichever process.
        names: of what the batches are made of. Where they are others than before, training does not go on in the
            middle of an epoch but at its beginning; workers must have the same.
    """

    steps: int
    batches: Callable[[Shard], tf.data.Dataset]
    names: Sequence[str] = ()


class Rounds:
    """What a worker reads of an epoch, round after round.

    Args:
        epochs: of which it is one.
        epoch: which one.
        own: replicas of this worker.
        replicas: of all workers.
    """

    def __init__(self, epochs: Epochs, epoch: int, own: range, replicas: int) -> None:
        self.epochs, self.epoch = epochs, epoch
        self.own, self.replicas = own, replicas
        self._left: Any = None
        self._specs: Any = None

    def read(self, step: int) -> tuple[list[Any], Any]:
        """The batches of this worker in the round that begins with a step, and what their dataset says of all.

        Raises:
            SourceError: one of them cannot be read. The round after it can be read nevertheless.
        """
        if self._left is None:
            data = self.epochs.batches(Shard(self.epoch, step, self.own, self.replicas))
            self._left, self._specs = iter(data), data.element_spec
        count = sum(replica < self.epochs.steps - step for replica in self.own)
        try:
            return [tf_errors.unwrapped(next)(self._left) for _ in range(count)], self._specs
        except SourceError:
            self._left = None  # a dataset that has failed gives nothing more, or other batches
            raise

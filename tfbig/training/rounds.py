"""Batches of an epoch, distributed to workers in rounds of one batch for each replica."""

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
    """Batches of every epoch, as a function of the epoch and the worker.

    Args:
        steps: Number of batches per epoch, over all workers.
        batches: Function from a shard (`tfbig.data.worker_shards.Shard`) to a `tf.data.Dataset` of its batches. It
            must return the same batches for the same shard in every process; `shard.epoch` seeds the order, and
            `shard.items(count, batch_size)` are the positions in that order.
        names: Names of the images or bags. If they differ from those in a checkpoint, an epoch is not resumed in the
            middle but started again. They must be equal on all workers.

    Example:
        >>> from tfbig.data.worker_shards import Shard
        >>> from tfbig.training import Epochs
        >>> x = np.arange(6)
        >>> def batches(shard):
        ...     order = np.random.default_rng(shard.epoch).permutation(len(x))
        ...     items = order[shard.items(len(x), 2)]
        ...     return tf.data.Dataset.from_tensor_slices(x[items]).batch(2)
        >>> epochs = Epochs(steps=3, batches=batches, names=["a", "b", "c", "d", "e", "f"])
        >>> all_batches = list(epochs.batches(Shard(epoch=1)).as_numpy_iterator())
        >>> len(all_batches)
        3
        >>> (last,) = epochs.batches(Shard(epoch=1, first=2)).as_numpy_iterator()  # the epoch is resumed
        >>> bool((last == all_batches[2]).all())
        True
    """

    steps: int
    batches: Callable[[Shard], tf.data.Dataset]
    names: Sequence[str] = ()


class Rounds:
    """Reader of the batches of one epoch for one worker."""

    def __init__(self, epochs: Epochs, epoch: int, local_replicas: range, replicas: int) -> None:
        self.epochs, self.epoch = epochs, epoch
        self.local_replicas, self.replicas = local_replicas, replicas
        self._iterator: Any = None
        self._specs: Any = None

    def read(self, step: int, most: int | None = None) -> tuple[list[Any], Any]:
        """Read the batches of this worker in one round.

        Args:
            step: Number of the first batch of the round.
            most: Most batches of the round, over all workers. Default: one for each replica.

        Returns:
            The batches, and the element spec of their dataset.

        Raises:
            SourceError: A batch cannot be read. The next round can be read nevertheless.
        """
        if self._iterator is None:
            data = self.epochs.batches(Shard(self.epoch, step, self.local_replicas, self.replicas))
            self._iterator, self._specs = iter(data), data.element_spec
        size = min(self.replicas if most is None else most, self.epochs.steps - step)
        count = sum(replica < size for replica in self.local_replicas)
        try:
            batches = [tf_errors.unwrapped(next)(self._iterator) for _ in range(count)]
        except SourceError:
            self._iterator = None  # a dataset that has failed ends, or returns other batches
            raise
        if size < self.replicas:
            self._iterator = None  # the next batch would be read by another replica
        return batches, self._specs

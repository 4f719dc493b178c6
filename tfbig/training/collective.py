"""Exchange of values between the workers of a training run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from tfbig.errors import WorkerError
from tfbig.system import replication
from tfbig.units import ceil_div

Result = TypeVar("Result")


class Alone:
    """The collective of one worker with one replica, which exchanges nothing; the interface is that of `Collective`."""

    chief = single_worker = True

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Return, for each flag, whether it is true on any worker."""
        return flags

    def broadcast(
        self, text: str, arrays: dict[str, np.ndarray]
    ) -> tuple[str, dict[str, np.ndarray]]:
        """Return the text and arrays of the chief."""
        return text, arrays


class Collective:
    """The workers of a tf.distribute strategy, each with one or more replicas.

    All workers make the same calls in the same order.

    Attributes:
        replicas: Number of replicas of all workers.
        local_replicas: Indices of the replicas of this worker.
        chief: Whether this is the first worker, which reads and writes checkpoints.
        single_worker: Whether there is no other process.

    Raises:
        WorkerError: On an exchange, another worker is lost.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self.strategy = strategy
        self.replicas = strategy.num_replicas_in_sync
        indices = tf.function(lambda: strategy.run(_replica_index), autograph=False)()
        ids = [int(i) for i in self.local(indices)]
        self.local_replicas = range(ids[0], ids[-1] + 1)
        self.chief = self.local_replicas.start == 0
        self.single_worker = len(self.local_replicas) == self.replicas
        self._sum = tf.function(
            lambda tensors: strategy.run(all_reduced, args=(tensors,)),
            autograph=False,
            reduce_retracing=True,
        )

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Return, for each flag, whether it is true on any worker."""
        if self.single_worker:
            return flags
        numbers = tf.constant([float(f) for f in flags])
        (total,) = self.sum([[numbers]] * len(self.local_replicas))
        return tuple(bool(n > 0) for n in total.numpy())

    def total(self, numbers: np.ndarray) -> np.ndarray:
        """Return the sum of arrays of one shape and dtype over workers, each of which has one replica."""
        if self.single_worker or not numbers.size:  # TensorFlow crashes on a sum of nothing
            return numbers
        (total,) = self.sum([[tf.constant(numbers.ravel())]])
        return np.asarray(total).reshape(numbers.shape)

    def broadcast(
        self, text: str, arrays: dict[str, np.ndarray]
    ) -> tuple[str, dict[str, np.ndarray]]:
        """Return the text and arrays of the chief."""
        if self.single_worker:
            return text, arrays
        about = json.dumps([text, [[n, a.dtype.str, a.shape] for n, a in arrays.items()]]).encode()
        size = int.from_bytes(self._broadcast_bytes(len(about).to_bytes(8, "little"), 8), "little")
        text, kinds = json.loads(self._broadcast_bytes(about, size))
        received = {}
        for name, kind, shape in kinds:
            dtype = np.dtype(kind)
            own = arrays[name].tobytes() if self.chief else b""
            data = self._broadcast_bytes(own, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
            received[name] = np.frombuffer(data, dtype).reshape(shape)
        return text, received

    def _broadcast_bytes(self, data: bytes, size: int) -> bytes:
        """Return bytes of the chief, sent as numbers that every device sums exactly; other workers send zeros."""
        numbers = np.zeros(ceil_div(size, 4), "<u4")
        if self.chief:
            numbers.view(np.uint8)[:size] = np.frombuffer(data, np.uint8)
        own = tf.constant(numbers, tf.float64)
        (total,) = self.sum([[own if r == 0 else tf.zeros_like(own)] for r in self.local_replicas])
        return total.numpy().astype("<u4").tobytes()[:size]

    def sum(self, tensors: Sequence[Sequence[tf.Tensor]]) -> list[tf.Tensor]:
        """Return the sums over all replicas of the tensors of each replica of this worker."""
        totals = self.or_lost(lambda: self._sum(self.spread(tensors)))
        return [self.local(total)[0] for total in totals]

    def spread(self, values: Sequence[Any]) -> Any:
        """Convert one value for each replica of this worker to an argument of `strategy.run`."""
        first = self.local_replicas.start

        def local(context: Any) -> Any:
            return values[context.replica_id_in_sync_group - first]

        return self.strategy.experimental_distribute_values_from_function(local)

    def local(self, value: Any) -> Any:
        """Return the values of the replicas of this worker in a result of `strategy.run`."""
        return self.strategy.experimental_local_results(value)

    def or_lost(self, work: Callable[[], Result]) -> Result:
        """Run work that needs the other workers; raise WorkerError if they are lost."""
        try:
            return work()
        except tf.errors.OpError as error:
            if self.single_worker:
                raise
            raise lost() from error


def all_reduced(tensors: Sequence[Any]) -> list[tf.Tensor]:
    """Return the sums of tensors over replicas; tensors of one dtype are exchanged together.

    A worker with one replica places the exchange by the device of its input. The argument of a function has no device,
    but a copy of it has.
    """
    context = tf.distribute.get_replica_context()
    sums: dict[int, tf.Tensor] = {}
    for dtype in {t.dtype: None for t in tensors}:
        group = {i: tf.identity(t) for i, t in enumerate(tensors) if t.dtype == dtype}
        total = context.all_reduce(tf.distribute.ReduceOp.SUM, list(group.values()))
        sums |= zip(group, total, strict=True)
    return [sums[i] for i in range(len(tensors))]


def lost() -> WorkerError:
    """Return the error of a worker without the others."""
    return WorkerError(
        "lost the other workers. Start all workers again with --resume; see their messages for the cause."
    )


def _replica_index() -> tf.Tensor:
    return tf.constant(replication.replica_index())

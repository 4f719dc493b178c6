"""Replicas of a model under a strategy of tf.distribute: how many share this machine, and where each of them runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf

_device: ContextVar[str | None] = ContextVar("device", default=None)


def on_machine() -> int:
    """Replicas on this machine under the strategy of the current scope: they share its memory and its disk."""
    if not tf.distribute.has_strategy():
        return 1
    strategy = tf.distribute.get_strategy()
    own = len(strategy.extended.worker_devices)
    resolver = strategy.cluster_resolver
    spec = resolver.cluster_spec().as_dict() if resolver is not None else {}
    workers = [*spec.get("chief", []), *spec.get("worker", [])]
    if len(workers) < 2:
        return own
    here = spec[resolver.task_type][resolver.task_id].rpartition(":")[0]
    return own * sum(address.rpartition(":")[0] == here for address in workers)


def accelerator_of(place: int) -> str | None:
    """The accelerator of a replica of this process, as "/GPU:1"; None where it has none, or there is one replica."""
    devices = tf.distribute.get_strategy().extended.worker_devices
    spec = tf.DeviceSpec.from_string(devices[place])
    known = len(devices) > 1 and spec.device_type not in (None, "CPU")
    return f"/{spec.device_type}:{spec.device_index}" if known else None


def number() -> int:
    """Of the replica that is being traced, or worked for, among those of all workers."""
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    return int(tf.get_static_value(replica) if tf.is_tensor(replica) else replica)


def device() -> str | None:
    """The accelerator of the replica that is being traced, or worked for; None leaves it to the model."""
    own = _device.get()
    context = tf.distribute.get_replica_context()
    if own is not None or context is None or not tf.distribute.has_strategy():
        return own
    count = len(tf.distribute.get_strategy().extended.worker_devices)
    return accelerator_of(number() % count if count > 1 else 0)


@contextmanager
def on(place: str | None) -> Iterator[None]:
    """Within it, `device` gives this one."""
    token = _device.set(place)
    try:
        yield
    finally:
        _device.reset(token)


def check(optimizer: Any = None, loss: Any = None) -> None:
    """Refuses what looks as if it distributed training and does not, fails in the middle, or is wrong.

    Raises:
        ValueError: a `keras.distribution` is set, which Keras' TensorFlow backend ignores; or under a strategy the
            optimizer accumulates gradients (https://github.com/keras-team/keras/issues/20582), or a loss is a sum,
            which Keras does not divide by the number of replicas as it does means.
    """
    if keras.distribution.distribution() is not None:
        raise ValueError(
            "a keras.distribution is set, which does nothing with TensorFlow: every process would train alone. Call "
            "keras.distribution.set_distribution(None), and make the model in the scope of a strategy of tf.distribute."
        )
    steps = getattr(optimizer, "gradient_accumulation_steps", None)
    if steps and tf.distribute.has_strategy():
        raise ValueError(
            f"the optimizer has gradient_accumulation_steps={steps}, with which Keras' steps fail under a strategy of "
            "tf.distribute. Leave it out, and give tfbig.training.Loop accumulate=, or train.py --accumulate."
        )
    sums = [one for one in keras.tree.flatten(loss) if getattr(one, "reduction", None) == "sum"]
    if sums and tf.distribute.has_strategy():
        raise ValueError(
            f"the loss {sums[0].name} has reduction='sum', of which replicas would not be one model with all of their "
            "batches. Use reduction='sum_over_batch_size'."
        )


def check_fit(model: Any) -> None:
    """Refuses `fit` on several machines, which fails within Keras (https://github.com/keras-team/keras/issues/20585).

    Raises:
        ValueError: the model was made in the scope of a `MultiWorkerMirroredStrategy`.
    """
    strategy = getattr(model, "_distribute_strategy", None)
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        raise ValueError(
            f"'{model.name}': Keras' fit and evaluate cannot run under MultiWorkerMirroredStrategy. Train with "
            "tfbig.training.Loop, or with train.py --strategy multiworker."
        )

"""Replicas of a model under a tf.distribute strategy: their number on this machine, their devices, and checks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf

from tfbig.system import keras_internals

_device: ContextVar[str | None] = ContextVar("device", default=None)


def replicas_on_machine() -> int:
    """Return the number of replicas of the current strategy that share the memory and disk of this machine."""
    if not tf.distribute.has_strategy():
        return 1
    strategy = tf.distribute.get_strategy()
    local = len(strategy.extended.worker_devices)
    resolver = strategy.cluster_resolver
    spec = resolver.cluster_spec().as_dict() if resolver is not None else {}
    workers = [*spec.get("chief", []), *spec.get("worker", [])]
    if len(workers) < 2:
        return local
    here = spec[resolver.task_type][resolver.task_id].rpartition(":")[0]
    return local * sum(address.rpartition(":")[0] == here for address in workers)


def accelerator_of(place: int) -> str | None:
    """Return the accelerator of a local replica, such as `"/GPU:1"`; None without one, or with a single replica."""
    devices = tf.distribute.get_strategy().extended.worker_devices
    spec = tf.DeviceSpec.from_string(devices[place])
    has_accelerator = len(devices) > 1 and spec.device_type not in (None, "CPU")
    return f"/{spec.device_type}:{spec.device_index}" if has_accelerator else None


def replica_index() -> int:
    """Return the index, over all workers, of the replica that is being traced or run."""
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    return int(tf.get_static_value(replica) if tf.is_tensor(replica) else replica)


def device() -> str | None:
    """Return the accelerator of the replica that is being traced or run; None if the model chooses it."""
    current = _device.get()
    context = tf.distribute.get_replica_context()
    if current is not None or context is None or not tf.distribute.has_strategy():
        return current
    count = len(tf.distribute.get_strategy().extended.worker_devices)
    return accelerator_of(replica_index() % count if count > 1 else 0)


@contextmanager
def use_device(name: str | None) -> Iterator[None]:
    """Let `device` return `name` in this context."""
    token = _device.set(name)
    try:
        yield
    finally:
        _device.reset(token)


def check(optimizer: Any = None, loss: Any = None) -> None:
    """Check that the current strategy, the optimizer and the loss can train distributed.

    Args:
        optimizer: Optimizer of the model, if any.
        loss: Loss of the model, or a nested structure of losses.

    Raises:
        ValueError: A `keras.distribution` is set, which Keras' TensorFlow backend ignores; or, under a strategy, the
            optimizer accumulates gradients (https://github.com/keras-team/keras/issues/20582), or a loss is a sum,
            which Keras does not divide by the number of replicas as it does means.
    """
    if keras.distribution.distribution() is not None:
        raise ValueError(
            "a keras.distribution is set, which TensorFlow ignores: every process would train on its own. Call "
            "keras.distribution.set_distribution(None), and create the model in the scope of a tf.distribute strategy."
        )
    steps = getattr(optimizer, "gradient_accumulation_steps", None)
    if steps and tf.distribute.has_strategy():
        raise ValueError(
            f"the optimizer has gradient_accumulation_steps={steps}, which fails in Keras under a tf.distribute "
            "strategy. Remove it, and use accumulate= of tfbig.training.Loop, or --accumulate of train.py."
        )
    sums = [one for one in keras.tree.flatten(loss) if getattr(one, "reduction", None) == "sum"]
    if sums and tf.distribute.has_strategy():
        raise ValueError(
            f"the loss {sums[0].name} has reduction='sum', with which replicas do not equal one model with all of "
            "their batches. Use reduction='sum_over_batch_size'."
        )


def check_fit(model: Any) -> None:
    """Check that `fit` does not run on several machines, where Keras fails (keras-team/keras issue 20585).

    See https://github.com/keras-team/keras/issues/20585.

    Raises:
        ValueError: The model was created in the scope of a `MultiWorkerMirroredStrategy`.
    """
    strategy = keras_internals.strategy_of(model)
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        raise ValueError(
            f"'{model.name}': Keras' fit and evaluate cannot run under MultiWorkerMirroredStrategy. Train with "
            "tfbig.training.Loop, or with train.py --strategy multiworker."
        )

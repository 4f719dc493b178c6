"""Training steps of a loss over a whole risk set, whose members several workers share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfbig.survival.risk_set_gradient import Passes
from tfbig.system import keras_internals
from tfbig.training.gradient_sums import Sums
from tfbig.training.replicas import Replicas
from tfbig.training.risk_sets import Members, Observations, RiskSets, is_informative
from tfbig.training.single_process import Batches


class SharedRiskSets(RiskSets):
    """One of several workers of a model of risks, each a process with one replica.

    All workers read the handles of each risk set. Each computes its share of the members, every `workers`-th; risks
    are exchanged between the passes, and gradients after them:

        risks = sum over workers of (risks of its members, 0 for others)        # [n]
        gradient = sum over workers of (sum over its members k of cotangents[k] * gradient of risk k)

    The gradient equals that of `RiskSets` for any number of workers, except with random layers: all workers draw the
    same numbers for their first members, for their second members, and so on. Moving statistics are averaged over
    workers. A validation is shared member by member.

    If one worker cannot read a member, all workers skip its risk set.

    Args:
        model: Compiled model, with one risk for each member, created in the scope of the strategy.
        observations: Function from labels to times and events.
        read: Function from the handle of a member to an input `[1, ...]` of the model; by default the model reads
            handles.

    Raises:
        ValueError: This process has several replicas, or a BatchNormalization is synchronized: members are not
            computed at the same time.
    """

    def __init__(
        self,
        model: keras.Model,
        observations: Observations,
        read: Callable[[Any], Any] | None = None,
    ) -> None:
        _check(model)
        self._replicas = Replicas(model)
        super().__init__(model, observations, read)
        self.collective = self._workers = self._replicas.collective
        self._rank = self._workers.local_replicas.start
        self.prepare_second_pass = self._exchange
        self._risk_set: _RiskSet | None = None
        self._steps = 0  # members of a validation
        self._tested_members: list[int] = []  # those of this worker

    def reset(self, steps: int) -> None:
        """Reset the metrics, and forget the risks of the last validation."""
        super().reset(steps)
        self._steps, self._tested_members = steps, []

    def prepare(self, batches: Batches, specs: Any) -> Callable[[], dict[str, Any]]:
        """Return the first pass over the members of this worker; its logs are empty if the risk set has no gradient."""
        ((handles, labels, *_),) = batches
        self._create_metrics(labels)

        def first_pass() -> dict[str, Any]:
            self._risk_set = None
            if not is_informative(*self.observations(labels)):
                return {}
            own = range(self._rank, len(labels), self._workers.replicas)
            with self._as_replica():
                passes = Passes(self.model, Members([handles[k] for k in own], self.read))
                found = passes.risks()
            risks = np.zeros(len(labels))
            risks[own] = found
            dtype = found[0].dtype if found else tf.float64
            self._risk_set = _RiskSet(passes, own, risks, dtype, labels)
            return {"members": len(own)}

        return first_pass

    def _create_metrics(self, labels: Any) -> None:
        with self._replicas.strategy.scope():
            super()._create_metrics(labels)

    def _exchange(self) -> Callable[[], dict[str, Any]]:
        """Exchange the risks, and return the second pass, which computes gradients and returns logs.

        Its logs are empty if another worker has skipped this set.
        """
        risk_set, self._risk_set = self._risk_set, None
        (incomplete,) = self._workers.any(risk_set is None)
        if incomplete or risk_set is None:
            return dict
        passes, own, own_risks, dtype, labels = risk_set
        risks = tf.cast(self._workers.total(own_risks), dtype)

        def second_pass() -> dict[str, Any]:
            with self._as_replica():
                return self._second_pass(passes, risks, own, labels)

        return second_pass

    def apply(self) -> None:
        """Update the weights of all workers with the sum of their gradients."""
        self._replicas.set_local_sums([self.accumulated])
        self._replicas.apply()
        self.accumulated = Sums()

    def finalize(self) -> None:
        """Set the final weights, such as the averages of an optimizer with `use_ema`."""
        self._replicas.finalize()

    def prepare_test(self, batches: Batches, specs: Any, step: int) -> Callable[[], dict[str, Any]]:
        """Return the test step on one member, which one of the workers computes.

        Raises:
            ValueError: The batch has more than one member.
        """
        ((_, labels, *_),) = batches
        if len(labels) != 1:
            raise ValueError(
                f"a batch of the validation has {len(labels)} members; expected 1, so that workers can share them."
            )
        run = super().prepare_test(batches, specs, step)
        if step % self._workers.replicas != self._rank:
            return dict

        def test() -> dict[str, Any]:
            with self._as_replica():
                logs = run()
            self._tested_members.append(step)
            return logs

        return test

    def metric_values(self, variables: dict[str, Any]) -> dict[str, Any]:
        """Return the values of metric variables, summed over all workers."""
        return self._replicas.metric_values(variables)

    def _metrics(self) -> dict[str, float]:
        return self._replicas.results()

    def _observed(self) -> tuple[np.ndarray, ...]:
        """Return the risks, times and events that all workers have tested, in the order of the validation."""
        table = np.zeros([4, self._steps])
        for index, member in zip(self._tested_members, self._tested, strict=True):
            table[:, index] = [*np.concatenate(member), 1]
        risks, times, events, tested = self._workers.total(table)
        inside = tested > 0
        return (risks[inside], times[inside], events[inside]) if inside.any() else ()

    @contextmanager
    def _as_replica(self) -> Iterator[None]:
        """Run as the replica of this worker, whose variables are read and changed without the others."""
        with tf.distribute.ReplicaContext(self._replicas.strategy, self._rank):
            yield


class _RiskSet(NamedTuple):
    """A risk set after its first pass."""

    passes: Passes
    own_members: range
    """Numbers of the members of this worker."""
    risks: np.ndarray
    """Risks of these members, and 0 for the others."""
    dtype: tf.DType
    """Type of the risks in the loss."""
    labels: Any
    """Labels of all members."""


def _check(model: keras.Model) -> None:
    if len(keras_internals.strategy_of(model).extended.worker_devices) > 1:
        raise ValueError(
            f"'{model.name}': several devices of one process share a risk set one after the other, which saves no "
            "time. Start a process for each device, or give the model all devices without a strategy."
        )
    layers = keras_internals.inner_layers(model)
    if any(getattr(layer, "synchronized", False) for layer in layers):
        raise ValueError(
            f"'{model.name}': has a BatchNormalization with synchronized=True, but workers compute the members of a "
            "risk set at different times. Set synchronized=False."
        )

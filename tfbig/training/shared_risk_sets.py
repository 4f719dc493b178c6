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

    So the gradient is that of `RiskSets`, whatever the number of workers, but for random layers: a worker draws for
    its first member what the others draw for theirs. A validation is shared member by member.

    A member that one worker cannot read leaves out its set on all of them.

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
        self._team = Replicas(model)
        super().__init__(model, observations, read)
        self.chief, self.single_worker = self._team.chief, self._team.single_worker
        self._number, self._workers = self._team.local_replicas.start, self._team.replicas
        self.prepare_second_pass = self._exchange
        self._set: _RiskSet | None = None
        self._validated: dict[bytes, int] = {}  # place of each member of a validation
        self._places: list[int] = []  # of the members that this worker has tested

    def prepare(self, batches: Batches, specs: Any) -> Callable[[], dict[str, Any]]:
        """Return the first pass over the members of this worker; without logs, the set teaches nothing."""
        ((handles, labels, *_),) = batches
        self._tested, self._places, self._validated = [], [], {}
        with self._replica():
            self._create_metrics(labels)

        def first_pass() -> dict[str, Any]:
            self.skip()
            if not is_informative(*self.observations(labels)):
                return {}
            own = range(self._number, len(labels), self._workers)
            with self._replica():
                passes = Passes(self.model, Members([handles[k] for k in own], self.read))
                self._set = _RiskSet(passes, own, passes.risks(), labels)
            return {"members": len(own)}

        return first_pass

    def skip(self) -> None:
        """Discard the risks and the gradients of the last set."""
        super().skip()
        self._set = None

    def _exchange(self) -> Callable[[], dict[str, Any]]:
        """Exchange the risks, and return the second pass, which computes gradients and returns logs.

        It returns no logs if another worker has skipped this set.
        """
        (incomplete,) = self.any_worker(self._set is None)
        if incomplete or self._set is None:
            self.skip()
            return dict
        passes, own, found, labels = self._set
        known = np.zeros(len(labels))
        known[own] = found
        risks = tf.cast(self._team.total(known), found[0].dtype if found else tf.float32)

        def second_pass() -> dict[str, Any]:
            with self._replica():
                return self._learn(passes, risks, own, labels)

        return second_pass

    def apply(self) -> None:
        """Update the weights of all workers with the sum of their gradients."""
        self._team.set_local_sums([self._sums])
        self._team.apply()
        self._sums = Sums()

    def finalize(self) -> None:
        """Set the final weights, such as the averages of an optimizer with `use_ema`."""
        self._team.finalize()

    def prepare_test(self, batches: Batches, specs: Any) -> Callable[[], dict[str, Any]]:
        """Return the test step on one member, which one of the workers computes."""
        ((handles, *_),) = batches
        place = self._validated.setdefault(handles.numpy()[0], len(self._validated))
        run = super().prepare_test(batches, specs)
        if place % self._workers != self._number:
            return dict

        def test() -> dict[str, Any]:
            with self._replica():
                logs = run()
            self._places.append(place)
            return logs

        return test

    def metric_values(self, variables: dict[str, Any]) -> dict[str, Any]:
        """Return the values of metric variables, summed over all workers."""
        return self._team.metric_values(variables)

    def any_worker(self, *flags: bool) -> tuple[bool, ...]:
        """Return, for each flag, whether it is true on any worker."""
        return self._team.any_worker(*flags)

    def broadcast(
        self, text: str, arrays: dict[str, np.ndarray]
    ) -> tuple[str, dict[str, np.ndarray]]:
        """Return the text and arrays of the chief."""
        return self._team.broadcast(text, arrays)

    def _metrics(self) -> dict[str, float]:
        return self._team.results()

    def _observed(self) -> tuple[np.ndarray, ...]:
        """Return the risks, times and events that all workers have tested, in the order of the validation."""
        if not self._validated:
            return ()
        table = np.zeros([4, len(self._validated)])
        for place, member in zip(self._places, self._tested, strict=True):
            table[:, place] = [*np.concatenate(member), 1]
        risks, times, events, tested = self._team.total(table)
        return risks[tested > 0], times[tested > 0], events[tested > 0]

    @contextmanager
    def _replica(self) -> Iterator[None]:
        """Run as the replica of this worker, whose variables are read and changed without the others."""
        with tf.distribute.ReplicaContext(self._team.strategy, self._number):
            yield


class _RiskSet(NamedTuple):
    """A risk set after its first pass."""

    passes: Passes
    own: range
    """Numbers of the members of this worker."""
    risks: list[tf.Tensor]
    """Risks of these members."""
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

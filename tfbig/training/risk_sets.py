"""Training steps of a loss over a whole risk set, whose members are computed one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfbig import survival
from tfbig.survival.risk_set_gradient import Passes, loss_and_cotangents
from tfbig.system import keras_internals, signals
from tfbig.training.single_process import Batches, Single, as_numbers

Observations = Callable[[Any], tuple[np.ndarray, np.ndarray]]
"""Function from labels `[n, ...]` to times `[n]` and events `[n]`."""


class RiskSets(Single):
    """The only worker of a model of risks, which trains on one risk set at a time with Cox's loss.

    `SharedRiskSets` is one of several workers.

    A batch is a risk set: handles `[n]` of its members, and labels. The gradient is exact, in the memory of one member
    (`tfbig.survival.risk_set_gradient`); a stop within a step undoes the step. A risk set without an event that another
    member has survived or was censored after has no gradient: it makes no step, and has no part in the metrics.

    The loss of an epoch is that of all risk sets, for each event; the loss of a validation is that of all its members
    as one risk set.

    Args:
        model: Compiled model, with one risk for each member.
        observations: Function from labels to times and events.
        read: Function from the handle of a member to an input `[1, ...]` of the model; by default the model reads
            handles.
    """

    def __init__(
        self,
        model: keras.Model,
        observations: Observations,
        read: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(model)
        self.observations = observations
        self.read = read or (lambda handle: handle[None])
        self._tested: list[tuple[np.ndarray, ...]] = []  # risks, times and events of a validation
        self._has_metrics = False

    def reset(self, steps: int) -> None:
        """Reset the metrics, and forget the risks of the last validation."""
        super().reset(steps)
        self._tested = []

    def prepare(self, batches: Batches, specs: Any) -> Callable[[], dict[str, Any]]:
        """Return the first phase of the step on a risk set, which computes its gradient and returns logs."""
        ((handles, labels, *_),) = batches
        times, events = self.observations(labels)
        self._create_metrics(labels)

        def first_phase() -> dict[str, Any]:
            if not is_informative(times, events):
                return {}
            passes = Passes(self.model, Members(handles, self.read))
            return self._second_pass(passes, passes.risks(), range(len(labels)), labels)

        return first_phase

    def _create_metrics(self, labels: Any) -> None:
        """Create the variables of the metrics, which a checkpoint of the middle of an epoch restores."""
        if not self._has_metrics:
            keras_internals.build_metrics(self.model, labels[:1], tf.zeros([1, 1]))
        self._has_metrics = True

    def _second_pass(
        self, passes: Passes, risks: Sequence[Any], own_members: Sequence[int], labels: Any
    ) -> dict[str, Any]:
        """Take the second pass, and return logs.

        Args:
            passes: Passes over the members of this worker, after the first.
            risks: Risks of all members.
            own_members: Numbers of the members of this worker, of which there may be none.
            labels: Labels of all members.
        """
        model, seen = self.model, {}

        def loss(*data: Any) -> tf.Tensor:
            seen["loss"] = survival.cox_loss(*data)
            return model.optimizer.scale_loss(seen["loss"])

        times, events = self.observations(labels)
        _, cotangents = loss_and_cotangents(risks, times, events, loss)
        gradients = passes.gradients([cotangents[k] for k in own_members])
        if self.collective.chief:
            keras_internals.track_loss(model, seen["loss"], int(events.sum()))
        logs: dict[str, Any] = {}
        if len(own_members):
            found = tf.stack([risks[k] for k in own_members])[:, None]
            logs = model.compute_metrics(None, tf.gather(labels, own_members), found, None)
        self.accumulated = self.accumulated.with_more(gradients, len(labels))
        return {**logs, "loss": seen["loss"]}

    def prepare_test(self, batches: Batches, specs: Any, step: int) -> Callable[[], dict[str, Any]]:
        """Return the test step, which updates the metrics and remembers the risks."""
        ((handles, labels, *_),) = batches
        self._create_metrics(labels)

        def test() -> dict[str, Any]:
            members = Members(handles, self.read)
            risks = tf.concat([self.model(each, training=False) for each in members], 0)
            logs: dict[str, Any] = self.model.compute_metrics(None, labels, risks, None)
            self._tested.append((np.asarray(risks)[:, 0], *self.observations(labels)))
            return logs

        return test

    def results(self) -> dict[str, float]:
        """Return the metrics since they were reset; of a validation with the loss of all its members."""
        logs = self._metrics()
        if tested := self._observed():
            risks, times, events = tested
            logs |= as_numbers({"loss": survival.cox_loss(risks, times, events)})
        return logs

    def _metrics(self) -> dict[str, float]:
        return super().results()

    def _observed(self) -> tuple[np.ndarray, ...]:
        """Return the risks, times and events of a validation so far; nothing without one."""
        return tuple(np.concatenate(each) for each in zip(*self._tested, strict=True))


def is_informative(times: Any, events: Any) -> bool:
    """Return whether times and events `[n]` have an event while another member is under observation."""
    times, events = np.asarray(times), np.asarray(events, bool)
    num_at_risk = (times[None] >= times[:, None]).sum(1)
    return bool((events & (num_at_risk > 1)).any())


class Members:
    """Inputs of the model, read when they are asked for, as often as they are walked through."""

    def __init__(self, handles: Any, read: Callable[[Any], Any]) -> None:
        self.handles, self.read = handles, read

    def __iter__(self) -> Iterator[Any]:
        for handle in self.handles:
            signals.check()
            yield self.read(handle)

"""The gradient of a loss over a whole risk set, whose members are computed one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import sqrt
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfbig.errors import NonFiniteError
from tfbig.survival.cox import cox_loss
from tfbig.survival.observations import check_observations, shape_of
from tfbig.system import keras_internals

NAME = "risk_set_gradient"

Loss = Callable[[tf.Tensor, Any, Any], tf.Tensor]
"""Function of risks `[n]`, times `[n]` and events `[n]` that returns a scalar."""


def risk_set_gradient(
    model: keras.Model,
    members: Iterable[Any],
    times: Any,
    events: Any,
    loss: Loss = cox_loss,
    training: bool = True,
) -> tuple[tf.Tensor, list[tf.Tensor | None]]:
    """Compute a loss of all risks and its exact gradient in the memory of one member.

    A loss like Cox's couples all members, while the risk of each depends on that member alone. So the risks are
    computed twice, and the gradient is

        risks = [model(member) for member in members]                # nothing is kept for a backward pass
        cotangents = gradient(loss(risks, times, events), risks)     # [n]
        sum over k of cotangents[k] * gradient(model(members[k]), model.trainable_variables)

    Gao et al., "Scaling deep contrastive learning batch size under memory limited setup" (GradCache), RepL4NLP 2021,
    compute contrastive losses so. It takes one more forward pass than a batch would; memory does not grow with the
    number of members but for their risks.

    The second pass repeats the first: variables that a forward pass changes (seeds of random layers, Keras' global
    seed, moving statistics) are set back to their values before the first pass, and change in the second pass as they
    did in the first. Random layers so draw the same masks, and after the call these variables are as after one pass
    over the members. A BatchNormalization in training mode normalises each member by that member's own statistics:
    the gradient is that of `[model(member, training=True) for member in members]`, not of one batch of all members.

    Losses that layers add (regularisers, `add_loss`) do not depend on the risk set and are not included, nor is the
    weight decay of an optimizer.

    Args:
        model: Keras model that gives one risk for a member: an output of shape `[1, 1]`, `[1]` or `[]`. Streamed and
            MIL models are allowed.
        members: Inputs of the model, each with its batch axis (`[1, ...]`), which can be walked through twice with the
            same result: a list, or a dataset that reads members when they are asked for; no iterator.
        times: Times `[n]`, one for each member, as in `cox_loss`.
        events: Events `[n]`, each 0 or 1, as in `cox_loss`.
        loss: Function of risks, times and events; by default `cox_loss` with Efron's ties.
        training: Run the model in training mode.

    Returns:
        The loss, a scalar tensor, and a list of gradients, one for each of `model.trainable_variables`: None if no
        risk depends on the variable, as from `tf.GradientTape`.

    Raises:
        ValueError: Times or events are wrong, as in `cox_loss`; their number is not that of the members; the model
            is not built, or gives more than one number; or members are an iterator.
        NonFiniteError: A risk is NaN or infinite; found before the second pass.
        RuntimeError: The risk of a member is another one in the second pass: the model draws random numbers other than
            by Keras' seed generators, or members are not the same again. Or the function is called in a graph.

    Example:
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> members = [np.array([[0.0, 1.0]]), np.array([[1.0, 0.0]]), np.array([[1.0, 1.0]])]
        >>> loss, gradients = tfbig.survival.risk_set_gradient(model, members, [3.0, 1.0, 2.0], [1, 1, 0])
        >>> [tuple(gradient.shape) for gradient in gradients]
        [(2, 1), (1,)]
    """
    _check_arguments(model, members, times, events)
    passes = Passes(model, members, training)
    risks = passes.risks()
    _check_number(len(risks), shape_of(times)[0])
    value, cotangents = loss_and_cotangents(risks, times, events, loss)
    return value, passes.gradients(cotangents)


class Passes:
    """The two passes over members of a risk set, or over those that one worker computes.

    Args:
        model: Model that gives one risk for a member.
        members: Inputs of the model, which can be walked through twice with the same result.
        training: Run the model in training mode.
    """

    def __init__(self, model: keras.Model, members: Iterable[Any], training: bool = True) -> None:
        self.model, self.members, self.training = model, members, training
        self._state = _State(model)
        self._risks: list[tf.Tensor] = []

    def risks(self) -> list[tf.Tensor]:
        """Compute the risk of each member, a scalar; nothing is kept for a backward pass."""
        self._state.restore()
        self._risks = [_risk(self.model, member, self.training) for member in self.members]
        return self._risks

    def gradients(self, cotangents: Any) -> list[tf.Tensor | None]:
        """Run each member again, and return the sum of its gradients times its cotangent.

        Args:
            cotangents: Gradient of the loss with respect to the risk of each member, `[n]`.
        """
        self._state.restore()
        variables = keras_internals.tensors_of(self.model.trainable_variables)
        sums: list[tf.Tensor | None] = [None] * len(variables)
        count = 0
        for k, member in enumerate(self.members):
            with tf.GradientTape() as tape:
                risk = _risk(self.model, member, self.training)
            _check_same(k, risk, self._risks)
            gradients = tape.gradient(risk, variables, cotangents[k])
            sums = [_sum(old, new) for old, new in zip(sums, gradients, strict=True)]
            count = k + 1
        _check_count(count, len(self._risks))
        return sums


def loss_and_cotangents(
    risks: Sequence[Any], times: Any, events: Any, loss: Loss = cox_loss
) -> tuple[tf.Tensor, tf.Tensor]:
    """Compute the loss of all risks, and its gradient with respect to each, `[n]`.

    Args:
        risks: Risks `[n]` of all members.
        times: Times `[n]`.
        events: Events `[n]`.
        loss: Function of risks, times and events.

    Raises:
        NonFiniteError: A risk is NaN or infinite.
    """
    stacked = _finite(risks)
    with tf.GradientTape() as tape:
        tape.watch(stacked)
        value = loss(stacked, times, events)
    return value, tape.gradient(value, stacked, unconnected_gradients="zero")


def _check_arguments(model: keras.Model, members: Any, times: Any, events: Any) -> None:
    if not tf.executing_eagerly():
        raise RuntimeError(
            f"{NAME}: called in a graph, expected eager mode. Call it outside of tf.function."
        )
    if isinstance(members, Iterator):
        raise ValueError(
            f"{NAME}: members are an iterator, which can be walked through only once. Give a list or a dataset."
        )
    if not model.built:
        raise ValueError(
            f"{NAME}: model '{model.name}' has no variables yet, expected a built model. Call it on one member first."
        )
    check_observations(NAME, times, events)


class _State:
    """Values of the variables that a forward pass may change."""

    def __init__(self, model: keras.Model) -> None:
        seed = keras_internals.global_seed_generator().state
        variables = {id(v): v for v in [*model.non_trainable_variables, seed]}
        self._variables = keras_internals.local_tensors_of(variables.values())
        self._values = [tf.identity(v) for v in self._variables]

    def restore(self) -> None:
        """Set the variables to the values that they had."""
        for variable, value in zip(self._variables, self._values, strict=True):
            variable.assign(value)


def _risk(model: keras.Model, member: Any, training: bool) -> tf.Tensor:
    """Compute the risk of one member, a scalar of at least 32 bits."""
    output = model(member, training=training)
    if not tf.is_tensor(output) or output.shape.num_elements() != 1:
        found = f"shape {tuple(output.shape)}" if tf.is_tensor(output) else type(output).__name__
        raise ValueError(
            f"{NAME}: the output of '{model.name}' for one member is {found}, expected one risk, [1, 1]. End the model "
            "with one unit, and give members one at a time."
        )
    risk = tf.reshape(output, [])
    return tf.cast(risk, tf.float32) if risk.dtype.size < 4 else risk


def _check_number(members: int, times: int | None) -> None:
    if members != times:
        raise ValueError(
            f"{NAME}: there are {members} members and {times} times, expected one time and one event for each member."
        )


def _finite(risks: Sequence[Any]) -> tf.Tensor:
    """Stack the risks of all members, `[n]`, if they are finite."""
    wrong = np.flatnonzero(~np.isfinite(risks))
    if wrong.size:
        raise NonFiniteError(
            f"{NAME}: the risk of member {wrong[0]} is {float(risks[wrong[0]])} ({wrong.size} of {len(risks)} are not "
            "finite), expected a finite number. Check the inputs, or lower the learning rate."
        )
    return tf.stack(risks)


def _check_count(count: int, before: int) -> None:
    if count != before:
        raise RuntimeError(
            f"{NAME}: there were {before} members in the first pass and {count} in the second, expected the same "
            "members twice."
        )


def _check_same(k: int, risk: tf.Tensor, risks: Sequence[tf.Tensor]) -> None:
    """Compare a risk with that of the first pass, to half the digits: accelerators may sum in another order."""
    _check_count(max(k + 1, len(risks)), len(risks))
    before = float(risks[k])
    allowed = sqrt(np.finfo(risk.dtype.as_numpy_dtype).eps) * max(1.0, abs(before))
    if not abs(float(risk) - before) <= allowed:
        raise RuntimeError(
            f"{NAME}: the risk of member {k} was {before} in the first pass and is {float(risk)} in the second. Draw "
            "random numbers by Keras' random layers or a keras.random.SeedGenerator of the model, and give the same "
            "members twice (augment them before)."
        )


def _sum(old: tf.Tensor | None, new: Any) -> tf.Tensor | None:
    if new is None:
        return old
    new = tf.convert_to_tensor(new)  # rows of an embedding
    return new if old is None else old + new

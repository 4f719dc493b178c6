"""The update of the weights by an optimizer, compiled with XLA as one program.

Keras' optimizers run about thirty operations for each variable. On an accelerator, each is launched by itself.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import keras
import tensorflow as tf

from tfbig.system import keras_internals, traces, xla

_UPDATES: Final[weakref.WeakKeyDictionary[Any, dict[Any, Any]]] = weakref.WeakKeyDictionary()
"""The traced updates of each optimizer. Steps share them, so that XLA compiles one program for all traces."""


def find(model: keras.Model, gradients: Sequence[Any]) -> Callable[[], None] | None:
    """Return a function that updates the weights with one program; None if nothing is to be compiled.

    Nothing is compiled outside of a trace, under a strategy, with a sparse gradient, or if the variables are on
    several devices, which one program cannot reach.

    Args:
        model: The compiled model.
        gradients: Gradient per trainable variable, None for a variable without one.
    """
    present = [g for g in gradients if g is not None]
    if tf.executing_eagerly() or tf.distribute.has_strategy() or not present:
        return None
    if not all(isinstance(g, tf.Tensor) for g in present):
        return None
    if not model.optimizer.built:
        with tf.init_scope():
            model.optimizer.build(model.trainable_variables)
    device = _device(model)
    if device is None or not xla.wanted(model, device):
        return None
    trace = _traced(model, gradients, device)

    def update() -> None:
        with tf.device(device):
            trace(*present)

    return update


def _device(model: keras.Model) -> str | None:
    """Return the device of all variables that an update reads or changes; None if there are several."""
    variables = [*model.trainable_variables, *model.optimizer.variables]
    devices = {v.device for v in keras_internals.tensors_of(variables)}
    return devices.pop() if len(devices) == 1 else None


def _traced(model: keras.Model, gradients: Sequence[Any], device: str) -> Any:
    """Return the trace of an update with gradients of these types."""
    optimizer, variables = model.optimizer, model.trainable_variables
    specs = [
        None if g is None else tf.TensorSpec(v.shape, g.dtype)
        for g, v in zip(gradients, variables, strict=True)
    ]
    places = tuple(keras_internals.variable_index(optimizer, v) for v in variables)
    known = _UPDATES.setdefault(optimizer, {})
    key = (places, tuple(specs), settings(optimizer))
    if key not in known:

        def update(*present: tf.Tensor) -> None:
            left = iter(present)
            pairs = [
                (None if spec is None else next(left), v)
                for spec, v in zip(specs, variables, strict=True)
            ]
            with keras_internals.without_gradient_sums(optimizer):
                optimizer.apply_gradients(pairs)

        program = tf.function(update, autograph=False, jit_compile=True)
        with tf.init_scope(), tf.device(device):
            known[key] = traces.concrete(program, *(s for s in specs if s is not None))
    return known[key]


def settings(optimizer: Any) -> tuple[Any, ...]:
    """Return what a trace of an update contains of an optimizer besides its variables, to compare.

    Args:
        optimizer: The optimizer. Its numbers, such as `clipnorm`, and its schedule may change between two traces.
    """
    found: list[Any] = []
    for name, value in sorted(vars(optimizer).items()):
        if value is None or isinstance(value, bool | int | float | str):
            found.append((name, value))
        elif isinstance(value, keras.Optimizer):
            found.append((name, settings(value)))
        elif callable(value):
            with suppress(TypeError):
                found.append((name, weakref.ref(value)))
    return tuple(found)

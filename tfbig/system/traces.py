"""Traces of TensorFlow functions that are freed with the last reference to them.

`get_concrete_function`, and the first call of a `tf.function`, call off the deletion of the graph with its trace
(`ConcreteFunctionGarbageCollector.release`). The graphs of steps then outlive their traces.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import tensorflow as tf

from tfbig.system import tensorflow_internals

_TRACES: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def concrete(function: Any, *arguments: Any) -> Any:
    """Return the trace of a function for arguments; its graph is freed with it.

    Args:
        function: A `tf.function`.
        *arguments: As for its method `get_concrete_function`. Nothing that the graph refers to, such as a callback,
            may refer to the trace.

    Returns:
        The trace, a `tf.types.experimental.ConcreteFunction`.
    """
    with _new_gradients() as gradients:
        trace = function.get_concrete_function(*arguments)
    if trace not in _TRACES:
        _TRACES.add(trace)
        trace.tfbig_gradients = gradients
        weakref.finalize(trace, tensorflow_internals.dismantle, trace.graph).atexit = False
    return trace


def run(trace: Any, *arguments: Any) -> Any:
    """Call a trace.

    Args:
        trace: As `concrete` returns it.
        *arguments: Its arguments.

    Returns:
        Its results.
    """
    with tensorflow_internals.optimized_once():
        return trace(*arguments)


def call(function: Any, *arguments: Any) -> Any:
    """Call a `tf.function`, and free the graphs of its traces with the function.

    Args:
        function: A `tf.function`.
        *arguments: Its arguments.

    Returns:
        Its results.
    """
    count = function.experimental_get_tracing_count()
    with _new_gradients() as gradients, tensorflow_internals.optimized_once():
        results = function(*arguments)
    if function.experimental_get_tracing_count() != count:
        concrete(function, *arguments).tfbig_gradients = gradients
    return results


def custom_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `tf.custom_gradient` of a function; what its gradient refers to is freed with the trace that it is in.

    In a graph, TensorFlow registers the gradient under a new name, forever, and so keeps the graph.

    Args:
        function: As for `tf.custom_gradient`.
    """
    decorated = tf.custom_gradient(function)

    @functools.wraps(function)
    @tf.autograph.experimental.do_not_convert
    def call(*arguments: Any, **options: Any) -> Any:
        results = decorated(*arguments, **options)
        if not tf.executing_eagerly():
            name = tensorflow_internals.gradient_name(tf.nest.flatten(results)[0].op)
            _hold_gradient(name, _current_gradients())
        return results

    return call


class _Gradients(dict[str, Callable[..., Any]]):
    """Registered gradients by name, unregistered with the last reference to this dictionary."""


_STACK: Final = threading.local()
"""Its `gradients` are those of the traces in progress in this thread, the innermost one last."""


@contextmanager
def _new_gradients() -> Iterator[_Gradients]:
    """Collect the gradients of a trace that is made in a `with` block.

    The trace is to hold them: the graph must not, as they may refer to the trace.
    """
    stack = vars(_STACK).setdefault("gradients", [])
    stack.append(_Gradients())
    try:
        yield stack[-1]
    finally:
        stack.pop()


def _current_gradients() -> _Gradients:
    """Return the gradients of the trace in progress; those of a graph if that is not traced here."""
    stack = getattr(_STACK, "gradients", ())
    if stack:
        return stack[-1]
    graph = tf.compat.v1.get_default_graph()
    if not hasattr(graph, "tfbig_gradients"):
        graph.tfbig_gradients = _Gradients()
    gradients: _Gradients = graph.tfbig_gradients
    return gradients


def _hold_gradient(name: str, gradients: _Gradients) -> None:
    """Move a gradient from the registry, which refers to it by name from now on, to a dictionary."""
    gradients[name] = tensorflow_internals.registered_gradient(name)
    weak: Callable[[], Any] = weakref.ref(gradients)
    tensorflow_internals.register_gradient(name, lambda *arguments: weak()[name](*arguments))
    weakref.finalize(gradients, tensorflow_internals.unregister_gradient, name).atexit = False

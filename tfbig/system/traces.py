"""Traces of TensorFlow functions that are freed with the last reference to them.

`get_concrete_function`, and the first call of a `tf.function`, call off the deletion of the graph with its trace
(`ConcreteFunctionGarbageCollector.release`). The graphs of steps then outlive their traces.
"""

from __future__ import annotations

import weakref
from typing import Any, Final

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
    trace = function.get_concrete_function(*arguments)
    if trace not in _TRACES:
        _TRACES.add(trace)
        weakref.finalize(trace, tensorflow_internals.dismantle, trace.graph).atexit = False
    return trace


def call(function: Any, *arguments: Any) -> Any:
    """Call a `tf.function`, and free the graphs of its traces with the function.

    Args:
        function: A `tf.function`.
        *arguments: Its arguments.

    Returns:
        Its results.
    """
    count = function.experimental_get_tracing_count()
    results = function(*arguments)
    if function.experimental_get_tracing_count() != count:
        concrete(function, *arguments)
    return results

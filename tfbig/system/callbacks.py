"""Python functions that run inside TensorFlow graphs.

TensorFlow turns an error of such a function into text. The error itself waits in a table under a key that the text
contains, until the caller of the graph takes it, see `tfbig.system.tf_errors.unwrapped`.
"""

from __future__ import annotations

import re
import threading
import traceback
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, final

import tensorflow as tf

from tfbig.system import tensorflow_internals

MAX_ERRORS: Final = 64
"""Most errors that wait to be taken. Of several strips that fail at once, TensorFlow may report only one."""

REPORTED: Final = (MemoryError, NotImplementedError, ValueError, TypeError)
"""Errors that TensorFlow reports as errors of their own kind. Its kind for `StopIteration` would end a dataset."""


@tf.autograph.experimental.do_not_convert
def numpy_function(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    dtypes: Any,
    stateful: bool = True,
) -> Any:
    """Call a Python function as `tf.numpy_function`; every callback of tfbig is created here.

    Args:
        function: Function of NumPy arrays.
        inputs: Its arguments, tensors.
        dtypes: Element type of the result, or a list of such.
        stateful: As in `tf.numpy_function`.

    Returns:
        A tensor, or a list of tensors, as `tf.numpy_function`.
    """
    if tf.executing_eagerly():  # Python calls Python
        return tf.numpy_function(function, inputs, dtypes, stateful)

    call = reporting(function)
    results = tf.numpy_function(call, inputs, dtypes, stateful)
    _tie_to_graphs(call)
    return results


def reporting(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that TensorFlow calls, so that its errors can be taken.

    Args:
        function: Any function.

    Returns:
        A function that keeps an error and raises one with the key of it.
    """

    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except BaseException as error:
            raise _reported(error) from error

    return call


def _tie_to_graphs(function: Any) -> None:
    """Let the functions that are being traced hold a callback, and not TensorFlow's global graph, which never ends.

    TensorFlow only holds callbacks weakly but for a list in the outermost graph (`script_ops._internal_py_func`).
    """
    registered = tensorflow_internals.registered(function)
    graph = _hold([registered])
    held = tensorflow_internals.callbacks_of(graph)
    tensorflow_internals.set_callbacks(graph, [each for each in held if each is not registered])


def hold_those_of(trace: Any) -> None:
    """Let the functions that are being traced hold the callbacks of a trace that they call.

    Args:
        trace: A `tf.types.experimental.ConcreteFunction`.
    """
    _hold(tensorflow_internals.callbacks_of(trace.graph))


def _hold(registered: Sequence[Any]) -> Any:
    """Let all graphs that are being traced hold callbacks, and return the graph outside of them."""
    graph = tf.compat.v1.get_default_graph()
    while hasattr(graph, "outer_graph"):
        held = tensorflow_internals.callbacks_of(graph)
        tensorflow_internals.set_callbacks(graph, [*held, *registered])
        graph = graph.outer_graph
    return graph


@final
class Errors:
    """Errors of callbacks by key, until they are taken. If more than `limit` wait, the oldest are dropped.

    Args:
        limit: Most errors that wait.
    """

    def __init__(self, limit: int = MAX_ERRORS) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._waiting: OrderedDict[str, BaseException] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of errors that wait."""
        return len(self._waiting)

    def put(self, error: BaseException) -> str:
        """Keep an error, and return its key, which no other process uses either."""
        key = f"tfbig-error-{uuid.uuid4().hex}"
        with self._lock:
            self._waiting[key] = error
            while len(self._waiting) > self._limit:
                self._waiting.popitem(last=False)
        return key

    def take(self, text: str) -> BaseException | None:
        """Remove all errors whose keys are in a text, and return the first; None if there is none."""
        keys = re.findall(r"tfbig-error-[0-9a-f]{32}", text)
        with self._lock:
            errors = [self._waiting.pop(key, None) for key in keys]
        return next((error for error in errors if error is not None), None)


ERRORS: Final = Errors()
"""Errors of all callbacks of this process."""


def _reported(error: BaseException) -> Exception:
    """Keep an error of a callback, and return the error to raise in its place."""
    frames = error.__traceback__ and error.__traceback__.tb_next  # without that of the wrapper
    traceback.clear_frames(
        frames
    )  # they hold strips, which are to be freed before the error is handled
    error.__traceback__ = frames
    kind = next((kind for kind in REPORTED if isinstance(error, kind)), RuntimeError)
    return kind(f"[{ERRORS.put(error)}] {type(error).__name__}: {error}")

"""Calls to Python that copy the parts of one strip from and to stores in host memory.

A tensor, the token, keeps the changes of a sweep in order: `begin` returns it, each strip passes it through its call,
and `finish` waits for the copies of all calls. Its number is the key of the sweep. What reads a store afterwards
depends on the result of `finish` (`after`). Inside a loop, the calls to Python are declared stateless: with stateful
calls, TensorFlow would finish an iteration before it begins the next, and only one strip would run at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

import numpy as np
import tensorflow as tf

from tfbig.stores import file_pool
from tfbig.stores.pending_copies import PendingCopies
from tfbig.system import callbacks
from tfbig.system.progress import METER

COPIES: Final = PendingCopies()
"""Copies of all sweeps of this process."""

Calls = list[tuple[Callable[..., Any], Sequence[Any]]]
"""Functions of NumPy arrays, and the tensors that each is called with."""


class Reads:
    """The reads of a strip from stores in host memory: one call to Python for all of them."""

    def __init__(self) -> None:
        self._calls: Calls = []
        self._dtypes: list[tf.DType] = []
        self._results: list[tf.Tensor] = []

    def request(
        self, function: Callable[..., np.ndarray], inputs: Sequence[Any], dtype: tf.DType
    ) -> Callable[[], tf.Tensor]:
        """Request an array, and return a function that returns it once `make` has been called.

        Args:
            function: Function of the inputs that returns the array.
            inputs: Tensors.
            dtype: Element type of the array.
        """
        position = len(self._calls)
        self._calls.append((function, inputs))
        self._dtypes.append(dtype)
        return lambda: self._results[position]

    def make(self) -> None:
        """Make the call to Python."""
        if not self._calls:
            return
        flat, grouped = _flattened(self._calls)
        self._results = callbacks.numpy_function(
            lambda *arrays: [function(*group) for function, group in grouped(arrays)],
            flat,
            self._dtypes,
            stateful=False,
        )


class Changes:
    """The changes of a strip in stores in host memory: one call to Python, which copies in the background, in order.

    Args:
        token: int32 scalar, computed when the changes of the previous strip were requested.
        label: Name of the sweep in progress messages.
        index: Index of the strip.
        count: Number of strips.
    """

    def __init__(
        self, token: tf.Tensor, label: tf.Tensor, index: tf.Tensor, count: tf.Tensor
    ) -> None:
        self._token = token
        self._strip = label, index, count
        self._calls: Calls = []

    def request(self, function: Callable[..., None], inputs: Sequence[Any]) -> None:
        """Request a copy in the background; it has been made after `finish`.

        Args:
            function: Function of the inputs that changes a store.
            inputs: Tensors.
        """
        self._calls.append((function, inputs))

    def run(self, function: Callable[..., None], inputs: Sequence[Any]) -> None:
        """Call a function at once, after the calls of earlier strips.

        Args:
            function: Function of the inputs.
            inputs: Tensors.
        """

        def call(token: np.ndarray, *arrays: np.ndarray) -> np.ndarray:
            function(*arrays)
            return token

        self._token = _in_loop(call, [self._token, *inputs])

    def make(self) -> tf.Tensor:
        """Make the call to Python, which reports progress; return the token for the next strip."""
        flat, grouped = _flattened(self._calls)

        def call(
            token: np.ndarray, label: bytes, index: int, count: int, *arrays: np.ndarray
        ) -> np.ndarray:
            _submit(token, list(grouped(arrays)))
            METER.tick(label.decode(), int(index), int(count))
            return token

        return _in_loop(call, [self._token, *self._strip, *flat])


def _flattened(
    calls: Calls,
) -> tuple[list[Any], Callable[[Sequence[Any]], Iterator[tuple[Callable[..., Any], list[Any]]]]]:
    """Return the inputs of all calls, and a function that returns each function with its part of such a list."""

    def grouped(arrays: Sequence[Any]) -> Iterator[tuple[Callable[..., Any], list[Any]]]:
        remaining = iter(arrays)
        for function, inputs in calls:
            yield function, list(islice(remaining, len(inputs)))

    return [tensor for _, inputs in calls for tensor in inputs], grouped


def _in_loop(function: Callable[..., Any], inputs: list[Any]) -> tf.Tensor:
    """Call a Python function for its effect; it runs only if the returned int32 scalar is used."""
    done = callbacks.numpy_function(function, inputs, tf.int32, stateful=False)
    return tf.ensure_shape(done, [])


def begin(before: tf.Tensor) -> tf.Tensor:
    """Begin the changes of a sweep.

    Args:
        before: Any tensor, computed first.

    Returns:
        The token for the first strip, int32 scalar: the key of the sweep.
    """
    key = callbacks.numpy_function(lambda _: np.int32(COPIES.begin()), [before], tf.int32)
    return tf.ensure_shape(key, [])


def _submit(key: np.ndarray, copies: list[tuple[Callable[..., None], list[Any]]]) -> None:
    """Copy in the background, in order, while the next strip runs."""
    if copies:
        COPIES.submit(int(key), partial(_copy_all, copies))


def _copy_all(copies: list[tuple[Callable[..., None], list[Any]]]) -> None:
    for function, arrays in copies:
        function(*arrays)


def finish(done: tf.Tensor) -> tf.Tensor:
    """Wait for all changes of a sweep, and raise the error of one that failed.

    Args:
        done: The token that the last strip returned, computed when all changes have been requested.

    Returns:
        The same tensor.
    """
    return tf.ensure_shape(callbacks.numpy_function(_finish, [done], done.dtype), done.shape)


def _finish(done: np.ndarray) -> np.ndarray:
    COPIES.finish(int(done))
    file_pool.forget_all()
    return done


def after(tensors: list[tf.Tensor], done: tf.Tensor) -> list[tf.Tensor]:
    """Make tensors depend on another one.

    Args:
        tensors: The tensors.
        done: Tensor to compute first.

    Returns:
        The same tensors, available when `done` has been computed.
    """
    with tf.control_dependencies([done]):
        return [tf.identity(t) for t in tensors]

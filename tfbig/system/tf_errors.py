"""Errors raised while a TensorFlow graph runs: the original Python error, and the retry when memory runs out."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import tensorflow as tf

from tfbig import errors
from tfbig.system import callbacks, replication

OUT_OF_MEMORY = (tf.errors.ResourceExhaustedError, MemoryError)
"""Errors after which less memory may help: of TensorFlow, and of NumPy and the stores."""
SHUFFLE = 8
"""Position of `shuffle` among the arguments of `keras.Model.fit`."""


def unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that it raises the error of a callback instead of the TensorFlow error that reports it.

    Args:
        function: Any function that may run graphs with callbacks of `tfbig.system.callbacks`.

    Returns:
        A function that raises the very object that the callback raised. Its cause is the TensorFlow error, unless it
        has a cause. Errors that are not from such a callback are unchanged.
    """

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except tf.errors.OpError as error:
            original = callbacks.ERRORS.take(str(error))
            if original is None:
                raise
            if original.__cause__ is None and original.__context__ is None:
                original.__cause__ = error
        try:
            raise original  # outside of the handler, which would replace its context
        finally:
            del original  # its traceback holds this frame

    return call


def retry_with_less_memory(model: Any, work: Callable[[], Any]) -> Any:
    """Run `work`; if the device is out of memory, run it once more with half the memory for strips.

    Args:
        model: Model that `work` runs, with a method `use_less()` if it can use less memory.
        work: Function without arguments that changes nothing if it fails.

    Returns:
        The result of `work`.

    Raises:
        BudgetError: The second attempt also ran out of memory, or the model cannot use less.
    """
    run = unwrapped(work)
    try:
        return run()
    except OUT_OF_MEMORY as error:
        reason = _failed_allocation(error)
        use_less = getattr(model, "use_less", None)
        if use_less is None:
            raise errors.BudgetError(
                f"'{model.name}': out of memory: {reason}. Use smaller images or a smaller batch, or stream the model."
            ) from error
        bytes_now = use_less()
    print(
        f"out of memory: {reason}; trying again with {bytes_now} bytes for strips", file=sys.stderr
    )
    try:
        return run()
    except OUT_OF_MEMORY as error:
        raise errors.BudgetError(
            f"'{model.name}': out of memory, even with {bytes_now} bytes for strips: {_failed_allocation(error)}.",
            errors.Advice.LOWER_DEVICE,
        ) from error


def _failed_allocation(error: Exception) -> str:
    """Return the message of a MemoryError, or the part of TensorFlow's message that names the failed allocation."""
    if isinstance(error, MemoryError):
        return f"MemoryError: {error}"
    match = re.search(
        r"MemoryError: .*|OOM when allocating .*|[Ff]ailed to allocate .*", str(error)
    )
    return match[0].strip() if match else type(error).__name__


class UnwrappedCall:
    """Mixin, placed before the Keras class, whose calls raise errors of callbacks."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the layer or the model."""
        return unwrapped(super().__call__)(*arguments, **options)  # type: ignore[misc]


class Unwrapped(UnwrappedCall):
    """Mixin, placed before the Keras class, whose calls, `fit`, `evaluate` and `predict` raise errors of callbacks."""

    def fit(self, *arguments: Any, **options: Any) -> Any:
        """Train as `keras.Model.fit`, after refusing a strategy under which `fit` does not work.

        A dataset decides the order of its batches: `shuffle` is False then, where Keras 3.15 warns of its own default.
        """
        replication.check_fit(self)
        data = arguments[0] if arguments else options.get("x")
        if isinstance(data, tf.data.Dataset) and len(arguments) <= SHUFFLE:
            options.setdefault("shuffle", False)
        return super().fit(*arguments, **options)  # type: ignore[misc]

    def evaluate(self, *arguments: Any, **options: Any) -> Any:
        """Evaluate as `keras.Model.evaluate`, after refusing a strategy under which it does not work."""
        replication.check_fit(self)
        return super().evaluate(*arguments, **options)  # type: ignore[misc]

    def _make_function(self, step_function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return unwrapped(super()._make_function(step_function))  # type: ignore[misc]

    def make_predict_function(self, force: bool = False) -> None:
        """Create the function that `predict` runs."""
        previous = getattr(self, "predict_function", None)
        super().make_predict_function(force)  # type: ignore[misc]
        if self.predict_function is not previous:
            self.predict_function: Any = unwrapped(self.predict_function)

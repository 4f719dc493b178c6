"""Errors raised while a TensorFlow graph runs, raised again as the original Python error."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import tensorflow as tf

from tfbig import errors
from tfbig.system import replication


def unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that it raises the error of tfbig instead of the TensorFlow error around it."""

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except tf.errors.OpError as error:
            original = _quoted(str(error))
            if original is None:
                raise
            raise original from error

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
    try:
        return work()
    except tf.errors.ResourceExhaustedError as error:
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
        return work()
    except tf.errors.ResourceExhaustedError as error:
        raise errors.BudgetError(
            f"'{model.name}': out of memory, even with {bytes_now} bytes for strips: {_failed_allocation(error)}. "
            "Lower `device` of the Budget (it is now half of what it was), use smaller images or a smaller batch, or "
            "end other processes that use the device."
        ) from error


def _failed_allocation(error: tf.errors.OpError) -> str:
    """Return the part of TensorFlow's message that names the failed allocation."""
    match = re.search(
        r"MemoryError: .*|OOM when allocating .*|[Ff]ailed to allocate .*", str(error)
    )
    return match[0].strip() if match else type(error).__name__


class Unwrapped:
    """Mixin, placed before the Keras class, whose calls, `fit`, `evaluate` and `predict` raise errors of tfbig."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the model."""
        return unwrapped(super().__call__)(*arguments, **options)  # type: ignore[misc]

    def fit(self, *arguments: Any, **options: Any) -> Any:
        """Train as `keras.Model.fit`, after refusing a strategy under which `fit` does not work."""
        replication.check_fit(self)
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


def _quoted(message: str) -> Exception | None:
    """Return the error of tfbig quoted in a TensorFlow message (a traceback follows it), or None."""
    kinds = (
        *(errors.BudgetError, errors.SourceError, errors.NonFiniteError, errors.Stopped),
        ValueError,
    )
    for kind in kinds:
        _, name, text = message.partition(f"{kind.__name__}: ")
        if name and "/tfbig/" in message.replace(os.sep, "/"):
            return kind(text.split("\nTraceback", 1)[0].strip())
    return None

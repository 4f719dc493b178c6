"""What fails while a graph runs, raised as the error that it is."""

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
    """`function`, raising what tfbig raised while a graph ran instead of TensorFlow's error around it."""

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except tf.errors.OpError as error:
            own = _quoted(str(error))
            if own is None:
                raise
            raise own from error

    return call


def or_with_less(model: Any, work: Callable[[], Any]) -> Any:
    """What work with a model gives; where a device has too little memory, once more with half of it for strips.

    Args:
        model: that has a method `use_less()`, if it can use less.
        work: changes nothing if it fails.

    Raises:
        BudgetError: the device has not enough for that either.
    """
    try:
        return work()
    except tf.errors.ResourceExhaustedError as error:
        reason = _lacking(error)
        use_less = getattr(model, "use_less", None)
        if use_less is None:
            raise errors.BudgetError(
                f"'{model.name}': out of memory: {reason}. Use smaller images or a smaller batch, or stream the model."
            ) from error
        bytes_now = use_less()
    print(f"out of memory: {reason}; once more with {bytes_now} bytes for strips", file=sys.stderr)
    try:
        return work()
    except tf.errors.ResourceExhaustedError as error:
        raise errors.BudgetError(
            f"'{model.name}': out of memory, also with {bytes_now} bytes for strips: {_lacking(error)}. Lower `device` "
            "of the Budget further (now half of what it was), use smaller images or a smaller batch, or end what else "
            "uses the device."
        ) from error


def _lacking(error: tf.errors.OpError) -> str:
    """The part of TensorFlow's message that says what found no memory."""
    found = re.search(
        r"MemoryError: .*|OOM when allocating .*|[Ff]ailed to allocate .*", str(error)
    )
    return found[0].strip() if found else type(error).__name__


class Unwrapped:
    """A Keras model whose calls, `fit`, `evaluate` and `predict` raise our own errors; mixed in before Keras' class."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return unwrapped(super().__call__)(*arguments, **options)  # type: ignore[misc]

    def fit(self, *arguments: Any, **options: Any) -> Any:
        replication.check_fit(self)
        return super().fit(*arguments, **options)  # type: ignore[misc]

    def evaluate(self, *arguments: Any, **options: Any) -> Any:
        replication.check_fit(self)
        return super().evaluate(*arguments, **options)  # type: ignore[misc]

    def _make_function(self, step_function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return unwrapped(super()._make_function(step_function))  # type: ignore[misc]

    def make_predict_function(self, force: bool = False) -> None:
        made = getattr(self, "predict_function", None)
        super().make_predict_function(force)  # type: ignore[misc]
        if self.predict_function is not made:
            self.predict_function: Any = unwrapped(self.predict_function)


def _quoted(message: str) -> Exception | None:
    """The error of ours that a message of TensorFlow quotes, with its traceback after it."""
    ours = (
        *(errors.BudgetError, errors.SourceError, errors.NonFiniteError, errors.Stopped),
        ValueError,
    )
    for kind in ours:
        _, name, text = message.partition(f"{kind.__name__}: ")
        if name and "/tfbig/" in message.replace(os.sep, "/"):
            return kind(text.split("\nTraceback", 1)[0].strip())
    return None

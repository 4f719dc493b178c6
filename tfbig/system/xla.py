"""XLA: whether a model asks for it, and whether it works on the machine."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import tensorflow as tf

from tfbig.system import backend, tensorflow_internals


class Choice:
    """Mixin, placed before the Keras class: tfbig compiles what it can of the model, and Keras no step of it.

    Attributes:
        jit_compile: What `compile(jit_compile=)` has set: True, False, or None for `"auto"`. Only True compiles strips.
    """

    jit_compile: bool | None = None

    def _resolve_auto_jit_compile(self) -> None:
        """Leave `compile(jit_compile="auto")` as it is; False would turn off XLA altogether."""

    def _make_function(self, step_function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        with self._without_xla():
            return super()._make_function(step_function)  # type: ignore[misc]

    def make_predict_function(self, force: bool = False) -> Any:
        """Make the function that `predict` calls. Args: as in `keras.Model`."""
        with self._without_xla():
            return super().make_predict_function(force)  # type: ignore[misc]

    @contextmanager
    def _without_xla(self) -> Iterator[None]:
        """Keep Keras from compiling functions that it makes in a `with` block: a step may call Python."""
        asked = self.jit_compile
        self.jit_compile = None if asked else asked
        try:
            yield
        finally:
            self.jit_compile = asked


def wanted(model: Any, device: str | None) -> bool:
    """Return whether XLA is to compile what a model runs on a device.

    It is if `compile(jit_compile=True)` asks for it, or by default on an accelerator; and if it works there.

    Args:
        model: The compiled model.
        device: Name of the device; None for the CPU.
    """
    asked = model.jit_compile
    if asked is False or not (asked or backend.is_gpu(device)):
        return False
    return works(device or backend.HOST)


def works(device: str) -> bool:
    """Return whether XLA compiles and runs programs on a device; the first time, one line says if not.

    It never does with `tf.config.experimental.enable_op_determinism()`, as in Keras.

    Args:
        device: Name of the device.
    """
    return not tensorflow_internals.is_deterministic() and _compiles(device)


@cache
def _compiles(device: str) -> bool:
    """Compile and run a small program on a device, once per process."""
    program = tf.function(_add_one, jit_compile=True, autograph=False)
    with tf.init_scope(), tf.device(device):
        try:
            return float(program(tf.constant(1.0))) == 2
        except tf.errors.OpError as error:
            warnings.warn(
                f"XLA does not work on {device}, so nothing is compiled there: {first_line(error)}. See "
                "https://github.com/tensorflow/tensorflow/issues/111958; compile(jit_compile=False) silences this.",
                stacklevel=2,
            )
            return False


def _add_one(x: tf.Tensor) -> tf.Tensor:
    return x + 1


def first_line(error: tf.errors.OpError) -> str:
    """Return the first line of the message of an error, without a full stop."""
    return (error.message or type(error).__name__).strip().splitlines()[0].rstrip(".")

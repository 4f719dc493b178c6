"""Steps of a streamed model. Those that run in plain Keras are compiled with XLA where Keras would compile them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Hashable
from functools import cached_property, partial
from typing import Any

import keras
import tensorflow as tf

from tfbig.engine import traced_steps
from tfbig.streaming.program_cache import Programs
from tfbig.system import backend, keras_internals, xla


class CompiledSizes:
    """The sizes of data for which steps are compiled, which takes seconds and memory for each.

    A size is compiled once it has run as often as sizes were compiled before. So the first size is compiled at once, as
    in Keras, and the second one from its second step on. Of slides that all differ in size, one is compiled in each
    epoch.
    """

    def __init__(self) -> None:
        self._runs: Counter[Hashable] = Counter()
        self._compiled: set[Hashable] = set()

    def take(self, size: Hashable) -> bool:
        """Return whether the step that comes now is compiled.

        Args:
            size: Size of its data.
        """
        if size not in self._compiled and self._runs[size] >= len(self._compiled):
            self._compiled.add(size)
        self._runs[size] += 1
        return size in self._compiled


class PlainSteps(traced_steps.Steps):
    """Steps of a streamed model; those of the plain layout are one program of XLA where a model asks for it.

    Images behind handles are read before such a step, as a program of XLA cannot call Python.

    Args:
        model: The streamed model.
        step: Step on data, which returns its outputs.
        find: As in `Steps`.
        shape: As in `Steps`.
        programs: Function that returns the programs of the model, which less memory may replace.
        read: Function that returns data with images in host memory instead of handles.

    Attributes:
        compiled: The compiled steps.
    """

    def __init__(
        self,
        model: Any,
        step: Callable[[Any], Any],
        find: traced_steps.Find,
        shape: Callable[[tf.TensorShape], Any],
        programs: Callable[[], Programs],
        read: Callable[[Any], Any],
    ) -> None:
        super().__init__(step, find, shape, model.steps_per_execution)
        self.compiled = traced_steps.Steps(step, find, shape, 1, jit_compile=True)
        self.model = model
        self.programs = programs
        self.read = read
        self._sizes = CompiledSizes()
        self._succeeded: set[Hashable] = set()

    def ready(self, data: Any, specs: Any = None) -> Callable[[], Any]:
        """Trace one step on data if necessary, and return a function that runs it."""
        tensors = traced_steps.tensors(data)
        found = self.find(tensors)
        layout = self.layout_of(found)
        run, programs = partial(self.prepared, layout, data, specs), self.programs()
        if not layout[1].plain or self.device is None or not programs.compiles_plain:
            return run()
        shapes = [None if t is None else tuple(t.shape) for t in keras.tree.flatten(tensors)]
        size = (*sorted(found.image_shapes.items()), *shapes)
        if not self._sizes.take(size):
            return run()
        return partial(self._run_compiled, tensors, specs, layout, size, run)

    @cached_property
    def device(self) -> str | None:
        """Device for which plain steps are compiled, that of all variables; None if they are not to be."""
        model = self.model
        eager = model.run_eagerly or keras_internals.strategy_of(model) is not None
        if eager or not keras_internals.supports_jit(model.twin):
            return None
        optimizer = getattr(model, "optimizer", None)
        variables = list(model.variables) + (list(optimizer.variables) if optimizer else [])
        device = keras_internals.device_of(variables)
        strips = self.programs().device or backend.HOST
        if device is None or backend.check_device(device) != backend.check_device(strips):
            return None
        return device if xla.wanted(model, device) else None

    def _run_compiled(
        self,
        data: Any,
        specs: Any,
        layout: tuple[Any, Any],
        size: Hashable,
        uncompiled: Callable[[], Callable[[], Any]],
    ) -> Any:
        """Run a compiled step. If the first one of a size fails, nothing has changed, and it runs without XLA."""
        if any(t is not None and t.dtype == tf.string for t in keras.tree.flatten(data)):
            data, specs = self.read(data), None
            layout = self.compiled.layout(data)  # of images in memory
            if not layout[1].plain:
                return uncompiled()()
        with tf.device(self.device):
            run = self.compiled.prepared(layout, data, specs)
            if size in self._succeeded:
                return run()
            try:
                outputs = run()
            except tf.errors.ResourceExhaustedError:
                raise
            except tf.errors.OpError as error:
                reason = xla.first_line(error)
            else:
                self._succeeded.add(size)
                return outputs
        outputs = uncompiled()()
        self._give_up(reason)
        return outputs

    def _give_up(self, reason: str) -> None:
        """Compile no further step of the model, and say so."""
        self.programs().compiles_plain = False
        warnings.warn(
            f"'{self.model.name}' runs without XLA, which fails: {reason}. compile(jit_compile=False) silences this.",
            stacklevel=2,
        )

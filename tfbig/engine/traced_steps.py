"""Steps of `fit`, traced once per layout instead of once per image size.

Keras traces a step for each new shape. The layout of a step depends on the size of its images, which handles do not
show and which a trace need not know: so the layout is chosen from the data before the step is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice
from typing import Any

import keras
import tensorflow as tf

from tfbig.engine.bound_program import BoundProgram
from tfbig.engine.program import Program
from tfbig.plan.sweeps import Layout
from tfbig.system import traces
from tfbig.system.backend import HOST

Find = Callable[[Any], BoundProgram]
"""Function from the data of a step to the program that runs on it."""


class Traced:
    """A function of an iterator over data that runs up to `steps` steps per call, as Keras expects.

    Args:
        step: Step on data, which returns its outputs.
        steps: Most steps per call.
        jit_compile: Whether XLA compiles the step.
    """

    def __init__(
        self, step: Callable[[Any], Any], steps: int = 1, jit_compile: bool | None = None
    ) -> None:
        self.step = step
        self.steps = steps
        self.jit_compile = jit_compile
        self._traced: dict[Any, Any] = {}

    def __call__(self, iterator: Iterable[Any]) -> Any:
        """Run up to `steps` steps and return the outputs of the last one."""
        specs = getattr(iterator, "element_spec", None)  # of a dataset: the specs Keras would trace
        done = [self.one(data, specs) for data in islice(iterator, self.steps)]
        if not done:
            raise StopIteration
        return done[-1]

    def one(self, data: Any, specs: Any = None) -> Any:
        """Run one step on data. `specs` may describe the data less precisely than it is."""
        return self.ready(data, specs)()

    def ready(self, data: Any, specs: Any = None) -> Callable[[], Any]:
        """Trace one step on data if necessary, and return a function that runs it."""
        return self.prepared(self.layout(tensors(data)), data, specs)

    def prepared(self, layout: tuple[Any, ...], data: Any, specs: Any = None) -> Callable[[], Any]:
        """Trace one step with a layout if necessary, and return a function that runs it on data."""
        flat, kinds, empty = self.flat(data, specs)
        key = (*layout, repr(empty), *kinds)
        if key not in self._traced:

            def run(*inputs: tf.Tensor) -> Any:
                with self.using(*layout):
                    return self.step(unflatten(empty, inputs))

            function = tf.function(
                run, input_signature=kinds, autograph=False, jit_compile=self.jit_compile
            )
            self._traced[key] = traces.concrete(function)
        return partial(traces.run, self._traced[key], *flat)

    def flat(self, data: Any, specs: Any = None) -> tuple[list[Any], list[tf.TensorSpec], Any]:
        """Return the tensors of data, the specs to trace them with, and their structure with None for missing data."""
        specs = keras.tree.map_structure(_spec, data if specs is None else specs)
        data = tensors(data)
        flat = [t for t in keras.tree.flatten(data) if t is not None]
        kinds = [
            tf.TensorSpec(self.traced_shape(s.shape), s.dtype)
            for s in keras.tree.flatten(specs)
            if s is not None
        ]
        return flat, kinds, keras.tree.map_structure(lambda t: None if t is None else 0, data)

    def layout(self, data: Any) -> tuple[Any, ...]:
        """Return the key of the trace for data, in addition to the specs of its tensors."""
        return ()

    def using(self, *layout: Any) -> AbstractContextManager[Any]:
        """Return a context in which steps are traced for a layout."""
        return nullcontext()

    def traced_shape(self, shape: tf.TensorShape) -> Any:
        """Return the shape of a tensor as a trace may know it."""
        return shape


class Steps(Traced):
    """Steps of a streamed model, traced once per layout.

    Args:
        step: Step on data, which returns its outputs.
        find: Function from data to the program that runs on it.
        shape: Function from the shape of a tensor to the shape that a trace may know.
        steps: Most steps per call.
        jit_compile: Whether XLA compiles the step.
    """

    def __init__(
        self,
        step: Callable[[Any], Any],
        find: Find,
        shape: Callable[[tf.TensorShape], Sequence[int | None]],
        steps: int,
        jit_compile: bool | None = None,
    ) -> None:
        super().__init__(step, steps, jit_compile)
        self.find = find
        self.shape = shape

    def layout(self, data: Any) -> tuple[Program, Layout]:
        """Return the program and the layout for data."""
        return self.layout_of(self.find(data))

    def layout_of(self, found: BoundProgram) -> tuple[Program, Layout]:
        """Return the program that was found, and its layout."""
        layouts = found.program.layouts
        return found.program, layouts.for_shapes(found.image_shapes, found.backgrounds)

    def using(self, *layout: Any) -> AbstractContextManager[Any]:
        """Return a context in which the program uses the layout."""
        program, chosen = layout
        return program.layouts.using(chosen)

    def traced_shape(self, shape: tf.TensorShape) -> Any:
        """Return the shape of a tensor as a trace may know it."""
        return self.shape(shape)


def tensors(data: Any) -> Any:
    """Return data with tensors in place of arrays, and None in place of missing data."""
    return keras.tree.map_structure(_tensor, data)


def unflatten(structure: Any, flat: Sequence[tf.Tensor]) -> Any:
    """Return data of the structure that `Traced.flat` returned."""
    remaining = iter(flat)
    return keras.tree.map_structure(lambda t: None if t is None else next(remaining), structure)


def _tensor(item: Any) -> Any:
    """Return an item of data as a tensor; None for missing data."""
    return None if _is_missing(item) else _on_host(item)


def _spec(item: Any) -> Any:
    """Return the spec of an item of data; None for missing data."""
    if _is_missing(item) or isinstance(item, tf.TensorSpec):
        return None if _is_missing(item) else item
    return tf.TensorSpec.from_tensor(_on_host(item))


def _on_host(item: Any) -> tf.Tensor:
    """Return an item of data as a tensor, in host memory if it is none yet: strips are cut there."""
    with tf.device(HOST):
        return tf.convert_to_tensor(item)


def _is_missing(item: Any) -> bool:
    """Return whether an item of data is missing; datasets of Keras then hold an empty optional."""
    return item is None or isinstance(item, (tf.experimental.Optional, tf.OptionalSpec))

"""Steps of `fit`, traced once for all images that one layout serves, not once per size.

Keras traces a step for the shapes that it meets. Which layout a step needs is known only with the size of its images,
which handles do not show and which a graph need not know: so it is chosen before a step is traced, from its data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice
from typing import Any

import keras
import tensorflow as tf

from tfbig.engine.program import Program
from tfbig.plan.sweeps import Layout

Find = Callable[[Any], tuple[Program, dict[int, tf.Tensor]]]
"""From the data of a step to the program that it runs and the images that this is given."""


class Traced:
    """What Keras calls with an iterator over data, `steps` times a call.

    Args:
        step: a step on data; its outputs.
        steps: most steps a call.
        jit_compile: whether XLA compiles it.
    """

    def __init__(
        self, step: Callable[[Any], Any], steps: int = 1, jit_compile: bool | None = None
    ) -> None:
        self.step = step
        self.steps = steps
        self.jit_compile = jit_compile
        self._traced: dict[Any, Any] = {}

    def __call__(self, iterator: Iterable[Any]) -> Any:
        specs = getattr(iterator, "element_spec", None)  # of a dataset: what Keras would trace for
        done = [self.one(data, specs) for data in islice(iterator, self.steps)]
        if not done:
            raise StopIteration
        return done[-1]

    def one(self, data: Any, specs: Any = None) -> Any:
        """Runs one step on data, of which `specs` may know less."""
        return self.ready(data, specs)()

    def ready(self, data: Any, specs: Any = None) -> Callable[[], Any]:
        """The same, traced and not yet run."""
        flat, kinds, empty = self.flat(data, specs)
        layout = self.layout(keras.tree.map_structure(_tensor, data))
        key = (*layout, repr(empty), *kinds)
        if key not in self._traced:

            def run(*tensors: tf.Tensor) -> Any:
                with self.using(*layout):
                    return self.step(filled(empty, tensors))

            function = tf.function(
                run, input_signature=kinds, autograph=False, jit_compile=self.jit_compile
            )
            self._traced[key] = function.get_concrete_function()
        return partial(self._traced[key], *flat)

    def flat(self, data: Any, specs: Any = None) -> tuple[list[Any], list[tf.TensorSpec], Any]:
        """The tensors of data, what a trace may know of them, and their structure, with None for what is missing."""
        specs = keras.tree.map_structure(_spec, data if specs is None else specs)
        data = keras.tree.map_structure(_tensor, data)
        tensors = [t for t in keras.tree.flatten(data) if t is not None]
        kinds = [
            tf.TensorSpec(self.known(s.shape), s.dtype)
            for s in keras.tree.flatten(specs)
            if s is not None
        ]
        return tensors, kinds, keras.tree.map_structure(lambda t: None if t is None else 0, data)

    def layout(self, data: Any) -> tuple[Any, ...]:
        """What a trace serves besides the kinds of its tensors."""
        return ()

    def using(self, *layout: Any) -> AbstractContextManager[Any]:
        return nullcontext()

    def known(self, shape: tf.TensorShape) -> Any:
        """What a trace may know of the shape of a tensor."""
        return shape


class Steps(Traced):
    """The same for a model that streams.

    Args:
        step: a step on data; its outputs.
        find: what it runs on which images.
        shape: from the shape of a tensor to what a trace may know of it.
        steps: most steps a call.
    """

    def __init__(
        self,
        step: Callable[[Any], Any],
        find: Find,
        shape: Callable[[tf.TensorShape], Sequence[int | None]],
        steps: int,
    ) -> None:
        super().__init__(step, steps)
        self.find = find
        self.shape = shape

    def layout(self, data: Any) -> tuple[Program, Layout]:
        program, images = self.find(data)
        return program, program.choose(images)

    def using(self, *layout: Any) -> AbstractContextManager[Any]:
        program, chosen = layout
        return program.using(chosen)

    def known(self, shape: tf.TensorShape) -> Any:
        return self.shape(shape)


def filled(empty: Any, tensors: Sequence[tf.Tensor]) -> Any:
    """Data of the structure that `Traced.flat` gave."""
    left = iter(tensors)
    return keras.tree.map_structure(lambda t: None if t is None else next(left), empty)


def _tensor(part: Any) -> Any:
    """A tensor; None for what is missing."""
    return None if _missing(part) else tf.convert_to_tensor(part)


def _spec(part: Any) -> Any:
    if _missing(part) or isinstance(part, tf.TensorSpec):
        return None if _missing(part) else part
    return tf.TensorSpec.from_tensor(tf.convert_to_tensor(part))


def _missing(part: Any) -> bool:
    """Keras' datasets hold empty optionals where there is nothing."""
    return part is None or isinstance(part, (tf.experimental.Optional, tf.OptionalSpec))

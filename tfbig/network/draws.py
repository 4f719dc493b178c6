"""Random numbers that a layer of one's own draws for each image, recorded while the layer is read.

Stochastic depth and the like draw `keras.random.uniform((N, 1, ..., 1), seed=generator)`. N is not known while a layer
is called on symbolic tensors, so that Keras cannot draw; what it would draw becomes an operation instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

import keras

NAMES = ("beta", "binomial", "gamma", "normal", "randint", "truncated_normal", "uniform")
"""Functions of `keras.random` that draw as many numbers as their argument `shape` says."""


class Draw(keras.Operation):
    """Random numbers of each image of a batch.

    Args:
        function: Function of `keras.random`.
        shape: Axes of the result, the first of which is the batch, None.
        seed: Seed or generator.
        options: Other arguments of the function.
    """

    def __init__(
        self, function: Callable[..., Any], shape: tuple[int | None, ...], seed: Any, options: Any
    ) -> None:
        super().__init__()
        self.function = function
        self.lengths = shape
        self.seed = seed
        self.options = options

    def of_batch(self, batch: Any) -> Any:
        """Return the numbers of some images."""
        return self.function((batch, *self.lengths[1:]), seed=self.seed, **self.options)

    def call(self, *images: Any) -> Any:
        """Return the numbers of the images of a batch."""
        return self.of_batch(keras.ops.shape(images[0])[0])

    def compute_output_spec(self, *images: Any) -> keras.KerasTensor:
        """Return the shape and the element type of the numbers."""
        one = self.function((1, *self.lengths[1:]), seed=0, **self.options)
        return keras.KerasTensor(self.lengths, keras.backend.standardize_dtype(one.dtype))


@contextmanager
def recorded(inputs: Sequence[Any]) -> Iterator[list[Draw]]:
    """Have the functions of `keras.random` record what they would draw for each image in a `with` block.

    Args:
        inputs: Keras tensors of the inputs of a layer; those with the most axes are images.

    Yields:
        The operations in the order in which they were recorded, which is that in which generators count.
    """
    rank = max(len(t.shape) for t in inputs)
    images = [t for t in inputs if len(t.shape) == rank]
    draws: list[Draw] = []

    def drawn(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(function).bind(*args, **kwargs).arguments
        shape = given.pop("shape")
        if not isinstance(shape, (list, tuple)) or None not in shape[:1]:
            return function(*args, **kwargs)
        draws.append(Draw(function, tuple(shape), given.pop("seed", None), given))
        return draws[-1](*images)

    functions = {name: getattr(keras.random, name) for name in NAMES}
    for name, function in functions.items():
        setattr(keras.random, name, wraps(function)(partial(drawn, function)))
    try:
        yield draws
    finally:
        for name, function in functions.items():
            setattr(keras.random, name, function)

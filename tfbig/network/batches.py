"""Random numbers and constants that a layer of one's own makes for each image, recorded while the layer is read.

Stochastic depth and the like draw `keras.random.uniform((N, 1, ..., 1), seed=generator)`, and others begin with
`keras.ops.ones((N, ...))`. N is not known while a layer is called on symbolic tensors, so that Keras cannot make them.
What it would draw becomes an operation instead, and what it would fill a constant of one image.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, NamedTuple

import keras

DRAWING = ("beta", "binomial", "gamma", "normal", "randint", "truncated_normal", "uniform")
"""Functions of `keras.random` that draw as many numbers as their argument `shape` says."""

FILLING = ("broadcast_to", "full", "ones", "tile", "zeros")
"""Functions of `keras.ops` that make constants of a size, their argument `shape` or `repeats`."""


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


class Made(NamedTuple):
    """Random numbers and constants that a layer makes for each image while it is read.

    Args:
        draws: Operations that draw random numbers, in the order in which generators count.
        constants: `(Keras tensor, constant)` for tensors `[N, ...]` that are the same for all images; the constants
            have N = 1.
    """

    draws: list[Draw]
    constants: list[tuple[Any, Any]]


@contextmanager
def recorded(inputs: Sequence[Any]) -> Iterator[Made]:
    """Have functions of Keras record what they would make for each image of a batch in a `with` block.

    Args:
        inputs: Keras tensors of the inputs of a layer; those with the most axes are images.
    """
    rank = max(len(t.shape) for t in inputs)
    images = [t for t in inputs if len(t.shape) == rank]
    made = Made([], [])

    def drawn(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(function).bind(*args, **kwargs).arguments
        shape = given.pop("shape")
        if not _is_of_batch(shape):
            return function(*args, **kwargs)
        made.draws.append(Draw(function, tuple(shape), given.pop("seed", None), given))
        return made.draws[-1](*images)

    def filled(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(function).bind(*args, **kwargs).arguments
        (name,) = given.keys() & {"shape", "repeats"}
        sizes = given[name]
        symbolic = any(isinstance(each, keras.KerasTensor) for each in given.values())
        if symbolic or not _is_of_batch(sizes):
            return function(*args, **kwargs)
        one = function(**given | {name: (1, *sizes[1:])})
        if one.shape[0] != 1:
            return function(*args, **kwargs)
        dtype = keras.backend.standardize_dtype(one.dtype)
        tensor = keras.KerasTensor((None, *one.shape[1:]), dtype, name="constant")
        made.constants.append((tensor, one))
        return tensor

    with _replaced(keras.random, DRAWING, drawn), _replaced(keras.ops, FILLING, filled):
        yield made


def _is_of_batch(sizes: Any) -> bool:
    """Return whether sizes are those of a batch, whose number of images is not known."""
    is_list = isinstance(sizes, (list, tuple)) and len(sizes) > 0
    return is_list and sizes[0] is None and None not in sizes[1:]


@contextmanager
def _replaced(module: Any, names: Sequence[str], by: Callable[..., Any]) -> Iterator[None]:
    """Replace functions of a module by `by(function, ...)` in a `with` block."""
    functions = {name: getattr(module, name) for name in names}
    for name, function in functions.items():
        setattr(module, name, wraps(function)(partial(by, function)))
    try:
        yield
    finally:
        for name, function in functions.items():
            setattr(module, name, function)

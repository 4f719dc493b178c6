"""Inputs of a model: tensors or handles in its order, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfbig.engine import read_ahead
from tfbig.system import keras_internals


@dataclass(frozen=True)
class ModelInputs:
    """Reader of the inputs of a model.

    Args:
        name: Name of the model, for messages.
        functional: The plain model as a functional model.
        rank: Number of axes of its images, `[N, rows, ..., C]`.
    """

    name: str
    functional: Any
    rank: int

    def read(self, inputs: Any) -> list[tf.Tensor]:
        """Return tensors or handles in the order of the model's inputs; a dict may name them.

        Args:
            inputs: Structure of tensors, arrays or handles.

        Returns:
            Tensors, or string handles `[N]`.

        Raises:
            ValueError: The number of inputs, or the shape of one, differs from the model.
            SourceError: An image behind a handle has another number of axes, or another size along a fixed axis.
        """
        specs = self.functional.inputs
        flat = keras.tree.flatten(self._named(inputs))
        if len(flat) != len(specs):
            raise ValueError(
                f"'{self.name}' has {len(specs)} inputs ({', '.join(t.name for t in specs)}), received {len(flat)}."
            )
        return [self._checked(t, spec) for t, spec in zip(flat, specs, strict=True)]

    def _named(self, inputs: Any) -> Any:
        """Return the entries of a dict that the model uses, in its order."""
        specs, struct = self.functional.inputs, keras_internals.input_structure(self.functional)
        if isinstance(inputs, dict) and isinstance(struct, dict) and set(struct) <= set(inputs):
            return {key: inputs[key] for key in struct}
        if isinstance(inputs, dict) and {t.name for t in specs} <= set(inputs):
            return [inputs[t.name] for t in specs]
        return inputs

    def _checked(self, value: Any, spec: Any) -> tf.Tensor:
        """Return an input as the model needs it; `[N, rows, ...]` gets one channel, as in Keras."""
        if value is None:
            raise ValueError(f"'{self.name}': input '{spec.name}' is None; every input is needed.")
        tensor = tf.convert_to_tensor(value)
        if tensor.dtype == tf.string:
            read_ahead.check_shape(tensor, spec.shape, f"'{self.name}': input '{spec.name}'")
            return tensor
        rank, channels = len(spec.shape), spec.shape[-1]
        if tensor.shape.rank is None:
            return tensor
        if tensor.shape.rank == rank - 1 and channels == 1:
            tensor = tensor[..., None]
        if tensor.shape.rank != rank or tensor.shape[-1:] not in ([None], [channels]):
            raise ValueError(
                f"'{self.name}': input '{spec.name}' has shape {tensor.shape}, expected {spec.shape}."
            )
        return tensor

    def traced_shape(self, shape: tf.TensorShape) -> list[int | None]:
        """Return the shape of a tensor as a trace may know it: with image sizes only if the model fixes them.

        Args:
            shape: Shape of the tensor.
        """
        dimensions = shape.as_list()
        sizes = [t.shape[1:-1] for t in self.functional.inputs if len(t.shape) == self.rank]
        if len(dimensions) < self.rank - 1 or all(None not in size for size in sizes):
            return dimensions
        unknown: list[int | None] = [None] * (self.rank - 2)
        return [dimensions[0], *unknown, *dimensions[self.rank - 1 :]]

    def placeholder(self, tensor: Any) -> Any:
        """Return a Keras tensor of the type of a tensor, with the shape that a trace may know; None for None."""
        if tensor is None:
            return None
        return keras.KerasTensor(self.traced_shape(tensor.shape), tensor.dtype.name)

    def check_image(self, shape: Any) -> None:
        """Raise ValueError if `shape` is not that of the first input.

        Args:
            shape: `(N, rows, ..., C)`.
        """
        (channels, *_) = (t.shape[-1] for t in self.functional.inputs if len(t.shape) == self.rank)
        if len(shape) != self.rank or None in shape or shape[-1] != channels:
            raise ValueError(
                f"'{self.name}': expected the shape (N, rows, ..., C) of an image with {self.rank} numbers, "
                f"C = {channels}, received {tuple(shape)}."
            )

"""Targets and sample weights as a step on images takes them: with a channel axis, dense or by handle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfbig.engine import read_ahead

map_structure = keras.tree.map_structure


@dataclass(frozen=True)
class Labels:
    """How labels of a model are read.

    Args:
        name: of the model, for messages.
        rank: number of axes of its images, `[N, rows, ..., C]`.
        source_dtype: element type of images given by handle.
    """

    name: str
    rank: int
    source_dtype: str

    @property
    def by_handle(self) -> tf.TensorSpec:
        """Spec of labels that come by handle."""
        return tf.TensorSpec([None] * self.rank, self.source_dtype)

    def prepare(self, targets: Any, weights: Any) -> tuple[Any, Any]:
        """Structures of labels `[N, ..., C]` and of sample weights `[N]` or `[N, ..., 1]`; handles stay handles.

        Raises:
            ValueError: there are no targets, or weights have another shape.
        """
        if targets is None:
            raise ValueError(f"'{self.name}' is given no targets to compute its loss with.")
        targets = map_structure(self._pixels, targets)
        return targets, None if weights is None else map_structure(self._weights, weights)

    def spec(self, tensor: tf.Tensor) -> tf.TensorSpec:
        """What the graph of a loss depends on: type, number of axes, channels."""
        if tensor.dtype == tf.string:
            return self.by_handle
        channels = tensor.shape[1:][-1:]
        return tf.TensorSpec([None] * (tensor.shape.rank - len(channels)) + channels, tensor.dtype)

    def dense(self, tensor: Any, channels: int | None = None) -> tf.Tensor:
        """An image given by handle as a tensor, for what runs on whole tensors; others as they are."""
        tensor = tf.convert_to_tensor(tensor)
        if tensor.dtype != tf.string:
            return tensor
        shape = read_ahead.source_shape(tensor)
        image = read_ahead.read_source(tensor, 0, shape[1], tf.as_dtype(self.source_dtype))
        return tf.ensure_shape(image, [*[None] * (self.rank - 1), channels])

    def _pixels(self, target: Any) -> tf.Tensor:
        """Labels `[N, ...]` have one channel."""
        tensor = tf.convert_to_tensor(target)
        short = tensor.dtype != tf.string and tensor.shape.rank == self.rank - 1
        return tensor[..., None] if short else tensor

    def _weights(self, weights: Any) -> tf.Tensor:
        tensor = tf.convert_to_tensor(weights)
        if tensor.dtype == tf.string or tensor.shape.rank == 1:
            return tensor
        pixels = self._pixels(tensor)
        if pixels.shape.rank != self.rank or pixels.shape[-1] != 1:
            axes = ", ".join("NHWDEF"[: self.rank - 1])
            raise ValueError(
                f"sample weights of '{self.name}' have shape {tensor.shape}; expected one per image, [N], or one "
                f"per pixel, [{axes}] or [{axes}, 1]."
            )
        return pixels


def flatten(structure: Any) -> list[Any]:
    """The leaves of a structure; of None there are none."""
    return [] if structure is None else keras.tree.flatten(structure)

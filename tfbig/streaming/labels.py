"""Prepares targets and sample weights for a step on images: with a channel axis, as tensors or handles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfbig.engine import read_ahead
from tfbig.network import objective

map_structure = keras.tree.map_structure
MASK_RANK = 3
"""Least number of axes of labels that are images, `[N, rows, C]`."""


@dataclass(frozen=True)
class Labels:
    """Reader of the labels of a model.

    Args:
        name: Name of the model, for messages.
        rank: Number of axes of its images, `[N, rows, ..., C]`.
        source_dtype: Element type of images behind handles.
    """

    name: str
    rank: int
    source_dtype: str

    @property
    def by_handle(self) -> tf.TensorSpec:
        """Spec of labels behind handles."""
        return tf.TensorSpec([None] * self.rank, self.source_dtype)

    def prepare(self, targets: Any, weights: Any) -> tuple[Any, Any]:
        """Convert targets and sample weights to tensors with a channel axis; handles stay handles.

        Args:
            targets: Structure of labels `[N, ...]` or `[N, ..., C]`.
            weights: Structure of sample weights `[N]`, `[N, ...]` or `[N, ..., 1]`, or None.

        Returns:
            Structures of labels `[N, ..., C]` and of sample weights `[N]` or `[N, ..., 1]`.

        Raises:
            ValueError: Targets are missing, or weights have another shape.
        """
        if targets is None:
            raise ValueError(
                f"'{self.name}' received no targets; its loss needs them. Pass `y`, or a dataset of (x, y)."
            )
        targets = map_structure(self._pixels, targets)
        return targets, None if weights is None else map_structure(self._weights, weights)

    def spec(self, tensor: tf.Tensor) -> tf.TensorSpec:
        """Return the type, number of axes and channels of a label, on which the graph of a loss depends."""
        if tensor.dtype == tf.string:
            return self.by_handle
        channels = tensor.shape[1:][-1:]
        return tf.TensorSpec([None] * (tensor.shape.rank - len(channels)) + channels, tensor.dtype)

    def dense(self, tensor: Any, channels: int | None = None) -> tf.Tensor:
        """Read an image behind a handle into a tensor; return a tensor unchanged."""
        tensor = tf.convert_to_tensor(tensor)
        if tensor.dtype != tf.string:
            return tensor
        shape = read_ahead.source_shape(tensor, self.rank)
        image = read_ahead.read_source(tensor, [(0, shape[1])], tf.as_dtype(self.source_dtype))
        return tf.ensure_shape(image, [*[None] * (self.rank - 1), channels])

    def dense_data(self, data: Any, loss: Any, outputs: Any) -> Any:
        """Return data with targets and sample weights as tensors, for losses that Keras computes.

        Args:
            data: `(x, y)` or `(x, y, sample_weight)`.
            loss: Loss of Keras' `compile`.
            outputs: Structure of the outputs of the model.
        """
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        return keras.utils.pack_x_y_sample_weight(
            x, *self.dense_pair(y, sample_weight, loss, outputs)
        )

    def dense_pair(self, y: Any, sample_weight: Any, loss: Any, outputs: Any) -> tuple[Any, Any]:
        """Return targets and sample weights as tensors, see `dense_data`."""
        flat = flatten(y)
        if any(tf.as_dtype(t.dtype) == tf.string for t in flat):
            specs = map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), outputs)
            goal = objective.expected(loss, specs, self.by_handle)
            channels = goal.channels([s.shape[-1] for s in keras.tree.flatten(specs)])
            dense = [self.dense(t, channels.get(i)) for i, t in enumerate(flat)]
            y = keras.tree.pack_sequence_as(y, dense)
        if sample_weight is not None:
            sample_weight = map_structure(lambda t: self.dense(t, 1), sample_weight)
        return y, sample_weight

    def of_outputs(self, y: Any, sample_weight: Any) -> Any:
        """Return sample weights for losses that Keras computes: those of masks for each pixel.

        Args:
            y: Structure of targets as tensors.
            sample_weight: Structure of sample weights as tensors, or None.
        """
        if sample_weight is None or y is None:
            return sample_weight
        return of_pixels(sample_weight, map_structure(self._pixels, y))

    def _pixels(self, target: Any) -> tf.Tensor:
        """Add a channel axis to labels without one."""
        tensor = tf.convert_to_tensor(target)
        has_no_channels = tensor.dtype != tf.string and tensor.shape.rank == self.rank - 1
        return tensor[..., None] if has_no_channels else tensor

    def _weights(self, weights: Any) -> tf.Tensor:
        """Convert sample weights to `[N]` or `[N, ..., 1]`."""
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


def of_pixels(weights: Any, targets: Any) -> Any:
    """Return sample weights `[N, ..., 1]` for every pixel of targets `[N, ..., C]`, each of the size of its target.

    Args:
        weights: Structure of sample weights `[N]` or `[N, ..., 1]`; one may be for several targets, as in Keras.
        targets: Structure of targets.
    """
    each, flat = keras.tree.flatten(weights), keras.tree.flatten(targets)
    if len(each) == 1:
        expanded = [_of_target(each[0], target) for target in flat]
        return keras.tree.pack_sequence_as(targets, expanded)
    pairs = zip(each, flat, strict=False)
    return keras.tree.pack_sequence_as(weights, [_of_target(*pair) for pair in pairs])


def _of_target(weight: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    """Return sample weights of the size of a target."""
    if weight.shape.rank != 1 or target.shape.rank is None or target.shape.rank < MASK_RANK:
        return weight
    of_images = tf.reshape(weight, [-1, *[1] * (target.shape.rank - 1)])
    return of_images * tf.ones_like(target[..., :1], weight.dtype)


def flatten(structure: Any) -> list[Any]:
    """Return the leaves of a structure; none for None."""
    return [] if structure is None else keras.tree.flatten(structure)

"""An encoder over the patches of images, slice by slice: codes with or without a gradient, at the memory of a slice.

    state = moving statistics and random generators of the encoder
    for every slice:  codes, state = encoder(slice; weights, state)

The backward pass runs the same loop from the same state, so that dropout draws the same numbers again, and sums the
gradients of the weights:

    for every slice:  d_weights += (d codes / d weights)^T d_codes(slice)

BatchNormalization in training has the statistics of the slice.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import keras
import tensorflow as tf

from tfbig.geometry.windows import partition
from tfbig.ops import slices
from tfbig.system import traces
from tfbig.system.backend import HOST
from tfbig.units import ceil_div

AT_ONCE = 2
"""Slices at the same time: the next one is read ahead."""

Take = Callable[[tf.Tensor], tf.Tensor]
"""Function from numbers of patches `[N, k]` to the patches `[N, k, *patch, C]`."""


def fill(
    encoder: keras.Model,
    take: Take,
    indices: tf.Tensor,
    size: Any,
    training: bool,
    on_host: bool = False,
) -> tf.Tensor:
    """Return the codes of patches, without a gradient.

    Args:
        encoder: Model from patches `[B, *patch, C]` to codes `[B, ...]`.
        take: Function that reads patches.
        indices: Numbers of the patches, `[N, k]`.
        size: Largest number of patches of each image in a slice.
        training: Whether BatchNormalization has the statistics of the slice and updates its moving ones, and dropout is
            active.
        on_host: Whether to gather the codes in host memory.

    Returns:
        Codes `[N, k, ...]`.
    """
    weights = [tf.stop_gradient(w) for w in _values(encoder.trainable_variables)]
    state = _values(encoder.non_trainable_variables)
    codes, state = _PatchSlices(encoder, take, indices, size, training).forward(
        weights, state, on_host
    )
    if training:
        _assign_state(encoder, state)
    return codes


def encode(
    encoder: keras.Model, take: Take, indices: tf.Tensor, size: Any, training: bool = True
) -> tf.Tensor:
    """Return the codes of patches, with a gradient for the encoder's weights.

    If one slice is known to hold all patches, the tape keeps the activations of the encoder; otherwise nothing of a
    slice is kept and the backward pass rematerialises it.
    """
    weights = _values(encoder.trainable_variables)
    state = _values(encoder.non_trainable_variables)
    if isinstance(size, int) and indices.shape[1] is not None and indices.shape[1] <= size:
        codes, state = _apply(encoder, take(indices), weights, state, training)
    else:
        patches = _PatchSlices(encoder, take, indices, size, training)
        codes, *state = patches.recomputed(weights, state)
    if training:
        _assign_state(encoder, state)
    return codes


def applied(model: keras.Model, inputs: tf.Tensor, training: bool) -> tf.Tensor:
    """Return a model's outputs `[N, k, ...]` for inputs `[N, k, ...]`, with a gradient for the inputs too."""
    weights = _values(model.trainable_variables)
    state = _values(model.non_trainable_variables)
    outputs, state = _apply(model, inputs, weights, state, training)
    if training:
        _assign_state(model, state)
    return outputs


def sizes(tensor: tf.Tensor) -> list[Any]:
    """Return the shape of a tensor: integers, and scalar tensors for sizes that are known only at run time."""
    shape = tf.shape(tensor)
    return [shape[axis] if n is None else n for axis, n in enumerate(tensor.shape)]


def code_shape(encoder: keras.Model) -> tuple[int | None, ...]:
    """Return the shape of a code."""
    return tuple(encoder.outputs[0].shape[1:])


def placed(on_host: bool) -> Any:
    """Return a device scope on the host if `on_host`, else a scope that does nothing."""
    return tf.device(HOST) if on_host else nullcontext()


def _values(variables: list[Any]) -> list[tf.Tensor]:
    return [tf.convert_to_tensor(v.value) for v in variables]


def _assign_state(encoder: keras.Model, state: list[tf.Tensor]) -> None:
    for variable, value in zip(encoder.non_trainable_variables, state, strict=True):
        variable.assign(value)


def _apply(
    encoder: keras.Model,
    patches: tf.Tensor,
    weights: list[tf.Tensor],
    state: list[tf.Tensor],
    training: bool,
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Return the codes `[N, k, ...]` of patches `[N, k, *patch, C]`, and the state after them."""
    flat = tf.cast(slices.merged(patches), encoder.inputs[0].dtype)
    codes, new_state = encoder.stateless_call(weights, state, flat, training=training)
    codes = slices.divided(codes, patches)
    return tf.ensure_shape(codes, [*patches.shape[:2], *code_shape(encoder)]), new_state


class _PatchSlices:
    """An encoder over patches `[N, count]`, in slices of at most `size` patches whose sizes differ by at most 1.

    Args: as in `fill`.
    """

    def __init__(
        self, encoder: keras.Model, take: Take, indices: tf.Tensor, size: Any, training: bool
    ) -> None:
        self.encoder, self.take, self.indices, self.training = encoder, take, indices, training
        self.count = tf.shape(indices)[1]
        self.num_slices = ceil_div(self.count, tf.maximum(size, 1))

    def forward(
        self, weights: list[tf.Tensor], state: list[tf.Tensor], on_host: bool = False
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return the codes, and the state after them."""

        def encode_slice(index: tf.Tensor, state: list[tf.Tensor]) -> Any:
            start, stop = self._bounds(index)
            return self._codes(start, stop, weights, state)

        codes, state = slices.joined(
            encode_slice,
            self.num_slices,
            self.encoder.outputs[0].dtype,
            list(state),
            device=HOST if on_host else None,
            at_once=AT_ONCE,
        )
        return tf.ensure_shape(codes, [*self.indices.shape, *code_shape(self.encoder)]), state

    def recomputed(self, weights: list[tf.Tensor], state: list[tf.Tensor]) -> Any:
        """Return `(codes, *state after them)`, differentiable with respect to `weights`."""

        @traces.custom_gradient
        def run(*weights: tf.Tensor) -> Any:
            # Without a gradient, so that no tape stores the loop.
            constants = [tf.stop_gradient(w) for w in weights]
            codes, new_state = self.forward(constants, state)

            def gradient(d_codes: tf.Tensor, *_: tf.Tensor) -> list[tf.Tensor]:
                return self.backward(constants, state, tf.stop_gradient(d_codes))

            return (codes, *new_state), gradient

        return run(*weights)

    def backward(
        self, weights: list[tf.Tensor], state: list[tf.Tensor], d_codes: tf.Tensor
    ) -> list[tf.Tensor]:
        """Return the gradients of the weights; every slice is rematerialised from the state that it had."""

        def of_slice(index: tf.Tensor, state: list[tf.Tensor]) -> Any:
            start, stop = self._bounds(index)
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(weights)
                codes, state = self._codes(start, stop, weights, state)
            return tape.gradient(codes, weights, d_codes[:, start:stop], "zero"), state

        zeros = [tf.zeros_like(w) for w in weights]
        return slices.summed(of_slice, self.num_slices, zeros, list(state), at_once=AT_ONCE)

    def _bounds(self, index: tf.Tensor) -> Any:
        return partition(self.count, self.num_slices, index)

    def _codes(
        self, start: tf.Tensor, stop: tf.Tensor, weights: list[tf.Tensor], state: list[tf.Tensor]
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        patches = self.take(self.indices[:, start:stop])
        return _apply(self.encoder, patches, weights, state, self.training)

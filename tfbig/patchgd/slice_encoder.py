"""An encoder over the patches of images, slice by slice: codes with or without a gradient, at the memory of a slice.

    state = moving statistics and generators of random numbers of the encoder
    for every slice:  codes, state = encoder(slice; weights, state)

The backward runs the same loop from the same state, so that dropout draws the same numbers again, and adds up the
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

HOST = "/CPU:0"
Take = Callable[[tf.Tensor], tf.Tensor]
"""From numbers of patches `[N, k]` to the patches `[N, k, *patch, C]`."""


def fill(
    encoder: keras.Model,
    take: Take,
    places: tf.Tensor,
    size: Any,
    training: bool,
    on_host: bool = False,
) -> tf.Tensor:
    """Codes of patches, without a gradient.

    Args:
        encoder: patch `[B, *patch, C]` to code `[B, ...]`.
        take: reads patches.
        places: which, `[N, k]`.
        size: patches of each image that a slice holds at most.
        training: statistics of BatchNormalization are those of the slice, moving ones change, dropout drops.
        on_host: whether the codes are gathered in host memory.

    Returns:
        `[N, k, ...]`.
    """
    weights = [tf.stop_gradient(w) for w in _values(encoder.trainable_variables)]
    state = _values(encoder.non_trainable_variables)
    codes, state = _Slices(encoder, take, places, size, training).forward(weights, state, on_host)
    if training:
        _keep(encoder, state)
    return codes


def encode(
    encoder: keras.Model, take: Take, places: tf.Tensor, size: Any, training: bool = True
) -> tf.Tensor:
    """The same codes with a gradient for the encoder's weights.

    Where one slice is known to hold all of them, the tape keeps what the encoder makes on the way; else nothing of a
    slice is kept and it is made again in the backward.
    """
    weights = _values(encoder.trainable_variables)
    state = _values(encoder.non_trainable_variables)
    if isinstance(size, int) and places.shape[1] is not None and places.shape[1] <= size:
        codes, state = _apply(encoder, take(places), weights, state, training)
    else:
        slices = _Slices(encoder, take, places, size, training)
        codes, *state = slices.recomputed(weights, state)
    if training:
        _keep(encoder, state)
    return codes


def applied(model: keras.Model, inputs: tf.Tensor, training: bool) -> tf.Tensor:
    """A model on `[N, k, ...]`, `[N, k, ...]`, with a gradient for the inputs too."""
    weights = _values(model.trainable_variables)
    state = _values(model.non_trainable_variables)
    found, state = _apply(model, inputs, weights, state, training)
    if training:
        _keep(model, state)
    return found


def sizes(tensor: tf.Tensor) -> list[Any]:
    """The shape of a tensor: integers, and scalars where it is not known."""
    shape = tf.shape(tensor)
    return [shape[axis] if n is None else n for axis, n in enumerate(tensor.shape)]


def code_shape(encoder: keras.Model) -> tuple[int | None, ...]:
    """Shape of a code."""
    return tuple(encoder.outputs[0].shape[1:])


def placed(on_host: bool) -> Any:
    """Where operations run: on the host, or wherever they would."""
    return tf.device(HOST) if on_host else nullcontext()


def _values(variables: list[Any]) -> list[tf.Tensor]:
    return [tf.convert_to_tensor(v.value) for v in variables]


def _keep(encoder: keras.Model, state: list[tf.Tensor]) -> None:
    for variable, value in zip(encoder.non_trainable_variables, state, strict=True):
        variable.assign(value)


def _apply(
    encoder: keras.Model,
    patches: tf.Tensor,
    weights: list[tf.Tensor],
    state: list[tf.Tensor],
    training: bool,
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Codes `[N, k, ...]` of patches `[N, k, *patch, C]`, and the state after them."""
    flat = tf.reshape(patches, tf.concat([[-1], tf.shape(patches)[2:]], 0))
    flat = tf.ensure_shape(flat, [None, *patches.shape[2:]])
    flat = tf.cast(flat, encoder.inputs[0].dtype)
    codes, after = encoder.stateless_call(weights, state, flat, training=training)
    shape = tf.concat([tf.shape(patches)[:2], tf.shape(codes)[1:]], 0)
    codes = tf.reshape(codes, shape)
    return tf.ensure_shape(codes, [*patches.shape[:2], *code_shape(encoder)]), after


class _Slices:
    """An encoder over patches `[N, count]`, in slices of at most `size` whose sizes differ by one at most.

    Args: as in `fill`.
    """

    def __init__(
        self, encoder: keras.Model, take: Take, places: tf.Tensor, size: Any, training: bool
    ) -> None:
        self.encoder, self.take, self.places, self.training = encoder, take, places, training
        self.count = tf.shape(places)[1]
        self.num_slices = -(-self.count // tf.maximum(size, 1))

    def forward(
        self, weights: list[tf.Tensor], state: list[tf.Tensor], on_host: bool = False
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Codes, and the state after them."""

        def one(index: tf.Tensor, found: tf.TensorArray, state: list[tf.Tensor]) -> Any:
            start, stop = self._bounds(index)
            codes, state = self._codes(start, stop, weights, state)
            with placed(on_host):
                return found.write(index, tf.einsum("ab...->ba...", codes)), state

        with placed(on_host):
            dtype = self.encoder.outputs[0].dtype
            found = tf.TensorArray(dtype, self.num_slices, infer_shape=False)
        found, state = self._run(one, found, list(state))
        with placed(on_host):
            codes = tf.einsum("ab...->ba...", found.concat())
        return tf.ensure_shape(codes, [*self.places.shape, *code_shape(self.encoder)]), state

    def recomputed(self, weights: list[tf.Tensor], state: list[tf.Tensor]) -> Any:
        """`(codes, *state after them)`; differentiable by `weights`."""

        @tf.custom_gradient
        def run(*weights: tf.Tensor) -> Any:
            inside = [tf.stop_gradient(w) for w in weights]  # so that no tape keeps the loop
            codes, after = self.forward(inside, state)

            def gradient(d_codes: tf.Tensor, *_: tf.Tensor) -> list[tf.Tensor]:
                return self.backward(inside, state, tf.stop_gradient(d_codes))

            return (codes, *after), gradient

        return run(*weights)

    def backward(
        self, weights: list[tf.Tensor], state: list[tf.Tensor], d_codes: tf.Tensor
    ) -> list[tf.Tensor]:
        """Gradients of the weights; every slice is made again, from the state that it had."""

        def one(index: tf.Tensor, state: list[tf.Tensor], sums: list[tf.Tensor]) -> Any:
            start, stop = self._bounds(index)
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(weights)
                codes, state = self._codes(start, stop, weights, state)
            found = tape.gradient(codes, weights, d_codes[:, start:stop], "zero")
            return state, [s + g for s, g in zip(sums, found, strict=True)]

        _, sums = self._run(one, list(state), [tf.zeros_like(w) for w in weights])
        return sums

    def _bounds(self, index: tf.Tensor) -> Any:
        return partition(self.count, self.num_slices, index)

    def _codes(
        self, start: tf.Tensor, stop: tf.Tensor, weights: list[tf.Tensor], state: list[tf.Tensor]
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        patches = self.take(self.places[:, start:stop])
        return _apply(self.encoder, patches, weights, state, self.training)

    def _run(self, body: Callable[..., Any], *variables: Any) -> Any:
        """`variables` after `body(index, *variables)` for every slice; the next one is read ahead."""

        def one(index: tf.Tensor, *variables: Any) -> Any:
            return (index + 1, *body(index, *variables))

        _, *found = tf.while_loop(
            lambda index, *_: index < self.num_slices,
            one,
            (tf.constant(0), *variables),
            parallel_iterations=2,
        )
        return found

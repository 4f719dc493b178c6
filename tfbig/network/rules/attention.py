"""Rule for attention pooling: a softmax over all pixels, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfbig.network.attention_pooling import LEAST, AttentionPooling
from tfbig.network.graph import Reduce
from tfbig.network.rules.call import Call
from tfbig.network.rules.nodes import cast, layer_inside
from tfbig.network.rules.registry import rule
from tfbig.ops import totals


@rule(AttentionPooling)
def attention_pooling(call: Call) -> int:
    """Add the layers of the gate, pixel by pixel, and the mean of the pixels, weighted by its softmax."""
    image, *weights = call.inputs
    layer, wide = call.layer, totals.wide(tf.as_dtype(call.dtype)).name
    size = call.specs[0].shape[:-1]
    inner = layer_inside(call, layer.v, image, (*size, call.channels))
    if layer.gated:
        both = [inner, layer_inside(call, layer.u, image, (*size, call.channels))]
        inner = call.local(
            lambda x, w, strip: x[0] * x[1], inputs=both, channels=layer.hidden, name="gated"
        )
    logits = layer_inside(call, layer.w, inner, (*size, layer.hidden))
    logits = cast(call.graph, logits, wide)
    weights = [cast(call.graph, each, wide) for each in weights]
    op = SoftmaxMean(call.channels, call.graph.spatial, call.dtype)
    result = call.graph.reduce(f"{call.layer.name}/reduce", op, [image, logits, *weights])
    return call.whole(lambda x, w: tf.cast(x[0][0], call.dtype), [result])


class SoftmaxMean(Reduce):
    """Mean of the pixels of an image, weighted by the softmax of their logits; the inputs are image, logits, weights.

    A partial result holds the largest logit `[N, 1]`, and relative to that the sum of the shares `[N, 1]` and the sum
    of the pixels times their shares `[N, C]`. The result is the mean, and the logarithm of the sum of all shares.

    Args:
        channels: Channels of the image.
        spatial: Number of spatial axes.
        dtype: Element type of the image.
    """

    def __init__(self, channels: int, spatial: int, dtype: str) -> None:
        self.operations = 2 * channels
        self.spatial = spatial
        self.dtype = totals.wide(tf.as_dtype(dtype))

    def init(self, batch: Any, channels: Sequence[Any]) -> tuple[tf.Tensor, ...]:
        """Return the result of no pixels."""
        top = tf.fill([batch, 1], tf.constant(LEAST, self.dtype))
        return top, tf.zeros_like(top), tf.zeros([batch, channels[0]], self.dtype)

    def partial(self, inputs: list[tf.Tensor], strip: Any) -> tuple[tf.Tensor, ...]:
        """Return the result of a strip."""
        pixels, logits, factors = self._flat(inputs)
        top = tf.maximum(tf.reduce_max(logits, 1, keepdims=True), LEAST)
        shares = factors * tf.exp(logits - top)
        weighted = tf.matmul(shares, pixels, transpose_a=True)
        return top[:, 0], tf.reduce_sum(shares, 1), weighted[:, 0]

    def merge(self, first: Any, second: Any) -> tuple[tf.Tensor, ...]:
        """Return the result of both."""
        top = tf.maximum(first[0], second[0])
        a, b = (tf.exp(each[0] - top) for each in (first, second))
        return top, first[1] * a + second[1] * b, first[2] * a + second[2] * b

    def times(self, partial: Any, copies: Any) -> tuple[tf.Tensor, ...]:
        """Return the result of many strips with the same pixels; of none, that of no pixels."""
        top = tf.where(copies.number > 0, partial[0], tf.constant(LEAST, self.dtype))
        return top, copies.of(partial[1]), copies.of(partial[2])

    def finalize(self, partial: Any, pixels: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the mean `[N, C]`, 0 without any share, and the logarithm of the sum of the shares `[N, 1]`."""
        top, total, weighted = partial
        infinite = tf.fill(tf.shape(top), tf.constant(np.inf, self.dtype))
        is_any = total > 0
        whole = tf.where(is_any, top + tf.math.log(tf.where(is_any, total, 1)), infinite)
        return tf.math.divide_no_nan(weighted, total), whole

    def pullback(
        self, inputs: list[tf.Tensor], strip: Any, result: Any, cotangent: Any
    ) -> list[Any]:
        """Return the gradients of the image, the logits and the weights."""
        pixels, logits, factors = self._flat(inputs)
        mean, whole = (t[:, None] for t in result)
        gradient = tf.cast(cotangent[0], self.dtype)[:, None]
        d_factors = tf.exp(logits - whole) * tf.matmul(pixels - mean, gradient, transpose_b=True)
        d_pixels = factors * tf.exp(logits - whole) * gradient
        gradients = (d_pixels, factors * d_factors, d_factors)
        return [
            tf.reshape(tf.cast(d, t.dtype), tf.shape(t))
            for d, t in zip(gradients, inputs, strict=False)
        ]

    def _flat(self, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
        """Return pixels `[N, P, C]`, logits, minus infinity where a pixel does not count, and weights `[N, P, 1]`."""
        batch = tf.shape(inputs[0])[0]
        pixels, logits, *weights = (
            tf.cast(tf.reshape(t, [batch, -1, t.shape[-1]]), self.dtype) for t in inputs
        )
        if not weights:
            return [pixels, logits, tf.ones_like(logits)]
        counted = tf.where(weights[0] > 0, logits, tf.constant(-np.inf, self.dtype))
        return [pixels, counted, weights[0]]

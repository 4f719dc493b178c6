"""Attention pooling of an image: the mean of its pixels, weighted by a small network."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers, ops

LEAST = -1e30
"""Least logit that the softmax is shifted by; all logits are minus infinity if no pixel counts."""


@keras.saving.register_keras_serializable(package="tfbig")
class AttentionPooling(layers.Layer):
    """Weighted mean of the pixels of an image: `[N, ..., C]` to `[N, C]`.

        a = softmax_p(w (tanh(V h_p) * sigmoid(U h_p)))     over the pixels p of an image
        pooled = sum_p a_p h_p

    Ilse, Tomczak, Welling: "Attention-based deep multiple instance learning" (ICML 2018), equations 7 to 9, with pixels
    as instances. It streams: `tfbig.stream` computes it strip by strip.

    All pixels count, those of the background too: where an image has a background of one colour, a streamed model
    computes one pixel of it and counts it as often as it occurs. To leave pixels out, pass their weights as a second
    input.

    Args:
        hidden: Number of rows of V and U.
        gated: Whether to multiply by the gate `sigmoid(U h)`.
        activation: Activation in the place of tanh: "tanh", "relu" or "gelu".
        **options: Options of `keras.layers.Layer`, such as `name` and `dtype`.

    Returns:
        The mean `[N, C]`. Called on `[image, weights]` with weights `[N, ..., 1]`, not negative, it is
        `sum_p weights_p a_p h_p / sum_p weights_p a_p`: pixels of weight 0 are left out. Without any other pixel it
        is 0.

    Raises:
        ValueError: The number of channels differs from the one that the layer was built for.

    Example:
        >>> features = np.random.default_rng(0).normal(size=(1, 4, 5, 16)).astype("float32")
        >>> pool = tfbig.layers.AttentionPooling(hidden=8)
        >>> pool(features).shape
        TensorShape([1, 16])
        >>> weights = np.zeros((1, 4, 5, 1), "float32")
        >>> weights[0, 2, 3] = 1  # one pixel counts
        >>> np.allclose(pool([features, weights])[0], features[0, 2, 3])
        True
    """

    def __init__(
        self, hidden: int = 128, gated: bool = True, activation: str = "tanh", **options: Any
    ) -> None:
        super().__init__(**options)
        self.hidden = hidden
        self.gated = gated
        self.activation = activation
        policy = {"dtype": self.dtype_policy}
        self.v = layers.Dense(hidden, activation, name="v", **policy)
        self.u = layers.Dense(hidden, "sigmoid", name="u", **policy) if gated else None
        self.w = layers.Dense(1, name="w", **policy)

    def build(self, shapes: Any) -> None:
        """Create the weights for images `[N, ..., C]`."""
        shape = _shape_of_image(shapes)
        for layer in (self.v, *([self.u] if self.u else [])):
            layer.build(shape)
        self.w.build((*shape[:-1], self.hidden))
        super().build(shapes)

    def call(self, inputs: Any) -> Any:
        """Return the weighted mean of an image, or of `[image, weights]`."""
        image, *weights = inputs if isinstance(inputs, (tuple, list)) else [inputs]
        inner = self.v(image) if self.u is None else self.v(image) * self.u(image)
        wide = "float64" if self.compute_dtype == "float64" else "float32"
        logits = ops.cast(ops.reshape(self.w(inner), (ops.shape(image)[0], -1, 1)), wide)
        factors = ops.ones_like(logits)
        if weights:
            factors = ops.reshape(ops.cast(weights[0], logits.dtype), ops.shape(logits))
        counted = ops.where(factors > 0, logits, -np.inf)
        top = ops.maximum(ops.max(counted, axis=1, keepdims=True), LEAST)
        shares = factors * ops.exp(counted - ops.stop_gradient(top))
        total = ops.sum(shares, axis=1, keepdims=True)
        shares = ops.cast(shares / ops.where(total > 0, total, 1), image.dtype)
        pixels = ops.reshape(image, (ops.shape(image)[0], -1, image.shape[-1]))
        return ops.matmul(ops.transpose(shares, (0, 2, 1)), pixels)[:, 0]

    def compute_output_shape(self, shapes: Any) -> Any:
        """Return the shape `[N, C]` of the mean."""
        shape = _shape_of_image(shapes)
        return (shape[0], shape[-1])

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the layer."""
        own = {name: getattr(self, name) for name in ("hidden", "gated", "activation")}
        return super().get_config() | own


def _shape_of_image(shapes: Any) -> tuple[int | None, ...]:
    """Return the shape of the image among the shapes of the inputs."""
    return tuple(shapes[0] if isinstance(shapes[0], (tuple, list)) else shapes)

"""Gradients that cannot be differentiated again."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfbig.system import callbacks, traces


def first_order_only(gradients: list[Any]) -> list[Any]:
    """Return tensors whose gradient is an error when it is computed; it would be zero otherwise.

    Args:
        gradients: Tensors, or None.
    """

    @traces.custom_gradient
    def marked(*tensors: tf.Tensor) -> Any:
        def refuse(*cotangents: tf.Tensor) -> list[tf.Tensor]:
            return [
                tf.reshape(callbacks.numpy_function(_refuse, [t], t.dtype), tf.shape(t))
                for t in cotangents
            ]

        return [tf.identity(t) for t in tensors], refuse

    tensors = [g for g in gradients if g is not None]
    remaining = iter(marked(*tensors) if tensors else ())
    return [None if g is None else next(remaining) for g in gradients]


def _refuse(cotangent: np.ndarray) -> np.ndarray:
    """Raise the error."""
    raise NotImplementedError(
        "streamed models and Big layers are differentiable once; for gradients of gradients, such as a gradient "
        "penalty, use the plain model."
    )

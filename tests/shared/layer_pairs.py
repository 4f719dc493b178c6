"""A table of all Big layers, and their comparison with the Keras layers that they replace."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import keras
import pytest
import tensorflow as tf
from exactness import assert_same, gradients, integer_weights, integers

from tfbig import layers


@cache
def dilates_transposes() -> bool:
    """Return whether TensorFlow computes transposed convolutions with a dilation on this processor.

    Its own kernels do not; those of oneDNN do, which TensorFlow uses by default only where there is AVX-512.
    """
    try:
        keras.ops.conv_transpose(tf.ones((1, 4, 4, 1)), tf.ones((2, 2, 1, 1)), dilation_rate=2)
    except tf.errors.InvalidArgumentError:
        return False
    return True


@dataclass(frozen=True)
class Row:
    """Arguments and properties of a layer under test.

    Args:
        arguments: Constructor arguments, without `max_elements`.
        inputs: Number of input images.
        exact: Whether it equals its twin bitwise for integers in float32; otherwise float64 is compared to 1e-10.
        linear: Whether it is linear in its input, up to a constant.
    """

    arguments: dict[str, Any] = field(default_factory=dict)
    inputs: int = 1
    exact: bool = True
    linear: bool = False


TABLE: dict[type, Row] = {
    layers.BigConv2D: Row({"filters": 3, "kernel_size": 3, "padding": "same"}, linear=True),
    layers.BigDepthwiseConv2D: Row({"kernel_size": (3, 2), "depth_multiplier": 2}, linear=True),
    layers.BigSeparableConv2D: Row({"filters": 3, "kernel_size": 3}, linear=True),
    layers.BigConv2DTranspose: Row({"filters": 3, "kernel_size": 3, "strides": 2}, linear=True),
    layers.BigDense: Row({"units": 3}, linear=True),
    layers.BigBatchNormalization: Row({"momentum": 0.75}, exact=False, linear=True),
    layers.BigLayerNormalization: Row(exact=False),
    layers.BigGroupNormalization: Row({"groups": 2}, exact=False),
    layers.BigMaxPooling2D: Row({"pool_size": 3, "strides": 2, "padding": "same"}),
    layers.BigAveragePooling2D: Row({"pool_size": 3, "padding": "same"}, exact=False, linear=True),
    layers.BigGlobalAveragePooling2D: Row({"keepdims": True}, exact=False, linear=True),
    layers.BigGlobalMaxPooling2D: Row(),
    layers.BigUpSampling2D: Row({"size": (2, 3)}, linear=True),
    layers.BigZeroPadding2D: Row({"padding": ((1, 2), (0, 3))}, linear=True),
    layers.BigCropping2D: Row({"cropping": ((1, 0), (2, 1))}, linear=True),
    layers.BigActivation: Row({"activation": "tanh"}, exact=False),
    layers.BigReLU: Row({"max_value": 2.0, "negative_slope": 0.5, "threshold": 1.0}),
    layers.BigDropout: Row({"rate": 0.5, "seed": 3}),
    layers.BigAdd: Row(inputs=2, linear=True),
    layers.BigMultiply: Row(inputs=2),
    layers.BigConcatenate: Row(inputs=2, linear=True),
}


EVERY = pytest.mark.parametrize("kind", TABLE, ids=lambda kind: kind.__name__)


IMAGE = (2, 7, 6, 4)


FAST_KINDS = (
    layers.BigConv2D,
    layers.BigBatchNormalization,
    layers.BigConcatenate,
)
"""One layer of each kind: window with weights, statistics, window, reduction, several inputs."""


def every_kind(kinds: Any, fast: Any = FAST_KINDS) -> Any:
    """Parametrise a test over layer classes, all but `fast` marked as slow."""
    return pytest.mark.parametrize(
        "kind",
        [k if k in fast else pytest.param(k, marks=pytest.mark.slow) for k in kinds],
        ids=lambda kind: kind.__name__,
    )


def twin_of(kind: type) -> Any:
    return getattr(keras.layers, kind.__name__.removeprefix("Big"))


def shapes(row: Row, shape: Any = IMAGE) -> Any:
    """Return the argument of `build`: a shape, or one per input."""
    return shape if row.inputs == 1 else [shape] * row.inputs


def images(row: Row, shape: Any, dtype: str = "float32", top: int = 3) -> Any:
    """Return integers as the input of a layer."""
    tensors = [tf.constant(integers(shape, dtype, seed, top)) for seed in range(row.inputs)]
    return tensors[0] if row.inputs == 1 else tensors


def pair(
    kind: type, row: Row, channels: int = 4, dtype: str | None = None, **more: Any
) -> tuple[Any, Any]:
    """Return a Big layer and its twin, built for any size, with equal integer weights."""
    dtype = dtype or ("float32" if row.exact else "float64")
    big = kind(**row.arguments, **more, dtype=dtype)
    twin = twin_of(kind)(**row.arguments, dtype=dtype)
    for layer in (big, twin):
        layer.build(shapes(row, (None, None, None, channels)))
    big.set_weights(integer_weights(twin))
    twin.set_weights(big.get_weights())
    return big, twin


def spec(t: tf.Tensor, static: bool) -> tf.TensorSpec:
    """Return the spec of a tensor; without `static`, batch and size are None."""
    shape = [*[None] * (len(t.shape) - 1), t.shape[-1]]
    return tf.TensorSpec(t.shape if static else shape, t.dtype)


def compare(
    big: Any,
    twin: Any,
    row: Row,
    sizes: list[tuple[int, int, int]],
    channels: int,
    rtol: float = 0.0,
    **call: Any,
) -> None:
    """Compare outputs, gradients of inputs and weights, and moving statistics, for images `[N, H, W]`.

    The Big layer is traced once, with a static shape if there is one size and a dynamic one otherwise.
    """
    traces = []

    @tf.function(autograph=False)
    def traced(x: Any, dy: Any) -> Any:
        traces.append(1)
        return gradients(lambda x: big(x, **call), x, big.trainable_variables, dy)

    for n, h, w in sizes:
        x = images(row, (n, h, w, channels), big.compute_dtype)
        shape = twin(x, **call).shape if not twin.non_trainable_variables else (n, h, w, channels)
        dy = tf.constant(integers(shape, big.compute_dtype, seed=9))
        expected = gradients(lambda x: twin(x, **call), x, twin.trainable_variables, dy)
        concrete = traced.get_concrete_function(
            *tf.nest.map_structure(lambda t: spec(t, static=len(sizes) == 1), (x, dy))
        )
        assert_same(concrete(*tf.nest.flatten((x, dy))), expected, rtol)
        assert_same(big.get_weights(), twin.get_weights(), rtol)
    assert len(traces) == 1

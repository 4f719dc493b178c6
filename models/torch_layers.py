"""Layers as torch has them: its padding, epsilon, momentum and initial weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import keras

EPSILON = 1e-5
MOMENTUM = 0.9
"""Momentum of moving averages; torch counts from the other end, 0.1."""
GROUPS = 32

Norm: TypeAlias = Callable[[keras.KerasTensor, str], keras.KerasTensor]
"""Function `(x, name) -> x` that adds a normalisation."""


def convolution(
    x: keras.KerasTensor, filters: int, kernel: int, stride: int, name: str, padded: bool = True
) -> keras.KerasTensor:
    """Add a convolution without bias, padded by `kernel // 2` on all four sides.

    Args:
        x: Image `[N, H, W, C]`.
        filters: Number of output channels.
        kernel: Rows and columns of the kernel, an odd number.
        stride: Stride of rows and columns.
        name: Name of the layer.
        padded: False for no padding.

    Returns:
        Image `[N, H / stride, W / stride, filters]`.
    """
    return keras.layers.Conv2D(
        filters,
        kernel,
        strides=stride,
        padding=_padding(stride) if padded else "valid",
        use_bias=False,
        kernel_initializer=keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal"),
        name=name,
    )(_padded(x, kernel, stride, name) if padded else x)


def depthwise_convolution(
    x: keras.KerasTensor, kernel: int, stride: int, name: str
) -> keras.KerasTensor:
    """Add a convolution of each channel by itself, without bias, padded by `kernel // 2` on all four sides.

    Args:
        x: Image `[N, H, W, C]`.
        kernel: Rows and columns of the kernel, an odd number.
        stride: Stride of rows and columns.
        name: Name of the layer.

    Returns:
        Image `[N, H / stride, W / stride, C]`.
    """
    # For [rows, columns, C, 1], "fan_in" counts what torch counts as outputs.
    return keras.layers.DepthwiseConv2D(
        kernel,
        strides=stride,
        padding=_padding(stride),
        use_bias=False,
        depthwise_initializer=keras.initializers.VarianceScaling(
            2.0, "fan_in", "untruncated_normal"
        ),
        name=name,
    )(_padded(x, kernel, stride, name))


def _padding(stride: int) -> str:
    """Choose how a convolution pads: with stride 1, "same" is the same on all sides."""
    return "valid" if stride > 1 else "same"


def _padded(x: keras.KerasTensor, kernel: int, stride: int, name: str) -> keras.KerasTensor:
    """Pad an image with zeros on all sides, if the convolution does not."""
    if kernel == 1 or stride == 1:
        return x
    return keras.layers.ZeroPadding2D(kernel // 2, name=f"{name}.pad")(x)


def pool(x: keras.KerasTensor, pooling: str | None) -> keras.KerasTensor:
    """Pool a map `[N, H, W, C]` to features `[N, C]`.

    Args:
        x: Feature map `[N, H, W, C]`.
        pooling: "avg", "max", "flatten" for all numbers of the map in order, or None to return the map itself.

    Raises:
        ValueError: `pooling` is none of these.
    """
    if pooling not in (None, "avg", "max", "flatten"):
        raise ValueError(f"pooling={pooling!r}: expected None, 'avg', 'max' or 'flatten'.")
    if pooling == "avg":
        return keras.layers.GlobalAveragePooling2D(name="avgpool")(x)
    if pooling == "max":
        return keras.layers.GlobalMaxPooling2D(name="maxpool_all")(x)
    if pooling == "flatten":
        return keras.layers.Flatten(name="flatten")(x)
    return x


def batch_norm(x: keras.KerasTensor, name: str) -> keras.KerasTensor:
    """Add BatchNormalization with torch's epsilon and momentum.

    Args:
        x: Image `[N, H, W, C]`.
        name: Name of the layer.
    """
    return keras.layers.BatchNormalization(momentum=MOMENTUM, epsilon=EPSILON, name=name)(x)


def group_norm(x: keras.KerasTensor, name: str) -> keras.KerasTensor:
    """Add GroupNormalization of 32 groups with torch's epsilon.

    Args:
        x: Image `[N, H, W, C]`.
        name: Name of the layer.
    """
    return keras.layers.GroupNormalization(GROUPS, epsilon=EPSILON, name=name)(x)


NORMS: dict[str, Norm] = {"batch": batch_norm, "group": group_norm}
"""Normalisations by name."""


def relu(x: keras.KerasTensor, name: str, most: float | None = None) -> keras.KerasTensor:
    """Add ReLU.

    Args:
        x: Tensor of any shape.
        name: Name of the layer.
        most: Largest value, or None.
    """
    return keras.layers.ReLU(most, name=name)(x)


def linear(x: keras.KerasTensor, units: int, name: str) -> keras.KerasTensor:
    """Add a Dense layer, whose kernel is drawn as torch does; its biases begin with 0.

    Args:
        x: Features `[N, d]`.
        units: Number of outputs.
        name: Name of the layer.
    """
    bound = x.shape[-1] ** -0.5
    return keras.layers.Dense(
        units,
        kernel_initializer=keras.initializers.RandomUniform(-bound, bound),
        name=name,
    )(x)


def added(
    x: keras.KerasTensor, branch: keras.KerasTensor, rate: float, name: str
) -> keras.KerasTensor:
    """Add a branch of a block, which is dropped for some of the images of a batch (stochastic depth).

    Args:
        x: Image `[N, H, W, C]`.
        branch: What the block computes of it, of the same shape.
        rate: Share of the images without the branch, in training; the others have it divided by one minus that.
        name: Name of the layer that drops; that which adds is `NAME.add`.
    """
    if rate:
        drop = keras.layers.Dropout(rate, noise_shape=(None, 1, 1, 1), name=name)
        branch = drop(branch)
    return keras.layers.Add(name=f"{name}.add")([x, branch])

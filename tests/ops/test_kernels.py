"""Kernels of one strip return the rows of the whole image; layers are compared in tests/layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from exactness import integers

from tfbig.geometry.windows import Interval, Resize, Transposed, Window
from tfbig.ops import kernels
from tfbig.ops.kernels import InputRows, Strip


def strip_of(
    axis: Window | Transposed | Resize, x: tf.Tensor, start: int, stop: int
) -> tuple[tf.Tensor, Strip]:
    """Return the input rows, and the position, of one strip."""
    size = x.shape[1]
    needed = axis.needs(Interval(start, stop), size)
    inside = needed.clip(size)
    before, after = inside.start - needed.start, needed.stop - inside.stop
    rows = InputRows(*map(tf.constant, (*map(int, inside), int(before), int(after), size)))
    strip = Strip(tf.constant(start), tf.constant(stop), tf.constant(axis.extent(size)), (rows,))
    return x[:, int(inside.start) : int(inside.stop)], strip


KERNEL = tf.constant(integers((3, 3, 2, 4), seed=1))
CASES: dict[str, tuple[Any, Callable[..., tf.Tensor], Callable[[tf.Tensor], tf.Tensor]]] = {
    "same convolution": (
        Window(3, padding="same"),
        lambda x, axes, strip: kernels.convolution(x, KERNEL, axes, 1, strip),
        lambda x: tf.nn.conv2d(x, KERNEL, 1, "SAME"),
    ),
    "strided convolution": (
        Window(3, 2, padding="same"),
        lambda x, axes, strip: kernels.convolution(x, KERNEL, axes, 1, strip),
        lambda x: tf.nn.conv2d(x, KERNEL, 2, "SAME"),
    ),
    "depthwise convolution": (
        Window(3),
        lambda x, axes, strip: kernels.depthwise_convolution(x, KERNEL, axes, strip),
        lambda x: tf.nn.depthwise_conv2d(x, KERNEL, (1, 1, 1, 1), "VALID"),
    ),
    "max pooling": (
        Window(3, 2, padding="same"),
        kernels.max_pool,
        lambda x: tf.nn.max_pool2d(x, 3, 2, "SAME"),
    ),
    "average pooling": (
        Window(2, 2, padding="same"),
        kernels.average_pool,
        lambda x: tf.nn.avg_pool2d(x, 2, 2, "SAME"),
    ),
    "upsampling": (
        Transposed(2, 2),
        kernels.repeat,
        lambda x: tf.repeat(tf.repeat(x, 2, 1), 2, 2),
    ),
    "bilinear upsampling": (
        Resize(2),
        kernels.bilinear,
        lambda x: tf.image.resize(x, (2 * x.shape[1], 2 * x.shape[2])),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_strips_of_one_to_three_rows(name: str) -> None:
    """Integers: sums are exact in any order."""
    axis, kernel, whole = CASES[name]
    x = tf.constant(integers((2, 9, 7, 2)))
    expected = whole(x)
    assert axis.extent(9) == expected.shape[1]
    for start in range(0, expected.shape[1], 3):
        for stop in range(start + 1, min(start + 3, expected.shape[1]) + 1):
            rows, strip = strip_of(axis, x, start, stop)
            np.testing.assert_array_equal(
                kernel(rows, (axis, axis), strip), expected[:, start:stop]
            )


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("copy", [False, True])
def test_take_rows(batch: int, copy: bool) -> None:
    """The gradient is zero outside the rows."""
    x = tf.constant(integers((batch, 5, 3, 2)))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = kernels.take_rows(x, 1, 3, copy=copy)
    np.testing.assert_array_equal(y, x[:, 1:4])
    gradient = tape.gradient(y, x, 2 * tf.ones_like(y))
    np.testing.assert_array_equal(gradient[:, 1:4], np.full(y.shape, 2))
    np.testing.assert_array_equal(tf.gather(gradient, [0, 4], axis=1), np.zeros((batch, 2, 3, 2)))


@pytest.mark.parametrize("channels", [3, None])
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_gradients_of_a_kernel_of_one_pixel(padding: str, channels: int | None) -> None:
    """They are those of TensorFlow, also where the numbers of channels are not known when the function is traced."""
    x, dy = tf.constant(integers((2, 5, 7, 3))), tf.constant(integers((2, 5, 7, 4), seed=2))
    kernel = tf.constant(integers((1, 1, 3, 4), seed=1))
    axes = (Window(1, padding=padding),) * 2
    _, strip = strip_of(axes[0], x, 0, 5)

    def gradients(function: Callable[..., tf.Tensor]) -> Any:
        with tf.GradientTape() as tape:
            tape.watch((x, kernel))
            y = function(x, kernel)
        return y, *tape.gradient(y, (x, kernel), dy)

    specs = [tf.TensorSpec(s) for s in ((None, None, None, channels), (1, 1, channels, None))]
    traced = tf.function(
        lambda x, kernel: kernels.convolution(x, kernel, axes, 1, strip), input_signature=specs
    )
    expected = gradients(lambda x, kernel: tf.nn.conv2d(x, kernel, 1, "SAME"))
    for actual, wanted in zip(gradients(traced), expected, strict=True):
        np.testing.assert_array_equal(actual, wanted)


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("stride", [1, 2])
def test_gradient_of_compiled_pooling_goes_to_the_first_maximum(size: int, stride: int) -> None:
    """With ties as TensorFlow's kernel; windows of 5 x 5 are one operation in XLA too."""
    window = Window(size, stride, padding="same")
    x = tf.constant(integers((2, 9, 7, 3), top=2))
    _, strip = strip_of(window, x, 0, window.extent(9))
    strip = replace(strip, compiled=True)

    def with_gradient(pool: Callable[[tf.Tensor], tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = pool(x)
        seeds = tf.reshape(tf.range(tf.size(y)), tf.shape(y))  # all different
        return y, tape.gradient(y, x, tf.cast(seeds, x.dtype))

    compiled = tf.function(
        lambda: with_gradient(lambda x: kernels.max_pool(x, (window, window), strip)),
        jit_compile=True,
    )
    expected = with_gradient(lambda x: tf.nn.max_pool2d(x, size, stride, "SAME"))
    for mine, plain in zip(compiled(), expected, strict=True):
        np.testing.assert_array_equal(mine, plain)


def test_pad() -> None:
    x = tf.ones((1, 2, 2, 1))
    assert kernels.pad(x, (0, 0), (0, 0)) is x
    padded = kernels.pad(x, (1, 0), (0, 2), value=7)
    np.testing.assert_array_equal(padded[0, :, :, 0], [[7, 7, 7, 7], [1, 1, 7, 7], [1, 1, 7, 7]])


def test_fit() -> None:
    """Rows 2 to 5 of an output, as the strips 0 to 4 and 3 to 7."""
    y = tf.reshape(tf.range(2.0, 6.0), (1, 4, 1, 1))
    for start, stop, expected in ((0, 4, [0, 0, 2, 3]), (3, 7, [3, 4, 5, 0])):
        rows = kernels.fit(y, [tf.constant(2)], Strip(start, stop, 9, ()))
        np.testing.assert_array_equal(tf.reshape(rows, [-1]), expected)

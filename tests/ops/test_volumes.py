"""Convolutions of volumes by planes return, for every strip, the rows of TensorFlow's own; bitwise on integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from exactness import assert_same, integers

from tfbig.geometry.windows import Interval, Transposed, Window
from tfbig.ops import kernels, volumes
from tfbig.ops.kernels import InputRows, Strip

SIZE = (7, 5, 6)
CONVOLUTIONS: dict[str, tuple[tuple[Window, ...], int]] = {
    "same": ((Window(3, padding="same"),) * 3, 1),
    "pointwise": ((Window(),) * 3, 1),
    "valid and strided": ((Window(3), Window(2, 1), Window(3, 2)), 1),
    "same and strided": ((Window(3, 1, padding="same"), *(Window(3, 2, padding="same"),) * 2), 1),
    "groups": ((Window(3, padding="same"), Window(1), Window(2, padding="same")), 2),
    "planes": (
        (Window(1, padding="same"), Window(3, padding="same"), Window(3, padding="same")),
        1,
    ),
}
TRANSPOSED = {
    "side by side": (Transposed(2, 2), Transposed(1, 1), Transposed(3, 3)),
    "overlapping": (Transposed(3, 2, padding="same"), Transposed(2, 2), Transposed(2, 1)),
}


def part(
    axes: Any, x: tf.Tensor, starts: tuple[int, ...], stops: tuple[int, ...]
) -> tuple[tf.Tensor, Strip]:
    """Return the input, and the position, of a part of the output along the first axes."""
    cut, strips = [slice(None)], []
    for axis, start, stop, size in zip(axes, starts, stops, x.shape[1:], strict=False):
        needed = axis.needs(Interval(start, stop), size)
        inside = needed.clip(size)
        before, after = inside.start - needed.start, needed.stop - inside.stop
        rows = InputRows(*map(tf.constant, (*map(int, inside), int(before), int(after), size)))
        numbers = map(tf.constant, (start, stop, axis.extent(size)))
        strips.append(Strip(*numbers, (rows,)))
        cut.append(slice(int(inside.start), int(inside.stop)))
    first, *others = strips
    return x[tuple(cut)], Strip(first.start, first.stop, first.extent, first.inputs, tuple(others))


def check(
    run: Callable[..., tf.Tensor],
    plain: Callable[..., tf.Tensor],
    kernel: tf.Tensor,
    axes: Any,
    batch: int,
) -> None:
    """Compare rows and tiles, and their gradients, with the whole volume."""
    x = tf.constant(integers((batch, *SIZE, 4)))
    extents = [axis.extent(size) for axis, size in zip(axes, SIZE, strict=True)]
    for num_axes in (1, 2, 3):
        stops = tuple(extents[:num_axes])
        for starts in ((0,) * num_axes, tuple(n - 1 for n in stops)):

            def of_part(x: tf.Tensor, kernel: tf.Tensor, a: Any = starts, b: Any = stops) -> Any:
                inputs, strip = part(axes, x, a, b)
                return run(inputs, kernel, strip)

            def of_whole(x: tf.Tensor, kernel: tf.Tensor, a: Any = starts, b: Any = stops) -> Any:
                return plain(x, kernel)[(slice(None), *map(slice, a, b))]

            assert_same(results(of_part, x, kernel), results(of_whole, x, kernel))


def results(function: Callable[..., tf.Tensor], x: tf.Tensor, kernel: tf.Tensor) -> list[tf.Tensor]:
    """Return the output, and the gradients of a sum of it with integer weights."""
    with tf.GradientTape() as tape:
        tape.watch([x, kernel])
        y = function(x, kernel)
    return [y, *tape.gradient(y, [x, kernel], tf.constant(integers(y.shape, seed=2)))]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name: str, batch: int) -> None:
    axes, groups = CONVOLUTIONS[name]
    kernel = tf.constant(integers((*(a.kernel for a in axes), 4 // groups, 6), seed=1))
    padding = "SAME" if axes[-1].padding == "same" else "VALID"

    @tf.function(autograph=False)  # outside of a graph, TensorFlow has no gradient of its Conv3D
    def plain(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        strides = [a.stride for a in axes]
        parts = zip(tf.split(x, groups, -1), tf.split(kernel, groups, -1), strict=True)
        return tf.concat([tf.nn.convolution(a, k, strides, padding) for a, k in parts], -1)

    check(
        lambda x, kernel, strip: volumes.convolution(x, kernel, axes, groups, strip),
        plain,
        kernel,
        axes,
        batch,
    )


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolution(name: str) -> None:
    axes = TRANSPOSED[name]
    kernel = tf.constant(integers((*(a.kernel for a in axes), 3, 4), seed=1))

    def plain(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        _, strip = part(axes, x, (0,), (axes[0].extent(SIZE[0]),))
        return kernels.transposed_convolution(x, kernel, axes, strip)

    check(
        lambda x, kernel, strip: volumes.transposed_convolution(x, kernel, axes, strip),
        plain,
        kernel,
        axes,
        2,
    )


def test_planes_on_a_cpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert volumes.by_planes([Window()] * 3)
    assert not volumes.by_planes([Window()] * 2)
    assert not volumes.by_planes([Window(), Window(2, dilation=2), Window()])
    assert not volumes.by_planes([Window(3, 2), Window(), Window()])
    assert volumes.by_planes([Transposed(2, 2)] * 3)
    monkeypatch.setattr(volumes.backend, "accelerator", lambda: "/GPU:0")
    assert not volumes.by_planes([Window()] * 3)

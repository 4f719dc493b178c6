"""Interpolation weights, against `tf.image.resize`."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from exactness import assert_same, integers
from streamed_pairs import slow

from tfbig.ops import resizing

ROUNDING = 2.0**-24
"""Largest relative error of one operation in float32."""


@pytest.mark.parametrize("method", list(resizing.RADIUS))
@pytest.mark.parametrize(
    ("sizes", "antialias"),
    [
        slow(((7, 9), (12, 5)), False),
        (((7, 9), (12, 5)), True),
        *(slow(((30, 11), (7, 11)), antialias) for antialias in (False, True)),
        (((5, 1), (64, 3)), False),
        slow(((5, 1), (64, 3)), True),  # enlarged, which nothing blurs
        *(slow(((7, 7), (7, 14)), antialias) for antialias in (False, True)),
    ],
)
def test_whole_images(
    sizes: tuple[tuple[int, int], tuple[int, int]], method: str, antialias: bool
) -> None:
    """Outputs and gradients."""
    (height, width), size = sizes
    random, shape = np.random.default_rng(0), (2, height, width, 3)
    draw = integers if method == "nearest" else lambda shape: random.uniform(-1, 1, shape)
    x, dy = (tf.constant(draw(s), tf.float32) for s in (shape, (2, *size, 3)))

    @tf.function(autograph=False)  # a graph, whose arithmetic TensorFlow changes
    def ours(x: tf.Tensor) -> tf.Tensor:
        return resizing.resize(x, [lambda n, s=s: s for s in size], method, antialias, Whole())

    def theirs(x: tf.Tensor) -> tf.Tensor:
        return tf.image.resize(x, size, method, antialias=antialias)

    results = []
    for run in (ours, theirs):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = run(x)
        results.append([y, tape.gradient(y, x, dy)])
    assert_same(*results, 0 if method == "nearest" else _error((height, width), size, method))


def _error(before: tuple[int, int], after: tuple[int, int], method: str) -> float:
    """Return the most that float32 sums may differ.

    Each axis adds up to `2 * radius * ratio + 1` products, and as many in the gradient the other way round. Every
    product and sum is rounded, as are the weight and its normalisation: eight roundings for a term of order 1.
    """
    ratios = (max(n / m, m / n) for n, m in zip(before, after, strict=True))
    return 8 * ROUNDING * sum(2 * resizing.RADIUS[method] * r + 1 for r in ratios)


class Whole:
    """A strip that is the whole image."""

    def along(self, axis: int) -> None:
        """Return None: the image is cut along no axis."""

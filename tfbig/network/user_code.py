"""Checks of custom code: which Keras methods a class overrides, and whether a function is per pixel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

SIDE = 6
"""Rows and columns of the images that functions are tested on."""


def overridden(instance: Any, *names: str) -> str | None:
    """Return the first of these methods that a custom subclass of a Keras class overrides, or None."""
    for kind in type(instance).__mro__:
        if kind.__module__.partition(".")[0] in ("keras", "tfbig"):
            return None
        methods = [name for name in names if name in vars(kind)]
        if methods:
            return methods[0]
    return None


def is_per_pixel(
    function: Callable[..., Any], channels: Sequence[int], spatial: int, dtype: str
) -> bool:
    """Return whether a function computes each pixel from the same pixel of its inputs.

    It is run on small images and on halves of them, and the results are compared. Returns True if the function
    fails on them: the error that it raises later says more.

    Args:
        function: Maps images `[N, ..., C]` to `[N, ...]` or `[N, ..., C]`.
        channels: Channels of each image. The first of several may be labels, so its values are 0 and 1; those of
            the last are between 0 and 1.
        spatial: Number of spatial axes of the images.
        dtype: Element type of the images.
    """
    draw = np.random.default_rng(0)
    slope = np.indices([SIDE] * spatial).mean(0) / SIDE  # halves and the whole have different means
    images = [
        0.8 * slope[None, ..., None] + 0.2 * draw.random((1, *slope.shape, c)) for c in channels
    ]
    images[0] = np.round(images[0]) if len(images) > 1 else images[0]
    with tf.init_scope():
        tensors = [tf.constant(image, dtype) for image in images]
        try:
            whole = np.asarray(function(*tensors), np.float64)
            halves = {
                (axis, rows): _run_on_part(function, tensors, axis, rows)
                for axis in range(1, spatial + 1)
                for rows in (range(SIDE // 2), range(SIDE // 2, SIDE))
            }
        except Exception:  # custom code may raise anything
            return True
    if whole.shape[: spatial + 1] != images[0].shape[:-1]:
        return False
    for (axis, rows), part in halves.items():
        expected = np.take(whole, rows, axis)
        if part.shape != expected.shape or not np.allclose(
            part, expected, rtol=1e-2, atol=1e-3, equal_nan=True
        ):
            return False
    return True


def _run_on_part(
    function: Callable[..., Any], tensors: Sequence[tf.Tensor], axis: int, rows: range
) -> np.ndarray:
    """Return the result of the function for some rows of its images along one axis."""
    parts = [tf.gather(t, list(rows), axis=axis) for t in tensors]
    return np.asarray(function(*parts), np.float64)

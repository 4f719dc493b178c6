"""What classes and functions of one's own change: methods of Keras, and how far a function looks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

SIDE = 6
"""Rows and columns of the images on which functions are tried."""


def overridden(thing: Any, *names: str) -> str | None:
    """The first of these methods that a class below those of Keras defines, or None."""
    for kind in type(thing).__mro__:
        if kind.__module__.partition(".")[0] in ("keras", "tfbig"):
            return None
        found = [name for name in names if name in vars(kind)]
        if found:
            return found[0]
    return None


def per_pixel(
    function: Callable[..., Any], channels: Sequence[int], spatial: int, dtype: str
) -> bool:
    """Whether a function of images gives the same numbers for a part of them as for all: tried on small ones.

    True where it fails on them: its own error says more when it runs.

    Args:
        function: of images `[N, ..., C]` to `[N, ...]` or `[N, ..., C]`.
        channels: of each image; the first may be labels, so its numbers are 0 and 1, those of the last are between.
        spatial: axes of the images besides N and C.
        dtype: element type of the images.
    """
    draw = np.random.default_rng(0)
    slope = np.indices([SIDE] * spatial).mean(0) / SIDE  # parts have other means than all
    images = [
        0.8 * slope[None, ..., None] + 0.2 * draw.random((1, *slope.shape, c)) for c in channels
    ]
    images[0] = np.round(images[0]) if len(images) > 1 else images[0]
    with tf.init_scope():
        tensors = [tf.constant(image, dtype) for image in images]
        try:
            whole = np.asarray(function(*tensors), np.float64)
            parts = {
                (axis, rows): _part(function, tensors, axis, rows)
                for axis in range(1, spatial + 1)
                for rows in (range(SIDE // 2), range(SIDE // 2, SIDE))
            }
        except Exception:  # whatever a function of one's own raises
            return True
    if whole.shape[: spatial + 1] != images[0].shape[:-1]:
        return False
    for (axis, rows), part in parts.items():
        expected = np.take(whole, rows, axis)
        if part.shape != expected.shape or not np.allclose(
            part, expected, rtol=1e-2, atol=1e-3, equal_nan=True
        ):
            return False
    return True


def _part(
    function: Callable[..., Any], tensors: Sequence[tf.Tensor], axis: int, rows: range
) -> np.ndarray:
    """What the function gives for a part of its images."""
    parts = [tf.gather(t, list(rows), axis=axis) for t in tensors]
    return np.asarray(function(*parts), np.float64)

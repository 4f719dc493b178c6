"""Interpolation, which TensorFlow computes in float32."""

from __future__ import annotations

from itertools import product
from typing import Any

import keras
import pytest
import tensorflow as tf
from exactness import assert_same, gradients
from keras import layers, ops
from tiles import cut_in_tiles
from twins import images

import tfbig
from tfbig.ops.resizing import RADIUS

SIZE = (9, 8)
CASES = [
    *(
        pytest.param(
            lambda x, m=method, a=antialias: layers.Resizing(5, 13, m, antialias=a)(x),
            id=f"{method} {antialias}",
        )
        for method in RADIUS
        for antialias in (False, True)
    ),
    *(
        pytest.param(
            lambda x, m=method: layers.UpSampling2D((2, 3), interpolation=m)(x), id=f"up {method}"
        )
        for method in RADIUS
    ),
    pytest.param(lambda x: ops.image.resize(x, (20, 5)), id="operation"),
]


QUICK = {"bilinear True", "nearest False"}


@pytest.mark.parametrize(
    ("apply", "turned", "way"),
    [
        pytest.param(
            *case.values,
            turned,
            way,
            id=f"{case.id}-{turned}-{way}",
            marks=[] if (turned, way) == (True, "rows") and case.id in QUICK else pytest.mark.slow,
        )
        for case, turned, way in product(CASES, (False, True), ("rows", "tiles"))
    ],
)
def test_strips(apply: Any, turned: bool, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs and gradients; the weights of a pixel are rounded, and so is each of the sums.

    An axis has at most 2 * 5 * 9 / 5 + 1 = 19 terms, of which each is rounded eight times.
    """
    start = keras.Input((None, None, 2))
    model = keras.Model(start, apply(start))
    x = images(model, 2, *(SIZE[::-1] if turned else SIZE))
    if way == "tiles":
        cut_in_tiles(monkeypatch)
    big = tfbig.stream(model, strip_rows=3)
    dy = tf.random.stateless_uniform(model(x).shape, [1, 2], -1.0, 1.0)
    assert_same(*[gradients(m, x, [], dy) for m in (big, model)], 2 * 19 * 8 * 2**-24)


def test_integers() -> None:
    """Rounded as in Keras."""
    start = keras.Input((None, None, 2), dtype="uint8")
    model = keras.Model(start, ops.image.resize(start, (5, 4), "nearest"))
    x = tf.cast(100 * tf.random.stateless_uniform((2, 9, 8, 2), [1, 2]), "uint8")
    assert_same(tfbig.stream(model, strip_rows=2, source_dtype="uint8")(x), model(x))


@pytest.mark.parametrize("option", ["crop_to_aspect_ratio", "pad_to_aspect_ratio"])
def test_aspect_ratio(option: str) -> None:
    start = keras.Input((None, None, 2))
    model = keras.Model(start, layers.Resizing(5, 4, **{option: True})(start))
    with pytest.raises(tfbig.UnsupportedLayerError, match=f"has {option}=True, whose rows depend"):
        tfbig.stream(model)

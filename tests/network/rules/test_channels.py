"""Operations over the channels of each pixel: what is refused."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from exactness import assert_same
from keras import layers, ops

import tfbig


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda x: ops.cumsum(x, 1),
            "over the channels, axis=-1; received axis=1.*unsupported='device'",
        ),
        (lambda x: ops.argmax(x), "received axis=None"),
        (lambda x: ops.stack([x, x], 1), "received axis=1"),
        (
            lambda x: ops.squeeze(ops.max(x, -1, keepdims=True)),
            "axis=None, which may remove spatial",
        ),
        (
            lambda x: ops.digitize(ops.max(x, -1), np.arange(2.0)) + x[..., :1],
            "same number of axes",
        ),
        (lambda x: ops.cross(x, x, axisc=1), "expected -1, the channels"),
        (lambda x: ops.transpose(x, (0, 2, 1, 3)), "needs the whole image, whose size"),
    ],
)
def test_refused(build: Any, message: str) -> None:
    start = keras.Input((None, None, 3))
    with pytest.raises(tfbig.UnsupportedLayerError, match=message):
        tfbig.stream(keras.Model(start, build(start)))


def test_channel_shuffle_is_not_read_whole() -> None:
    """A shuffle as ShuffleNet writes it stays a function of each pixel."""
    start = keras.Input((8, 6, 4))
    x = layers.Reshape((8, 6, 2, 2))(start)
    x = layers.Reshape((8, 6, 4))(layers.Permute((1, 2, 4, 3))(x))
    model = keras.Model(start, x)
    big = tfbig.stream(model, strip_rows=2)
    assert len(big.plan((1, 8, 6, 4)).sweeps) == 1
    picture = np.arange(8 * 6 * 4.0).reshape(1, 8, 6, 4).astype("float32")
    assert_same(big(picture), model(picture))

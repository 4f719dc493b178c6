"""What slices, flips, padding and repetition refuse; `tests/conformance` compares the rest with plain Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
from keras import layers, ops
from twins import assert_streams, images

import tfbig


def split(x: Any) -> Any:
    """Return an image with two axes of channels, of 4 and of 1."""
    return x[..., None]


def refused(function: Callable[[Any], Any]) -> Any:
    start = keras.Input((None, None, 4), batch_size=2)
    model = keras.Model(start, function(start))
    with pytest.raises(tfbig.UnsupportedLayerError) as error:
        tfbig.stream(model)
    return error


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x[:1, :], r"selects images of the batch, :1; slice the data"),
        (lambda x: x[:, 3], r"selects 3, so that the result has other axes .* x\[:, 3:4\]"),
        (lambda x: x[:, None], "inserts an axis"),
        (lambda x: split(x)[:, 1:], "selects pixels of an image with several axes of channels"),
        (lambda x: x[:, ::-2], r"selects ::-2; expected steps of 1 or more"),
        (lambda x: ops.flip(x), "flips the batch, axis=None; expected axes from 1 to 3"),
        (lambda x: ops.pad(x, 1), r"pads the batch by \(1, 1\); expected \(0, 0\)"),
        (
            lambda x: ops.pad(x, ((0, 0), (1, 1), (0, 0), (0, 0)), "edge"),
            "mode='edge'; expected 'constant', 'reflect' or 'symmetric'",
        ),
        (lambda x: ops.repeat(x, 2, 0), "repeats axis=0 2 times; expected one number"),
        (lambda x: ops.tile(x, (1, 2, 1, 1)), "strips can only repeat the channels"),
        (lambda x: ops.roll(x, 1, 1), "strips can only move channels, axis=-1"),
    ],
)
def test_refusals(function: Callable[[Any], Any], message: str) -> None:
    assert refused(function).match(message)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: layers.CenterCrop(9, 3)(x), "the 9 pixels in the middle of an axis of 8"),
        (
            lambda x: ops.pad(x, ((0, 0), (8, 0), (0, 0), (0, 0)), "reflect"),
            r"an axis of 8 pixels is padded by \(8, 0\) of its own; expected at most 7",
        ),
        (lambda x: ops.space_to_depth(x, 3), "8 pixels is no multiple of the block_size 3"),
        (lambda x: x[:, 9:], "the image is too small"),
    ],
)
def test_images_of_another_size(function: Callable[[Any], Any], message: str) -> None:
    start = keras.Input((None, None, 4))
    big = tfbig.stream(keras.Model(start, function(start)))
    with pytest.raises(ValueError, match=message):
        big.plan((1, 8, 9, 4))


def test_selections_among_axes_of_channels(float64: None) -> None:
    """Numbers, slices and new axes, of one axis of channels or several, in strips and tiles."""
    inputs = keras.Input((None, None, 3))
    x = layers.Conv2D(6, 3, padding="same")(inputs)
    two = ops.stack([x, 2 * x], axis=-2)
    outputs = [
        x[..., 2][..., None],
        two[..., 1, :],
        two[..., ::-1, 2:4][..., 0, :],
        two[:, :, :, -1],
        ops.sum(two[..., None, :, 3], axis=-2),
    ]
    network = keras.Model(inputs, outputs)
    assert_streams(network, images(network, 2, 7, 6), 2, training=True)

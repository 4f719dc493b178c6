"""Inputs of a model: order, shapes, handles."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfbig.streaming.model_inputs import ModelInputs


def reader(named: bool = False) -> ModelInputs:
    images = [keras.Input((None, None, n), name=f"image{n}") for n in (1, 2)]
    x = keras.layers.Concatenate()(images)
    inputs = {t.name: t for t in images} if named else images
    return ModelInputs("model", keras.Model(inputs, x), 4)


def arrays() -> dict[str, Any]:
    return {"image2": np.ones((3, 5, 6, 2)), "image1": np.zeros((3, 5, 6))}


@pytest.mark.parametrize("named", [True, False])
def test_order_of_the_model(named: bool) -> None:
    """A dict may be in any order, and an image of one channel needs no channel axis."""
    inputs = reader(named).read(arrays())
    assert [t.shape.as_list() for t in inputs] == [[3, 5, 6, 1], [3, 5, 6, 2]]


def test_handles_are_not_read_while_tracing() -> None:
    image = keras.Input((None, None, 2))
    inputs, read = ModelInputs("model", keras.Model(image, image), 4), []

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def trace(handles: tf.Tensor) -> None:
        read.extend(inputs.read(handles))

    trace.get_concrete_function()
    assert [t.dtype for t in read] == [tf.string]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image1": None}, "input 'image1' is None"),
        ({"image2": np.ones((3, 5, 6, 3))}, r"'image2' has shape \(3, 5, 6, 3\), expected"),
        ({"image2": np.ones((3, 5))}, r"'image2' has shape \(3, 5\), expected"),
    ],
)
def test_wrong_inputs(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        reader().read(arrays() | change)


def test_wrong_number_of_inputs() -> None:
    with pytest.raises(ValueError, match=r"has 2 inputs \(image1, image2\), received 1"):
        reader().read([np.ones((3, 5, 6))])


def test_traced_shapes_leave_out_sizes_that_the_model_does_not_fix() -> None:
    fixed = keras.Input((5, 6, 2))
    assert reader().traced_shape(tf.TensorShape([3, 5, 6, 2])) == [3, None, None, 2]
    assert reader().traced_shape(tf.TensorShape([3])) == [3]
    inputs = ModelInputs("model", keras.Model(fixed, fixed), 4)
    assert inputs.traced_shape(tf.TensorShape([3, 5, 6, 2])) == [3, 5, 6, 2]

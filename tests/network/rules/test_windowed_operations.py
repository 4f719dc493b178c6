"""Convolutions of keras.ops that plain Keras has no model for; `tests/conformance` compares the rest."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from exactness import assert_same, integers
from keras import ops

import tfbig


@pytest.mark.parametrize("options", [{}, {"strides": 2, "padding": "same"}, {"output_padding": 1}])
def test_transposed_convolution(options: dict[str, Any]) -> None:
    """Keras 3.15 mixes up two arguments of this operation in a model; it is right on tensors."""
    kernel, x = integers((3, 2, 5, 4)), integers((2, 7, 6, 4), seed=1)
    start = keras.Input((None, None, 4))
    options = {"strides": 2, **options}
    big = tfbig.stream(
        keras.Model(start, ops.conv_transpose(start, kernel, **options)), strip_rows=3
    )
    assert_same(big(x), ops.conv_transpose(x, kernel, **options))


def test_a_kernel_of_unknown_shape() -> None:
    start = keras.Input((None, None, 4))
    model = keras.Model(start, ops.conv(start, start[:, :3, :3], padding="same"))
    with pytest.raises(tfbig.UnsupportedLayerError, match=r"has a kernel of shape .* known shape"):
        tfbig.stream(model)


def test_constant_kernel_in_tensors() -> None:
    start = keras.Input((None, 4))
    kernel = np.ones((3, 4, 2), "float32")
    model = keras.Model(start, ops.conv(start, ops.convert_to_tensor(kernel), padding="same"))
    x = integers((2, 11, 4))
    assert_same(tfbig.stream(model, strip_rows=3)(x), model(x))

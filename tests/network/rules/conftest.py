"""Comparison of a streamed model with the plain one, for all tests of rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
from twins import assert_streams, images, unlike_at_start

CASES = [
    pytest.param((1, True), id="training"),
    pytest.param((3, False), id="inference", marks=pytest.mark.slow),
]
"""Rows of a strip, and mode."""


@pytest.fixture(params=CASES)
def check(request: pytest.FixtureRequest) -> Callable[[Any, Any], None]:
    """Function that compares outputs, gradients and variables of a model `(inputs, outputs)`, streamed and plain."""

    def check(inputs: Any, outputs: Any) -> None:
        model = keras.Model(inputs, outputs)
        x = images(model, 2, 7, 6)
        model(x)  # Keras builds activations that are layers in their first call
        unlike_at_start(model)
        assert_streams(model, x, *request.param)

    return check

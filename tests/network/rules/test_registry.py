"""Registration and lookup of rules."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import tfbig
from tfbig.geometry.windows import Window
from tfbig.network import rules

pytestmark = pytest.mark.usefixtures("float64")

Check = Callable[[Any, Any], None]


def image(channels: int = 4) -> Any:
    return keras.Input((None, None, channels))


def docstring_layers() -> dict[str, Any]:
    """Return the layers and rules that the docstring of `tfbig.rule` defines."""
    text = inspect.getdoc(tfbig.rule)
    assert text is not None
    scope: dict[str, Any] = {"keras": keras, "tf": tf, "tfbig": tfbig}
    for example in doctest.DocTestParser().get_examples(text):
        if example.source.startswith(("class", "@")):
            exec(example.source, scope)
    return scope


def test_docstring_layers(check: Check) -> None:
    scope, inputs = docstring_layers(), image()
    blurred = scope["Blur"]()(layers.ReLU()(inputs))
    check(inputs, [blurred, scope["Energy"]()(scope["Blur"]()(blurred))])


def test_layer_without_rule() -> None:
    class Strange(layers.Layer):
        def call(self, x: Any) -> Any:
            return tf.nn.relu(x)

    inputs = image()
    with pytest.raises(
        tfbig.UnsupportedLayerError,
        match=r"layer 'odd' \(Strange\) has no rule.*`return tf.nn.relu\(x\)`.*@tfbig.rule, see help\(tfbig.rule\)",
    ):
        tfbig.stream(keras.Model(inputs, Strange(name="odd")(inputs)))


def test_subclass_with_own_call(check: Check) -> None:
    """The rule of the parent holds for a subclass unless that overrides `call`, which is then read."""

    class Doubled(layers.Conv2D):
        def call(self, x: Any) -> Any:
            return 2 * super().call(x)

    class Strange(Doubled):
        def call(self, x: Any) -> Any:
            return tf.sort(super().call(x))

    class Named(layers.Conv2D):
        """Layer with the computation of its parent."""

    inputs = image()
    check(inputs, Named(2, 3)(inputs))
    with pytest.raises(tfbig.UnsupportedLayerError, match=r"\(Strange\) has no rule"):
        tfbig.stream(keras.Model(inputs, Strange(2, 3)(inputs)))
    tfbig.rule(Doubled)(
        lambda call: call.local(
            lambda x, w, strip: 2 * (tf.nn.conv2d(x[0], w[0], 1, "VALID") + w[1]),
            [Window(3), Window(3)],
            [call.layer.kernel, call.layer.bias],
        )
    )
    check(inputs, Doubled(2, 3)(inputs))


def test_subclass_with_own_parameters(check: Check) -> None:
    """A subclass that overrides `kernel`, on which rules rely, is read: what it computes from weights has gradients."""

    class Standardised(layers.Conv2D):
        @property
        def kernel(self) -> Any:
            return super().kernel - ops.mean(super().kernel, axis=(0, 1, 2), keepdims=True)

    inputs = image(2)
    check(inputs, Standardised(3, 3, padding="same")(inputs))


def test_subclass_with_own_statistics() -> None:
    """One that changes variables in its `call` is refused."""

    class Wide(layers.BatchNormalization):
        def _moments(self, x: Any, mask: Any) -> Any:
            mean, variance = super()._moments(x, mask)
            return mean, 2 * variance

    start = image(2)
    with pytest.raises(tfbig.UnsupportedLayerError, match=r"\(Wide\) has no rule"):
        tfbig.stream(keras.Model(start, Wide()(start)))


def test_invalid_result_of_a_rule() -> None:
    class Plain(layers.Layer):
        def call(self, x: Any) -> Any:
            return x

    start = image(2)
    model = keras.Model(start, Plain()(start))
    window = tfbig.geometry.Window(3, padding="same")
    invalid: list[tuple[Callable[..., Any], str]] = [
        (lambda call: None, "a rule that returns None; expected the value"),
        (lambda call: call.local(lambda x, w, s: x[0], [window]), "1 windows; expected 2"),
    ]
    for rule, message in invalid:
        tfbig.rule(Plain)(rule)
        with pytest.raises(tfbig.UnsupportedLayerError, match=message):
            tfbig.stream(model)


def test_find() -> None:
    assert rules.find(layers.Conv2D(1, 1)) is rules.RULES[layers.Conv2D]
    assert rules.find(layers.SpatialDropout2D(0.5)) is rules.RULES[layers.Dropout]
    assert rules.find(layers.Conv2D(1, 1), layers.Dense) is rules.RULES[layers.Dense]


def test_rule_returns_the_function() -> None:
    def function(call: Any) -> int:
        return call.inputs[0]

    class First(layers.Layer):
        pass

    class Second(layers.Layer):
        pass

    assert tfbig.rule(First, Second)(function) is function
    assert rules.RULES[First] is rules.RULES[Second] is function


def test_multiple_inputs_keep_their_order() -> None:
    """A rule with two image inputs receives them in the order of the call."""

    class Difference(layers.Layer):
        def call(self, x: Any) -> Any:
            return x[0] - 2 * x[1]

    tfbig.rule(Difference)(lambda call: call.local(lambda x, w, strip: x[0] - 2 * x[1]))
    inputs = [image(2), image(2)]
    model = keras.Model(inputs, Difference()(inputs))
    x = [np.full((1, 5, 4, 2), value) for value in (7.0, 1.0)]
    np.testing.assert_array_equal(tfbig.stream(model, strip_rows=2)(x), x[0] - 2 * x[1])

"""Big layers have the signature, config and weights of their Keras twins."""

from __future__ import annotations

import inspect
from typing import Any

import keras.src.testing as keras_testing
import pytest
from exactness import assert_same, integer_weights
from layer_pairs import EVERY, IMAGE, TABLE, every_kind, shapes, twin_of

from tfbig import layers


def test_table_has_every_layer() -> None:
    assert list(TABLE) == layers.ALL
    assert len(layers.ALL) == 21


@every_kind(TABLE, (layers.BigBatchNormalization,))
@pytest.mark.filterwarnings(
    "ignore:`shuffle=True` was passed:UserWarning",
    "ignore:The model does not have any trainable weights:UserWarning",
)
def test_keras_layer_test(kind: type) -> None:
    row = TABLE[kind]
    arguments = {**row.arguments, "max_elements": 24}
    shape = IMAGE if row.inputs == 1 else (IMAGE,) * row.inputs
    keras_testing.TestCase().run_layer_test(kind, arguments, input_shape=shape)


@EVERY
def test_signature_and_config(kind: type) -> None:
    ours, theirs = (inspect.signature(c).parameters for c in (kind, twin_of(kind)))
    extra = inspect.Parameter("max_elements", inspect.Parameter.KEYWORD_ONLY, default=None)
    assert [p for p in ours.values() if p != extra] == list(theirs.values())
    assert ours["max_elements"] == extra

    arguments = {**TABLE[kind].arguments, "name": "one"}
    config = kind(**arguments).get_config()
    assert config == {**twin_of(kind)(**arguments).get_config(), "max_elements": None}
    again = kind.from_config(kind(**arguments, max_elements=7).get_config())
    assert again.get_config() == {**config, "max_elements": 7}


@EVERY
def test_weights_interchange_with_twin(kind: type) -> None:
    row = TABLE[kind]
    big, twin = kind(**row.arguments), twin_of(kind)(**row.arguments)
    for layer in (big, twin):
        layer.build(shapes(row))
    names = [[(w.name, w.shape, w.dtype) for w in layer.weights] for layer in (big, twin)]
    assert names[0] == names[1]
    for source, target in ((big, twin), (twin, big)):
        source.set_weights(integer_weights(source))
        target.set_weights(source.get_weights())
        assert_same(target.get_weights(), source.get_weights())


@pytest.mark.parametrize("max_elements", [0, -1, 1.5, "8MB"])
def test_invalid_max_elements(max_elements: Any) -> None:
    with pytest.raises(ValueError, match=f"Expected a positive integer.*={max_elements}"):
        layers.BigConv2D(2, 3, max_elements=max_elements)

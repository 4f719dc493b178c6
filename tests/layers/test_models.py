"""Big layers in Keras models: non-image inputs, saving, and one trace for all image sizes."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf
from exactness import assert_same, gradients, integer_weights, integers
from layer_pairs import TABLE, Row, images, shapes, twin_of

from tfbig import layers

FALLBACKS = [
    (layers.BigDense, {"units": 3, "activation": "tanh"}),
    (layers.BigBatchNormalization, {"momentum": 0.5}),
    (layers.BigLayerNormalization, {}),
    (layers.BigActivation, {"activation": "gelu"}),
    (layers.BigReLU, {"max_value": 1.0}),
    (layers.BigDropout, {"rate": 0.5, "seed": 5}),
    (layers.BigAdd, {}),
    (layers.BigMultiply, {}),
    (layers.BigConcatenate, {}),
]


@pytest.mark.parametrize(("kind", "arguments"), FALLBACKS)
@pytest.mark.parametrize("shape", [(4, 3), (4, 5, 3)])
def test_other_inputs_run_as_twin(kind: type, arguments: Any, shape: Any) -> None:
    row = Row(arguments, inputs=TABLE[kind].inputs)
    both = [c(**arguments, dtype="float64") for c in (kind, twin_of(kind))]
    x = images(row, shape, "float64")
    for layer in both:
        layer.build(shapes(row, shape))
        layer.set_weights(integer_weights(layer))
    actual, expected = (
        gradients(lambda x, c=c: c(x, training=True), x, c.trainable_variables) for c in both
    )
    assert_same(actual, expected)
    assert_same(both[0].get_weights(), both[1].get_weights())
    assert not both[0]._programs


def all_layers(source: Any, prefix: str) -> keras.Model:
    """Return a functional model with every layer of the table, Big or plain."""

    def of(name: str) -> Any:
        return getattr(source, prefix + name)

    inputs = keras.Input((None, None, 3))
    x = of("Conv2D")(4, 3, padding="same")(inputs)
    x = of("ReLU")()(of("BatchNormalization")()(x))
    shortcut = of("SeparableConv2D")(4, 3, padding="same")(x)
    x = of("GroupNormalization")(2)(of("DepthwiseConv2D")(3, padding="same")(x))
    x = of("Multiply")()([of("Add")()([x, shortcut]), shortcut])
    x = of("UpSampling2D")()(of("MaxPooling2D")(2)(x))
    x = of("AveragePooling2D")(2)(of("Conv2DTranspose")(4, 2, strides=2)(x))
    x = of("Concatenate")()([x, shortcut])
    x = of("Cropping2D")(2)(of("ZeroPadding2D")(1)(x))
    x = of("Dropout")(0.2)(of("LayerNormalization")()(of("Dense")(5)(x)))
    x = of("Activation")("tanh")(x)
    vectors = [of("GlobalAveragePooling2D")()(x), of("GlobalMaxPooling2D")()(x)]
    return keras.Model(inputs, of("Dense")(2)(of("Concatenate")()(vectors)))


@pytest.mark.slow
def test_model_equals_plain_model(tmp_path: Any) -> None:
    big, plain = all_layers(layers, "Big"), all_layers(keras.layers, "")
    assert {type(layer) for layer in big.layers} >= set(layers.ALL)
    x = tf.random.normal([2, 8, 6, 3])
    plain.set_weights([w + 0.1 for w in plain.get_weights()])
    big.set_weights(plain.get_weights())

    big.save(tmp_path / "big.keras")
    again = keras.saving.load_model(tmp_path / "big.keras")
    assert [type(layer) for layer in again.layers] == [type(layer) for layer in big.layers]
    assert_same(again.get_weights(), big.get_weights())
    # float32 through about twenty layers, each rounding numbers of order one
    assert_same(tf.function(again)(x), plain(x), 20 * 2**-23)


@pytest.mark.filterwarnings("ignore:Skipping nested container:UserWarning")
def test_weight_files_interchange(tmp_path: Any) -> None:
    """`.h5` files store weights by order; `.weights.h5` files name them by class, so Keras refuses those."""
    big, plain = all_layers(layers, "Big"), all_layers(keras.layers, "")
    for source, target in ((plain, big), (big, plain)):
        source.set_weights([w + 1 for w in source.get_weights()])
        source.save(tmp_path / "whole.h5")
        target.load_weights(tmp_path / "whole.h5")
        assert_same(target.get_weights(), source.get_weights())
    plain.save_weights(tmp_path / "plain.weights.h5")
    with pytest.raises(ValueError, match="objects could not be loaded"):
        big.load_weights(tmp_path / "plain.weights.h5")


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")
def test_fit_traces_once() -> None:
    traces = []

    class Counted(layers.BigReLU):
        def call(self, inputs: Any, training: bool | None = None) -> Any:
            traces.append(1)
            return super().call(inputs, training=training)

    inputs = keras.Input((None, None, 1))
    x = Counted(max_elements=1)(layers.BigConv2D(2, 3, max_elements=1)(inputs))
    model = keras.Model(inputs, layers.BigGlobalAveragePooling2D(max_elements=1)(x))
    model.compile("sgd", "mse")

    def batches() -> Any:
        for side in (5, 7, 9, 6):
            yield integers((1, side, side + 1, 1)), integers((1, 2))

    unknown = (tf.TensorSpec([1, None, None, 1]), tf.TensorSpec([1, 2]))
    dataset = tf.data.Dataset.from_generator(batches, output_signature=unknown)
    model.fit(dataset, steps_per_epoch=4, verbose=0)
    assert len(traces) == 1

"""`fit`, `evaluate` and `predict` of a streamed model return the results of the plain model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same
from keras import layers
from streamed_pairs import (
    LOSS,
    both,
    classifier,
    data,
    images,
    map_and_vector,
    named_maps,
    numbers,
    same_logs,
    segmenter,
    sequential,
    slow,
    two_maps,
)

import tfbig


@pytest.mark.slow
@pytest.mark.parametrize("build", [segmenter, slow(classifier)])
def test_fit_with_validation_and_callbacks(build: Any, float64: None, tmp_path: Path) -> None:
    """An uneven last batch, a learning rate schedule, early stopping, and restoring the best weights."""
    x, y = data(build, 19)
    pair, epochs = both(build), []

    def run(model: Any) -> dict[str, Any]:
        model.compile(keras.optimizers.Adam(0.02), LOSS[build], metrics=["accuracy"])
        callbacks = [
            keras.callbacks.EarlyStopping("val_loss", 0.1, 2, restore_best_weights=True),
            keras.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=0.05),
            keras.callbacks.CSVLogger(tmp_path / f"{model.name}.csv"),
        ]
        history = model.fit(
            *(x, y),
            batch_size=2,
            epochs=8,
            shuffle=False,
            validation_split=0.2,
            callbacks=callbacks,
            verbose=0,
        ).history
        epochs.append(len(history["loss"]))
        return history

    same_logs(pair, run)
    assert epochs[0] == epochs[1] < 8
    assert len((tmp_path / f"{pair[0].name}.csv").read_text().splitlines()) == epochs[0] + 1


@pytest.mark.parametrize(
    "build", [slow(b) for b in (segmenter, classifier, two_maps, map_and_vector)] + [named_maps]
)
def test_predict(build: Any, float64: None) -> None:
    streamed, plain = (m.predict(images(5), batch_size=2, verbose=0) for m in both(build))
    assert_same(streamed, plain, FLOAT64)


@pytest.mark.parametrize("build", [slow(segmenter), classifier])
def test_evaluate(build: Any, float64: None) -> None:
    x, y = data(build, 5)

    def run(model: Any) -> dict[str, Any]:
        model.compile("sgd", LOSS[build], metrics=["accuracy", "mae"][: 1 + (build is segmenter)])
        return model.evaluate(x, y, batch_size=2, verbose=0, return_dict=True)

    same_logs(both(build), run)


def test_inputs_by_name(float64: None) -> None:
    def build() -> keras.Model:
        a, b = keras.Input((None, None, 2), name="b"), keras.Input((None, None, 1), name="a")
        return keras.Model([a, b], layers.Conv2D(2, 3)(layers.Concatenate()([a, b])))

    named = {"a": numbers(3, 5, 6, 1), "b": numbers(3, 5, 6, 2)}
    pair = both(build)
    assert_same(*(m.predict(named, batch_size=2, verbose=0) for m in pair), FLOAT64)
    assert_same(*(np.asarray(m([named["b"], named["a"]])) for m in pair), FLOAT64)
    with pytest.raises(ValueError, match=r"has 2 inputs \(b, a\), received 1"):
        pair[0](named["a"])


@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict")
def test_dict_keys_take_precedence_over_input_names(float64: None) -> None:
    inputs = {
        "a": keras.Input((None, None, 2), name="b"),
        "b": keras.Input((None, None, 2), name="a"),
    }
    model = keras.Model(inputs, layers.Conv2D(1, 3)(inputs["a"] - 2 * inputs["b"]))
    arrays = {"a": images(2), "b": images(2) ** 2}
    assert_same(tfbig.stream(model)(arrays), model(arrays), FLOAT64)


def test_single_channel_axis_may_be_omitted(float64: None) -> None:
    inputs = keras.Input((None, None, 1))
    model = keras.Model(inputs, layers.Conv2D(2, 3)(inputs))
    x = images(2)[..., 0]
    assert_same(tfbig.stream(model)(x), model(x), FLOAT64)


@pytest.mark.parametrize("shape", [(2, 7, 6, 3), (7, 6, 2), (2, 7, 6, 2, 1)])
def test_inputs_of_wrong_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        ValueError, match=r"input 'image' has shape .*, expected \(None, None, None, 2\)"
    ):
        both(segmenter)[0](numbers(*shape))


def test_summary_and_layers() -> None:
    big, plain = both(sequential)
    lines: list[str] = []
    big.summary(print_fn=lines.append, line_length=100)
    text = "\n".join(lines)
    assert all(layer.name in text for layer in big.twin.layers)
    assert f"Total params: {plain.count_params()}" in text
    assert [type(layer) for layer in big.layers] == [type(layer) for layer in plain.layers]
    assert big.get_layer(index=0) is big.twin.layers[0]
    assert big.count_params() == plain.count_params()
    assert big.compute_output_shape((2, 9, 8, 2)) == plain.compute_output_shape((2, 9, 8, 2))


def test_stateless_call(float64: None) -> None:
    big, twin = both(segmenter)
    values = [2 * v.value for v in twin.trainable_variables]
    others = [v.value + 1 for v in twin.non_trainable_variables]
    pair = [m.stateless_call(values, others, images(2), training=True) for m in (big, twin)]
    assert_same(*([y, *state] for y, state in pair), FLOAT64)


@pytest.mark.slow
def test_training_argument_of_a_layer(float64: None) -> None:
    def build() -> keras.Model:
        inputs = keras.Input((None, None, 2))
        return keras.Model(inputs, layers.BatchNormalization()(inputs, training=True))

    big, twin = both(build)
    for training in (None, True, False):
        assert_same(big(images(2), training=training), twin(images(2), training=training), FLOAT64)


def test_a_dataset_decides_the_order() -> None:
    """Keras gives no warning; warnings are errors in tests."""
    model = keras.Sequential([keras.Input((None, None, 1)), layers.Conv2D(1, 3)])
    big = tfbig.stream(model, strip_rows=4)
    big.compile("sgd", "mse")
    x, y = np.ones((2, 8, 8, 1), "float32"), np.ones((2, 6, 6, 1), "float32")
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(1)
    big.fit(batches, verbose=0)
    big.fit(x=batches, verbose=0)
    with pytest.warns(UserWarning, match="`shuffle=True` was passed, but will be ignored"):
        big.fit(batches, shuffle=True, verbose=0)

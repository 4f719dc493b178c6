"""Losses, penalties and metrics of a streamed model equal those of the plain model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from exactness import FLOAT64, assert_same
from keras import layers
from streamed_pairs import (
    body,
    both,
    classes,
    data,
    images,
    map_and_vector,
    named_maps,
    numbers,
    same_logs,
    segmenter,
    slow,
    two_maps,
)

import tfbig
from tfbig.metrics import Dice
from tfbig.network import loss_reductions


def pixel_error(y_true: Any, y_pred: Any) -> Any:
    """Compute a custom loss with one number per pixel."""
    return keras.ops.mean(keras.ops.abs(y_true - y_pred) ** 1.5, axis=-1)


def one_hot(shape: tuple[int, ...], classes: int) -> np.ndarray:
    return np.eye(classes)[np.random.default_rng(8).integers(0, classes, shape)]


STEP_LOSSES: dict[str, tuple[Any, str | None, int]] = {
    "binary crossentropy": (lambda: "binary_crossentropy", "sigmoid", 1),
    "smoothed logits": (
        lambda: keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=0.1),
        None,
        1,
    ),
    "categorical crossentropy": (lambda: "categorical_crossentropy", "softmax", 3),
    "sparse logits": (
        lambda: keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        None,
        3,
    ),
    "sparse crossentropy": (lambda: "sparse_categorical_crossentropy", "softmax", 3),
    "dice": (lambda: keras.losses.Dice(), "sigmoid", 2),
    "dice per image": (lambda: keras.losses.Dice(axis=(1, 2, 3)), "sigmoid", 1),
    "tversky": (lambda: keras.losses.Tversky(alpha=0.3, beta=0.7), "sigmoid", 1),
    "summed huber": (lambda: keras.losses.Huber(delta=0.3, reduction="sum"), None, 1),
    "custom": (lambda: pixel_error, None, 2),
}
FAST_STEPS = {
    ("sparse logits", "plain"),
    ("dice", "xla"),
    ("summed huber", "xla"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "compiler"),
    [
        (name, compiler) if (name, compiler) in FAST_STEPS else slow(name, compiler)
        for name in STEP_LOSSES
        for compiler in ("plain", "xla")
    ],
)
def test_step_of_each_loss(
    name: str, compiler: str, float64: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loss, and weights after two steps of gradient descent, whose change is the gradient."""
    make, activation, filters = STEP_LOSSES[name]
    if compiler == "xla":
        monkeypatch.setattr(loss_reductions, "XLA_NUMBERS", 1)
    shape = (2, 7, 6)
    x = np.random.default_rng(5).normal(size=(*shape, 2))
    y = one_hot(shape, 3)[..., :filters]
    if "sparse" in getattr(make(), "name", str(make())):
        y = np.argmax(y, -1)[..., None].astype("int32")
    results = []
    for model in both(segmenter, filters, activation):
        model.compile(keras.optimizers.SGD(1.0), make())
        first, second = (np.float64(model.train_on_batch(x, y)) for _ in range(2))
        results.append([first, second, np.float64(model.test_on_batch(x, y)), *model.get_weights()])
    assert_same(*results, FLOAT64)


@pytest.mark.parametrize("filters", [slow(1), 3])
def test_crossentropy_by_short_name(filters: int, float64: None) -> None:
    x, y = images(2), classes(2, 7, 6, 1, count=max(filters, 2))

    def run(model: Any) -> dict[str, Any]:
        model.compile("sgd", "crossentropy", metrics=["acc"])
        return model.evaluate(x, y, verbose=0, return_dict=True)

    same_logs(both(segmenter, filters, "softmax" if filters > 1 else "sigmoid"), run)


@pytest.mark.slow
def test_custom_loss_with_additional_label_channels(float64: None) -> None:
    def weighted(y_true: Any, y_pred: Any) -> Any:
        error, weight = keras.ops.square(y_true[..., :1] - y_pred), y_true[..., 1:]
        return keras.ops.mean(error * weight, axis=-1)

    def run(model: Any) -> dict[str, Any]:
        model.compile("sgd", weighted)
        return model.fit(images(2), abs(numbers(2, 7, 6, 2)), verbose=0).history

    same_logs(both(segmenter), run)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reduction", "weighted"),
    [
        slow("sum_over_batch_size", False),
        slow("sum", False),
        slow("mean_with_sample_weight", False),
        slow("sum_over_batch_size", True),
        slow("sum", True),
        ("mean_with_sample_weight", True),
    ],
)
def test_ignored_class(reduction: str, weighted: bool, float64: None) -> None:
    pair = both(segmenter, 3, "softmax")
    x, y = images(4), classes(4, 7, 6, 1)
    weights = abs(numbers(4, 7, 6, seed=3)) if weighted else None
    loss = keras.losses.SparseCategoricalCrossentropy(ignore_class=1, reduction=reduction)

    def run(model: Any) -> dict[str, Any]:
        model.compile(keras.optimizers.SGD(0.01), loss)
        return model.fit(x, y, 2, sample_weight=weights, shuffle=False, verbose=0).history

    same_logs(pair, run)


def test_custom_loss_that_ignores_pixels_is_an_error() -> None:
    big = both(segmenter, 3, "softmax")[0]
    function = keras.losses.sparse_categorical_crossentropy
    big.compile("sgd", lambda y, p: function(y, p, ignore_class=1))
    with pytest.raises(tfbig.UnsupportedLayerError, match=r"ignores pixels by a Keras mask"):
        big.train_on_batch(images(1), classes(1, 7, 6, 1))


@pytest.mark.slow
def test_crossentropy_of_saturated_output(float64: None) -> None:
    """Cross-entropy is computed from the logits, as in Keras: a probability of 1 would lose them."""

    def build() -> keras.Model:
        inputs = keras.Input((None, None, 2))
        logits = layers.Rescaling(60.0)(layers.Conv2D(1, 3, padding="same")(inputs))
        seen = layers.Activation("sigmoid", name="seen")(logits)
        again = layers.Conv2D(2, 3, padding="same", name="again")(seen)
        return keras.Model(inputs, [seen, again])

    x, y = images(3), [classes(3, 7, 6, 1, count=2).astype("float64"), numbers(3, 7, 6, 2)]

    def run(model: Any) -> dict[str, Any]:
        model.compile(keras.optimizers.SGD(0.01), ["binary_crossentropy", "mse"])
        return model.fit(x, y, 2, shuffle=False, verbose=0).history

    same_logs(both(build), run)


MAE, MSE = keras.losses.MeanAbsoluteError, keras.losses.MeanSquaredError


SEVERAL = {
    "list": (two_maps, ["mse", "mae"], [0.5, 2.0], [["mae"], ["mse", "mae"]]),
    "names": (
        two_maps,
        {"small": "mae", "wide": "mse"},
        {"small": 2.0, "wide": 0.5},
        {"small": "mae"},
    ),
    "dict": (
        named_maps,
        {"wide": "mse", "small": "mae"},
        {"wide": 0.5, "small": 2.0},
        {"wide": ["mae"]},
    ),
    "only one": (two_maps, ["mse", None], None, [["mae"], ["mse"]]),
    "objects": (named_maps, lambda: {"wide": MSE(reduction="sum"), "small": MAE()}, None, None),
    "mixed": (map_and_vector, ["mse", "sparse_categorical_crossentropy"], [0.5, 2.0], None),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize(
    "case", [slow("list"), slow("names"), "dict", slow("only one"), slow("objects"), "mixed"]
)
def test_several_outputs(case: str, float64: None) -> None:
    build, compiled_loss, weights, metrics = SEVERAL[case]
    x, y = data(build, 5)

    def run(model: Any) -> dict[str, Any]:
        loss = compiled_loss() if callable(compiled_loss) else compiled_loss  # in float64
        model.compile(keras.optimizers.SGD(1e-3), loss, loss_weights=weights, metrics=metrics)
        return model.fit(x, y, batch_size=2, shuffle=False, verbose=0).history

    same_logs(both(build), run)


def shared_outputs() -> keras.Model:
    """Return a model whose outputs are an activation of a tensor and, twice, the tensor itself."""
    inputs = keras.Input((None, None, 2), name="image")
    x = layers.Conv2D(1, 3, padding="same", name="logits")(body(inputs))
    return keras.Model(inputs, [layers.Activation("sigmoid", name="probability")(x), x, x])


@pytest.mark.slow
def test_outputs_computed_from_each_other(float64: None) -> None:
    y = [classes(2, 7, 6, 1, count=2).astype("float64"), *[numbers(2, 7, 6, 1)] * 2]

    def run(model: Any) -> dict[str, Any]:
        model.compile(keras.optimizers.SGD(0.1), ["binary_crossentropy", "mse", "mae"])
        return model.fit(images(2), y, epochs=2, verbose=0).history

    same_logs(both(shared_outputs), run)


def test_loss_for_unknown_output_is_an_error() -> None:
    big, _ = both(two_maps)
    big.compile("sgd", {"small": "mse", "large": "mse"})
    with pytest.raises(ValueError, match=r"Expected keys \['wide', 'small'\] in loss dict"):
        big.train_on_batch(*data(two_maps, 2))


def regularised_maps() -> keras.Model:
    """Return a model with two image outputs of different sizes and regularised weights."""
    inputs = keras.Input((None, None, 2))
    x = layers.Conv2D(3, 3, padding="same", kernel_regularizer=keras.regularizers.L2(0.1))(inputs)
    small = layers.Conv2D(1, 2, strides=2, bias_regularizer=keras.regularizers.L1(0.2))(x)
    return keras.Model(inputs, [layers.Conv2D(2, 1)(layers.ReLU()(x)), small])


@pytest.mark.slow
def test_loss_weights_and_regularisers(float64: None) -> None:
    random = np.random.default_rng(6)
    x = random.normal(size=(2, 8, 6, 2))
    y = [random.normal(size=(2, 8, 6, 2)), random.normal(size=(2, 4, 3, 1))]
    results = []
    for model in both(regularised_maps):
        model.compile(keras.optimizers.SGD(0.5), ["mse", "mae"], loss_weights=[0.25, 2.0])
        losses = [np.float64(np.ravel(model.train_on_batch(x, y))[0]) for _ in range(3)]
        results.append([*losses, *model.get_weights()])
    assert_same(*results, FLOAT64)


def regularised(head: Callable[[], Any]) -> keras.Model:
    inputs = keras.Input((None, None, 2))
    x = layers.Conv2D(3, 3, padding="same", kernel_regularizer=keras.regularizers.L2(0.1))(inputs)
    x = layers.BatchNormalization(gamma_regularizer=keras.regularizers.L1(0.1))(x)
    x = layers.Conv2D(1, 3, padding="same", bias_regularizer="l2", name="frozen")(x)
    return keras.Model(inputs, head()(x))


@pytest.mark.slow
@pytest.mark.parametrize("head", [layers.ReLU, slow(layers.GlobalAveragePooling2D)])
def test_weight_regularisers(head: Any, float64: None) -> None:
    """Models with image and vector outputs; frozen layers add no penalty, as in Keras."""
    y = numbers(4, 7, 6, 1) if head is layers.ReLU else numbers(4, 1)
    pair = both(regularised, head)
    for trainable in (True, False):

        def run(model: Any, trainable: bool = trainable) -> dict[str, Any]:
            model.get_layer("frozen").trainable = trainable
            model.compile(keras.optimizers.SGD(0.1), "mse")
            return model.fit(images(4), y, batch_size=2, shuffle=False, verbose=0).history

        same_logs(pair, run)


def test_activity_regulariser_is_an_error() -> None:
    inputs = keras.Input((None, None, 2))
    outputs = layers.Conv2D(2, 3, activity_regularizer="l2", name="regularised")(inputs)
    message = "layer 'regularised' has an activity_regularizer, which needs its whole output"
    with pytest.raises(tfbig.UnsupportedLayerError, match=message):
        tfbig.stream(keras.Model(inputs, outputs))


@pytest.mark.slow
def test_metrics() -> None:
    """Equal to 1e-6: Keras sums metrics in float32, here in another order.

    IoU and AUC count pixels, which is exact; accuracy and mean absolute error are means.
    """
    random = np.random.default_rng(7)
    x = random.normal(size=(4, 7, 6, 2)).astype("float32")
    y = random.integers(0, 2, (4, 7, 6, 1)).astype("float32")
    logs = []
    for model in both(segmenter):
        metrics = [
            "accuracy",
            "mae",
            keras.metrics.BinaryIoU(name="iou"),
            keras.metrics.AUC(name="auc"),
            Dice(),
        ]
        model.compile("sgd", "binary_crossentropy", metrics=metrics)
        history = model.fit(
            x, y, shuffle=False, validation_data=(x, y), validation_batch_size=3, verbose=0
        ).history
        logs.append({name: values[0] for name, values in history.items()})
    assert logs[0] == pytest.approx(logs[1], rel=1e-6)
    assert len(logs[0]) == 2 * 6


def test_pixel_weights_of_counting_metrics() -> None:
    """Equal up to the float32 rounding of Keras' counts: sums over seven rows in another order."""
    x, y = data(segmenter, 3)
    weights = abs(numbers(3, 7, 6, 1, seed=4))

    def run(model: Any) -> dict[str, Any]:
        counting = [keras.metrics.AUC(name="auc"), keras.metrics.BinaryAccuracy(name="right")]
        model.compile("sgd", "mse", weighted_metrics=counting)
        return model.evaluate(x, y, sample_weight=weights, verbose=0, return_dict=True)

    streamed, plain = (run(m) for m in both(segmenter))
    assert streamed == pytest.approx(plain, rel=7 * 2**-23)

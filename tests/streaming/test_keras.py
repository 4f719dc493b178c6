"""A streamed model stays a Keras model: what users do with one gives what it gives on the plain model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same
from keras import layers

import tfbig

# ------------------------------------------------------------------------------------- models


def body(inputs: Any) -> Any:
    x = layers.Conv2D(4, 3, padding="same", name="first")(inputs)
    return layers.ReLU()(layers.BatchNormalization(momentum=0.8, name="norm")(x))


def segmenter(filters: int = 1, activation: str | None = "sigmoid") -> keras.Model:
    inputs = keras.Input((None, None, 2), name="image")
    head = layers.Conv2D(filters, 3, padding="same", activation=activation, name="head")
    return keras.Model(inputs, head(body(inputs)))


def classifier() -> keras.Model:
    inputs = keras.Input((None, None, 2), name="image")
    x = layers.GlobalAveragePooling2D()(body(inputs))
    return keras.Model(inputs, layers.Dense(3, activation="softmax", name="classes")(x))


def sequential() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((None, None, 2)),
            layers.Conv2D(3, 3, padding="same"),
            keras.Sequential([layers.BatchNormalization(), layers.ReLU()]),
            layers.Conv2D(1, 3, padding="same"),
        ]
    )


def two_maps() -> keras.Model:
    """Outputs of different sizes and channels, as a list."""
    inputs = keras.Input((None, None, 2), name="image")
    x = body(inputs)
    return keras.Model(
        inputs,
        [layers.Conv2D(2, 1, name="wide")(x), layers.Conv2D(1, 2, strides=2, name="small")(x)],
    )


def named_maps() -> keras.Model:
    """The same, as a dict whose keys are not in the order of the outputs."""
    inputs = keras.Input((None, None, 2), name="image")
    x = body(inputs)
    wide, small = layers.Conv2D(2, 1, name="wide")(x), layers.Conv2D(1, 2, 2, name="small")(x)
    return keras.Model(inputs, {"wide": wide, "small": small})


def map_and_vector() -> keras.Model:
    inputs = keras.Input((None, None, 2), name="image")
    x = body(inputs)
    vector = layers.Dense(3, activation="softmax", name="classes")(layers.GlobalMaxPooling2D()(x))
    return keras.Model(inputs, [layers.Conv2D(1, 1, name="map")(x), vector])


def both(build: Callable[..., keras.Model], *arguments: Any) -> tuple[Any, Any]:
    """A streamed model in strips of two rows, and a plain one with equal weights of its own."""
    model, twin = build(*arguments), build(*arguments)
    twin.set_weights(model.get_weights())
    return tfbig.stream(model, strip_rows=2), twin


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def classes(*shape: int, count: int = 3) -> np.ndarray:
    return np.random.default_rng(1).integers(0, count, shape).astype("int32")


def images(n: int) -> np.ndarray:
    return numbers(n, 7, 6, 2)


def data(build: Callable[..., keras.Model], n: int) -> tuple[np.ndarray, Any]:
    """Images and targets for a model."""
    targets = {
        segmenter: lambda: classes(n, 7, 6, 1, count=2).astype("float64"),
        classifier: lambda: classes(n),
        two_maps: lambda: [numbers(n, 7, 6, 2), numbers(n, 3, 3, 1)],
        named_maps: lambda: {"wide": numbers(n, 7, 6, 2), "small": numbers(n, 3, 3, 1)},
        map_and_vector: lambda: [numbers(n, 7, 6, 1), classes(n)],
    }
    return images(n), targets[build]()


def slow(*values: Any) -> Any:
    """A case that says less than the others, for the long run."""
    return pytest.param(*values, marks=pytest.mark.slow)


LOSS = {segmenter: "binary_crossentropy", classifier: "sparse_categorical_crossentropy"}
both_kinds = pytest.mark.parametrize("build", [segmenter, classifier])


def same_logs(pair: tuple[Any, Any], run: Callable[[Any], Any], rtol: float = FLOAT64) -> None:
    """Logs of both models, by name, and their weights afterwards."""
    streamed, plain = (run(model) for model in pair)
    assert list(streamed) == list(plain)
    values = ([np.float64(v) for v in logs.values()] for logs in (streamed, plain))
    assert_same(*values, rtol)
    assert_same(pair[0].get_weights(), pair[1].get_weights(), rtol)


# --------------------------------------------------------------------- fit, evaluate, predict


@pytest.mark.parametrize("build", [segmenter, slow(classifier)])
def test_fit_validates_and_calls_back_as_the_plain_model(
    build: Any, float64: None, tmp_path: Path
) -> None:
    """Ten steps an epoch with an uneven last batch, a schedule, early stopping, the best weights put back."""
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


@pytest.mark.parametrize("build", [segmenter, classifier, two_maps, named_maps, map_and_vector])
def test_predicts_in_batches(build: Any, float64: None) -> None:
    streamed, plain = (m.predict(images(5), batch_size=2, verbose=0) for m in both(build))
    assert_same(streamed, plain, FLOAT64)


@both_kinds
def test_evaluates_in_batches(build: Any, float64: None) -> None:
    x, y = data(build, 5)

    def run(model: Any) -> dict[str, Any]:
        model.compile("sgd", LOSS[build], metrics=["accuracy", "mae"][: 1 + (build is segmenter)])
        return model.evaluate(x, y, batch_size=2, verbose=0, return_dict=True)

    same_logs(both(build), run)


OPTIMISERS = {
    "clipped": lambda: keras.optimizers.AdamW(0.1, clipnorm=0.1, weight_decay=0.1),
    "averaged": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5),
        use_ema=True,
        ema_overwrite_frequency=2,
    ),
    "accumulated": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=3),
}


@pytest.mark.parametrize("optimiser", OPTIMISERS.values(), ids=OPTIMISERS.keys())
def test_optimisers_see_the_same_gradients(optimiser: Any, float64: None) -> None:
    """Ten steps; two of them are traced as one call (`steps_per_execution`)."""
    x, y = data(segmenter, 20)

    def run(model: Any) -> dict[str, Any]:
        model.compile(optimiser(), "binary_crossentropy", steps_per_execution=2)
        return model.fit(x, y, batch_size=2, shuffle=False, verbose=0).history

    same_logs(both(segmenter), run)


def test_a_gradient_tape_by_hand(float64: None) -> None:
    """Gradients of Keras variables and of an intermediate loss, as in a loop of one's own."""
    x, y = data(segmenter, 2)
    found = []
    for model in both(segmenter):
        optimizer = keras.optimizers.SGD(0.5)
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)
            found.append([loss, *gradients])
        found[-1] += model.get_weights()
    assert_same(found[:2], found[2:], FLOAT64)


def test_compile_may_change_between_fits(float64: None) -> None:
    """Loss, metrics and optimiser of the last `compile` count, even where their names are as before."""
    x, y = data(segmenter, 4)
    settings: list[Any] = [
        (keras.optimizers.SGD(0.5), keras.losses.Huber(0.4), ["mae"]),
        (keras.optimizers.SGD(0.1), keras.losses.Huber(0.1), ["mae", "accuracy"]),
    ]
    pair = both(segmenter)
    for optimizer, loss, metrics in settings:

        def run(model: Any, o: Any = optimizer, loss: Any = loss, m: Any = metrics) -> Any:
            model.compile(type(o).from_config(o.get_config()), loss, metrics=m)
            return model.fit(x, y, batch_size=2, shuffle=False, verbose=0).history

        same_logs(pair, run)


def test_labels_need_no_channel_axis(float64: None) -> None:
    x, y = images(2), classes(2, 7, 6)

    def run(model: Any) -> dict[str, Any]:
        loss = keras.losses.SparseCategoricalCrossentropy(name="named")
        model.compile("sgd", loss, metrics=["accuracy"])
        return model.evaluate(x, y, verbose=0, return_dict=True)

    same_logs(both(segmenter, 3, "softmax"), run)


@pytest.mark.parametrize("filters", [1, 3])
def test_crossentropy_by_its_short_name(filters: int, float64: None) -> None:
    x, y = images(2), classes(2, 7, 6, 1, count=max(filters, 2))

    def run(model: Any) -> dict[str, Any]:
        model.compile("sgd", "crossentropy", metrics=["acc"])
        return model.evaluate(x, y, verbose=0, return_dict=True)

    same_logs(both(segmenter, filters, "softmax" if filters > 1 else "sigmoid"), run)


def test_a_loss_of_ones_own_may_take_labels_of_other_channels(float64: None) -> None:
    def weighted(y_true: Any, y_pred: Any) -> Any:
        error, weight = keras.ops.square(y_true[..., :1] - y_pred), y_true[..., 1:]
        return keras.ops.mean(error * weight, axis=-1)

    def run(model: Any) -> dict[str, Any]:
        model.compile("sgd", weighted)
        return model.fit(images(2), abs(numbers(2, 7, 6, 2)), verbose=0).history

    same_logs(both(segmenter), run)


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


# ------------------------------------------------------------------------------------- saving


@pytest.mark.parametrize("build", [segmenter, sequential, classifier])
@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_weights_go_both_ways(build: Any, suffix: str, tmp_path: Path) -> None:
    """The file of either loads into the other."""
    streamed, plain = tfbig.stream(build()), build()
    for number, (source, target) in enumerate([(streamed, plain), (plain, streamed)]):
        source.set_weights([numbers(*w.shape, seed=number) for w in source.get_weights()])
        path = tmp_path / f"{number}{suffix}"
        source.save(path) if suffix == ".keras" else source.save_weights(path)
        assert not np.array_equal(source.get_weights()[0], target.get_weights()[0])
        target.load_weights(path)
        assert_same(target.get_weights(), source.get_weights())


def test_checkpoints_load_and_go_on(float64: None, tmp_path: Path) -> None:
    """The best model on disk, and a run that is cut in two, optimiser state included."""
    x, y = data(segmenter, 6)
    big, whole = both(segmenter)
    best = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", "loss", save_best_only=True)
    for model in (big, whole):
        model.compile(keras.optimizers.Adam(0.05), "mse")
    fit = {"x": x, "y": y, "batch_size": 2, "shuffle": False, "verbose": 0}
    big.fit(**fit, epochs=2, callbacks=[best])
    loaded = keras.models.load_model(tmp_path / "best.keras")
    assert isinstance(loaded, tfbig.StreamedModel)
    assert_same(loaded.get_weights(), big.get_weights())
    second = loaded.fit(**fit, epochs=2).history["loss"]
    expected = whole.fit(**fit, epochs=4).history["loss"]
    assert_same([np.float64(second)], [np.float64(expected[2:])], FLOAT64)
    assert_same(loaded.get_weights(), whole.get_weights(), FLOAT64)


def test_looks_like_the_plain_model() -> None:
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


# ----------------------------------------------------------------------------- mixed precision


def test_float16_scales_the_loss_as_the_plain_model() -> None:
    """Gradients differ by roundings of float16, 2**-11 each: of eight results, in both models, squared."""
    keras.config.set_dtype_policy("mixed_float16")
    x, y = (a.astype("float32") for a in data(segmenter, 4))
    scales, weights = [], []
    for model in both(segmenter):
        model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
        assert type(model.optimizer).__name__ == "LossScaleOptimizer"
        model.fit(x, y, batch_size=2, shuffle=False, verbose=0)
        scales.append(float(model.optimizer.dynamic_scale))
        weights.append(model.get_weights())
    assert scales[0] == scales[1]
    assert_same(*weights, 2 * 2 * 8 * 2**-11)


# -------------------------------------------------------------------- sample and class weights

SHAPES = {"image": (3,), "pixel": (3, 7, 6), "pixel and channel": (3, 7, 6, 1)}
WEIGHTED = {
    "mean": (lambda: keras.losses.BinaryCrossentropy(), 1, "sigmoid"),
    "sum": (lambda: keras.losses.MeanSquaredError(reduction="sum"), 2, None),
    "by weights": (
        lambda: keras.losses.CategoricalCrossentropy(True, reduction="mean_with_sample_weight"),
        3,
        None,
    ),
}


def for_the_plain(weights: np.ndarray) -> np.ndarray:
    """Keras multiplies `[N]` with the last axis of `[N, H, W]`, so it needs one weight for each pixel."""
    return np.broadcast_to(weights[:, None, None], (3, 7, 6)) if weights.ndim == 1 else weights


@pytest.mark.parametrize(
    ("shape", "case"),
    [
        ("image", "mean"),
        ("pixel", "mean"),
        ("pixel and channel", "sum"),
        slow("image", "by weights"),
        ("pixel", "by weights"),
    ],
)
def test_sample_weights_of_images(shape: str, case: str, float64: None) -> None:
    make, filters, activation = WEIGHTED[case]
    y = np.eye(3)[classes(3, 7, 6)][..., :filters]
    weights = abs(numbers(*SHAPES[shape], seed=4))

    def run(model: Any) -> dict[str, Any]:
        given = weights if isinstance(model, tfbig.StreamedModel) else for_the_plain(weights)
        model.compile(
            keras.optimizers.SGD(1e-3), make(), metrics=["mae"], weighted_metrics=["mse", "acc"]
        )
        logs = [model.train_on_batch(images(3), y, given, return_dict=True) for _ in range(2)]
        model.reset_metrics()
        logs.append(model.test_on_batch(images(3), y, given, return_dict=True))
        return {f"{name} {i}": v for i, step in enumerate(logs) for name, v in step.items()}

    same_logs(both(segmenter, filters, activation), run)


@pytest.mark.parametrize("reduction", [slow("sum_over_batch_size"), "mean_with_sample_weight"])
def test_sample_weights_of_a_ratio_of_sums(reduction: str, float64: None) -> None:
    """Of each image its own Dice, each with its weight; and with metrics on the way."""

    def run(model: Any) -> dict[str, Any]:
        loss = keras.losses.Dice(axis=(1, 2, 3), reduction=reduction)
        model.compile(keras.optimizers.SGD(0.5), loss, metrics=["mae"])
        x, y = data(segmenter, 3)
        return model.fit(x, y, sample_weight=np.array([1.0, 0.2, 3.0]), epochs=2, verbose=0).history

    same_logs(both(segmenter), run)


def test_counting_metrics_are_weighted_by_pixel() -> None:
    """IoU and AUC count; to the last places of the float32 in which Keras counts."""
    x, y = data(segmenter, 3)
    weights = abs(numbers(3, 7, 6, 1, seed=4))

    def run(model: Any) -> dict[str, Any]:
        counting = [keras.metrics.AUC(name="auc"), keras.metrics.BinaryAccuracy(name="right")]
        model.compile("sgd", "mse", weighted_metrics=counting)
        return model.evaluate(x, y, sample_weight=weights, verbose=0, return_dict=True)

    streamed, plain = (run(m) for m in both(segmenter))
    assert streamed == pytest.approx(
        plain, rel=7 * 2**-23
    )  # the sum over seven rows, in another order


def test_sample_weights_by_handle(float64: None) -> None:
    x, y = images(2), classes(2, 7, 6, 1, count=2).astype("uint8")
    weights = np.random.default_rng(3).integers(0, 4, (2, 7, 6, 1), np.uint8)
    sources = [[tfbig.open(image) for image in given] for given in (y, weights)]
    labels, handles = (tf.constant([s.handle for s in each]) for each in sources)
    results = []
    for target, given in ((y, weights.astype("float64")), (labels, handles)):
        big = both(segmenter)[0]
        big.twin.set_weights([numbers(*w.shape) ** 2 for w in big.get_weights()])
        big.compile("sgd", "binary_crossentropy", weighted_metrics=["accuracy"])
        dataset = tf.data.Dataset.from_tensors((x, target, given))
        history = big.fit(dataset, shuffle=False, verbose=0).history
        results.append([*history.values(), *big.get_weights()])
    assert_same(*results)


def test_sample_and_class_weights_of_vectors(float64: None) -> None:
    x, y = data(classifier, 5)
    for weighing in (
        {"class_weight": {0: 0.5, 1: 2.0, 2: 3.0}},
        {"sample_weight": abs(numbers(5))},
    ):

        def run(model: Any, weighing: Any = weighing) -> dict[str, Any]:
            model.compile("sgd", LOSS[classifier], weighted_metrics=["accuracy"])
            return model.fit(x, y, batch_size=2, shuffle=False, verbose=0, **weighing).history

        same_logs(both(classifier), run)


@pytest.mark.parametrize("shape", [(2, 7), (2, 7, 6, 2), (2, 7, 6, 1, 1)])
def test_weights_of_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    big, _ = both(segmenter)
    big.compile("sgd", "mse")
    x, y = data(segmenter, 2)
    message = r"have shape \(2, 7.*expected one per image, \[N\], or one per pixel, \[N, H, W\] or"
    with pytest.raises(ValueError, match=message):
        big.train_on_batch(x, y, np.ones(shape))


def test_pixel_weights_of_a_ratio_are_refused() -> None:
    big, _ = both(segmenter)
    big.compile("sgd", keras.losses.Tversky())
    x, y = data(segmenter, 2)
    with pytest.raises(tfbig.UnsupportedLayerError, match=r"'tversky' is a ratio .* takes one"):
        big.train_on_batch(x, y, np.ones((2, 7, 6)))


# ------------------------------------------------------------------------------ several outputs

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


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize(
    "case", ["list", slow("names"), "dict", "only one", slow("objects"), "mixed"]
)
def test_losses_and_metrics_of_several_outputs(case: str, float64: None) -> None:
    build, given, weights, metrics = SEVERAL[case]
    x, y = data(build, 5)

    def run(model: Any) -> dict[str, Any]:
        loss = given() if callable(given) else given  # in float64
        model.compile(keras.optimizers.SGD(1e-3), loss, loss_weights=weights, metrics=metrics)
        return model.fit(x, y, batch_size=2, shuffle=False, verbose=0).history

    same_logs(both(build), run)


def test_sample_weights_of_several_outputs(float64: None) -> None:
    """Each its own."""
    x, y = data(named_maps, 3)
    weights = {"small": abs(numbers(3, 3, 3)), "wide": abs(numbers(3, 7, 6, seed=1))}

    def run(model: Any) -> dict[str, Any]:
        model.compile("sgd", {"wide": "mse", "small": "mae"}, weighted_metrics={"wide": ["mae"]})
        return model.evaluate(x, y, sample_weight=weights, verbose=0, return_dict=True)

    same_logs(both(named_maps), run)


def two_of_one() -> keras.Model:
    """A tensor and its activation, both outputs, and the tensor once more."""
    inputs = keras.Input((None, None, 2), name="image")
    x = layers.Conv2D(1, 3, padding="same", name="logits")(body(inputs))
    return keras.Model(inputs, [layers.Activation("sigmoid", name="probability")(x), x, x])


def test_outputs_that_are_made_from_each_other(float64: None) -> None:
    y = [classes(2, 7, 6, 1, count=2).astype("float64"), *[numbers(2, 7, 6, 1)] * 2]

    def run(model: Any) -> dict[str, Any]:
        model.compile(keras.optimizers.SGD(0.1), ["binary_crossentropy", "mse", "mae"])
        return model.fit(images(2), y, epochs=2, verbose=0).history

    same_logs(both(two_of_one), run)


def test_losses_that_match_no_output_are_refused_by_keras() -> None:
    big, _ = both(two_maps)
    big.compile("sgd", {"small": "mse", "large": "mse"})
    with pytest.raises(ValueError, match=r"Expected keys \['wide', 'small'\] in loss dict"):
        big.train_on_batch(*data(two_maps, 2))


# ---------------------------------------------------------------------------- freezing, penalties


@pytest.mark.parametrize("build", [segmenter, slow(classifier)])
def test_layers_may_be_frozen_at_any_time(build: Any, float64: None) -> None:
    """After `stream`, between fits, all of them and none; frozen statistics are used, not moved."""
    x, y = data(build, 4)
    pair = both(build)
    for frozen in (["first", "norm"], []):

        def run(model: Any, frozen: Any = frozen) -> dict[str, Any]:
            for layer in getattr(model, "twin", model).layers:
                layer.trainable = layer.name not in frozen
            model.compile(keras.optimizers.SGD(0.1), LOSS[build])
            return model.fit(x, y, batch_size=2, shuffle=False, verbose=0).history

        same_logs(pair, run)
        assert len(pair[0].trainable_variables) == len(pair[1].trainable_variables)


def test_freezing_counts_at_once_in_a_loop_of_ones_own(float64: None) -> None:
    pair, x = both(segmenter), images(2)
    for trainable in (True, False, True):
        for model in pair:
            model.get_layer("norm").trainable = trainable
        assert_same(*(np.asarray(m(x, training=True)) for m in pair), FLOAT64)
        assert_same(pair[0].get_weights(), pair[1].get_weights(), FLOAT64)


def test_a_model_frozen_as_a_whole_learns_nothing(float64: None) -> None:
    x, y = data(segmenter, 2)

    def run(model: Any) -> dict[str, Any]:
        model.trainable = False
        model.compile("sgd", "mse")
        with pytest.warns(UserWarning, match="does not have any trainable weights"):
            return model.fit(x, y, verbose=0).history

    pair = both(segmenter)
    before = pair[1].get_weights()
    same_logs(pair, run)
    assert_same(pair[0].get_weights(), before)


def penalised(head: Callable[[], Any]) -> keras.Model:
    inputs = keras.Input((None, None, 2))
    x = layers.Conv2D(3, 3, padding="same", kernel_regularizer=keras.regularizers.L2(0.1))(inputs)
    x = layers.BatchNormalization(gamma_regularizer=keras.regularizers.L1(0.1))(x)
    x = layers.Conv2D(1, 3, padding="same", bias_regularizer="l2", name="frozen")(x)
    return keras.Model(inputs, head()(x))


@pytest.mark.parametrize("head", [layers.ReLU, layers.GlobalAveragePooling2D])
def test_penalties_of_weights(head: Any, float64: None) -> None:
    """Of images and of vectors; that of a frozen layer does not count, as in Keras."""
    y = numbers(4, 7, 6, 1) if head is layers.ReLU else numbers(4, 1)
    pair = both(penalised, head)
    for trainable in (True, False):

        def run(model: Any, trainable: bool = trainable) -> dict[str, Any]:
            model.get_layer("frozen").trainable = trainable
            model.compile(keras.optimizers.SGD(0.1), "mse")
            return model.fit(images(4), y, batch_size=2, shuffle=False, verbose=0).history

        same_logs(pair, run)


def test_a_penalty_of_activations_is_refused() -> None:
    inputs = keras.Input((None, None, 2))
    outputs = layers.Conv2D(2, 3, activity_regularizer="l2", name="penalised")(inputs)
    message = "layer 'penalised' has an activity_regularizer, which needs its whole output"
    with pytest.raises(tfbig.UnsupportedLayerError, match=message):
        tfbig.stream(keras.Model(inputs, outputs))


def test_no_targets_no_loss() -> None:
    big, _ = both(segmenter)
    big.compile("sgd", "mse")
    with pytest.raises(ValueError, match="is given no targets to compute its loss with"):
        big.train_on_batch(images(2))
    big, _ = both(segmenter)
    big.compile("sgd")
    with pytest.raises(ValueError, match=r"no loss to train with; pass `loss=` to compile"):
        big.train_on_batch(*data(segmenter, 2))


# ------------------------------------------------------------------------- what is less common


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum", "mean_with_sample_weight"])
@pytest.mark.parametrize("weighted", [False, True])
def test_pixels_of_an_ignored_class_do_not_count(
    reduction: str, weighted: bool, float64: None
) -> None:
    pair = both(segmenter, 3, "softmax")
    x, y = images(4), classes(4, 7, 6, 1)
    weights = abs(numbers(4, 7, 6, seed=3)) if weighted else None
    loss = keras.losses.SparseCategoricalCrossentropy(ignore_class=1, reduction=reduction)

    def run(model: Any) -> dict[str, Any]:
        model.compile(keras.optimizers.SGD(0.01), loss)
        return model.fit(x, y, 2, sample_weight=weights, shuffle=False, verbose=0).history

    same_logs(pair, run)


def test_a_loss_whose_function_ignores_pixels_is_refused() -> None:
    big = both(segmenter, 3, "softmax")[0]
    function = keras.losses.sparse_categorical_crossentropy
    big.compile("sgd", lambda y, p: function(y, p, ignore_class=1))
    with pytest.raises(tfbig.UnsupportedLayerError, match=r"ignores some of the pixels"):
        big.train_on_batch(images(1), classes(1, 7, 6, 1))


def test_a_saturated_output_that_is_read_again(float64: None) -> None:
    """Cross-entropy comes from the logits, as in Keras: a probability of 1 would lose them."""

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


@pytest.mark.parametrize(
    "stop", [keras.ops.stop_gradient, lambda x: keras.ops.cast(x > 0, "float64")]
)
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_weights_without_a_gradient_do_not_decay(stop: Any, float64: None) -> None:
    def build() -> keras.Model:
        inputs = keras.Input((None, None, 2))
        x = stop(layers.Conv2D(3, 3, padding="same")(inputs))
        return keras.Model(inputs, layers.Conv2D(2, 3, padding="same")(x))

    def run(model: Any) -> dict[str, Any]:
        model.compile(keras.optimizers.AdamW(0.01, weight_decay=0.1), "mse")
        return model.fit(images(3), numbers(3, 7, 6, 2), 1, shuffle=False, verbose=0).history

    same_logs(both(build), run)


def test_stateless_calls_take_the_values_that_are_given(float64: None) -> None:
    big, twin = both(segmenter)
    values = [2 * v.value for v in twin.trainable_variables]
    others = [v.value + 1 for v in twin.non_trainable_variables]
    pair = [m.stateless_call(values, others, images(2), training=True) for m in (big, twin)]
    assert_same(*([y, *state] for y, state in pair), FLOAT64)


def test_a_layer_may_train_where_the_model_does_not_say(float64: None) -> None:
    def build() -> keras.Model:
        inputs = keras.Input((None, None, 2))
        return keras.Model(inputs, layers.BatchNormalization()(inputs, training=True))

    big, twin = both(build)
    for training in (None, True, False):
        assert_same(big(images(2), training=training), twin(images(2), training=training), FLOAT64)


def test_compile_sees_what_was_changed_in_layers(float64: None) -> None:
    normalise = layers.Normalization(axis=-1)
    inputs = keras.Input((None, None, 2))
    model = keras.Model(inputs, layers.Conv2D(1, 3)(normalise(inputs)))
    big = tfbig.stream(model, strip_rows=2)
    big.predict(images(2), verbose=0)
    normalise.adapt(5 * images(2) + 3)
    big.compile("sgd", "mse")
    assert_same(big.predict(images(2), verbose=0), model(images(2)), FLOAT64)


@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict")
def test_keys_of_inputs_go_before_names(float64: None) -> None:
    inputs = {
        "a": keras.Input((None, None, 2), name="b"),
        "b": keras.Input((None, None, 2), name="a"),
    }
    model = keras.Model(inputs, layers.Conv2D(1, 3)(inputs["a"] - 2 * inputs["b"]))
    given = {"a": images(2), "b": images(2) ** 2}
    assert_same(tfbig.stream(model)(given), model(given), FLOAT64)


def test_images_of_one_channel_may_come_without_it(float64: None) -> None:
    inputs = keras.Input((None, None, 1))
    model = keras.Model(inputs, layers.Conv2D(2, 3)(inputs))
    x = images(2)[..., 0]
    assert_same(tfbig.stream(model)(x), model(x), FLOAT64)


@pytest.mark.parametrize("shape", [(2, 7, 6, 3), (7, 6, 2), (2, 7, 6, 2, 1)])
def test_inputs_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        ValueError, match=r"input 'image' has shape .*, expected \(None, None, None, 2\)"
    ):
        both(segmenter)[0](numbers(*shape))


@pytest.mark.parametrize("shape", [(7, 6, 2), (1, 7, 6, 3), (1, None, 6, 2)])
def test_a_plan_is_of_a_whole_shape(shape: Any) -> None:
    with pytest.raises(
        ValueError, match=r"expected the shape \(N, rows, ..., C\) .* C = 2, received"
    ):
        both(segmenter)[0].plan(shape)


def test_gradients_of_gradients_are_an_error_not_zero() -> None:
    big = both(segmenter)[0]
    x = tf.constant(images(1), tf.float32)
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = tf.reduce_sum(big(x))
        penalty = tf.reduce_sum(inner.gradient(y, x) ** 2)
    with pytest.raises(tf.errors.OpError, match="differentiable once"):
        outer.gradient(penalty, [v.value for v in big.trainable_variables])


SETTINGS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "budget": ({"budget": "1GB"}, TypeError, r"expected budget=tfbig.Budget\(host=...\)"),
    "rows": ({"strip_rows": 0}, ValueError, "strip_rows=0: expected a number of rows"),
    "store": ({"store": "int8"}, ValueError, "store='int8': expected None or one of"),
    "source": ({"source_dtype": "rgb"}, ValueError, "source_dtype='rgb': expected one of bool"),
    "device": (
        {"devices": "GPU:99"},
        ValueError,
        "devices='GPU:99': there is none; TensorFlow knows",
    ),
    "no devices": ({"devices": []}, ValueError, "expected one device or several different ones"),
    "a device twice": (
        {"devices": ["CPU:0", "/CPU:0"]},
        ValueError,
        "expected one device or several different ones",
    ),
    "no device": ({"devices": "fast"}, ValueError, "devices='fast': there is none"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_are_checked_at_once(name: str) -> None:
    options, kind, message = SETTINGS[name]
    with pytest.raises(kind, match=message):
        tfbig.stream(segmenter(), **options)


@pytest.mark.parametrize("dtype", [None, "float16"])
def test_predictions_go_to_a_file_as_they_are_converted(dtype: str | None, tmp_path: Path) -> None:
    big, twin = both(segmenter)
    x = np.random.default_rng(0).integers(0, 255, (9, 6, 2)).astype("uint8")
    convert = None if dtype is None else lambda rows: rows.astype(dtype)
    found = big.predict_to(x, str(tmp_path / "y.npy"), convert)
    expected = twin(x[None].astype("float32")).numpy()[0].astype(dtype or "float32")
    assert found.dtype == expected.dtype
    assert_same(np.load(tmp_path / "y.npy"), expected, 2e-3 if dtype else 1e-5)
    best = big.predict_to(x, str(tmp_path / "z.npy"), lambda rows: rows.argmax(2)[..., None])
    assert best.shape == (*expected.shape[:2], 1)
    np.testing.assert_array_equal(best.read(0, 9), found.read(0, 9).argmax(2)[..., None])


@pytest.mark.parametrize("build", [classifier, two_maps])
def test_only_one_image_goes_to_a_file(build: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="predict_to takes models from one image"):
        both(build)[0].predict_to(np.zeros((7, 6, 2), np.uint8), str(tmp_path / "y.npy"))

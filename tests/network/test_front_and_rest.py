"""Models with a streamed front and a rest on whole tensors, compared with the plain model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same, gradients
from keras import layers

import tfbig
from tfbig.network import front_and_rest
from tfbig.network.graph import AT_ONCE
from tfbig.system.budget import DEFAULT_STRIPS

# ------------------------------------------------------------------------------------- models


@keras.saving.register_keras_serializable(package="test_split")
class Downward(layers.Layer):
    """Cumulative sum over the rows, which has no bounded window and so no rule, with a weight and a penalty."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")

    def call(self, x: Any) -> Any:
        self.add_loss(0.01 * keras.ops.sum(keras.ops.square(self.scale)))
        return keras.ops.cumsum(x, axis=1) * self.scale * 0.1


def conv(filters: int, name: str, **kwargs: Any) -> layers.Layer:
    return layers.Conv2D(filters, 3, padding="same", name=name, **kwargs)


def norm(name: str) -> layers.Layer:
    return layers.BatchNormalization(momentum=0.8, name=name)


def residual(
    head: Callable[[Any], Any] | None = None, blocks: tuple[str, ...] = ("b0", "b1")
) -> keras.Model:
    """Two residual blocks; `b1_conv` is inside the second, whose shortcut bypasses it."""
    image = keras.Input((None, None, 2), name="image")
    x = layers.ReLU(name="stem")(norm("norm")(conv(4, "first", kernel_regularizer="l2")(image)))
    for block in blocks:
        y = layers.ReLU(name=f"{block}_relu")(norm(f"{block}_norm")(conv(4, f"{block}_conv")(x)))
        y = conv(4, f"{block}_last", strides=2)(y)
        x = layers.Add(name=f"{block}_add")([y, layers.Conv2D(4, 1, 2, name=f"{block}_side")(x)])
    x = conv(3, "head")(x) if head is None else head(x)
    return keras.Model(image, x, name="residual")


def classifier(blocks: tuple[str, ...] = ("b0", "b1")) -> keras.Model:
    def head(x: Any) -> Any:
        x = layers.Dropout(0.0)(layers.GlobalAveragePooling2D(name="pool")(x))
        return layers.Dense(3, activation="softmax", name="classes")(x)

    return residual(head, blocks)


def one_block_classifier() -> keras.Model:
    return classifier(("b0",))


def unet() -> keras.Model:
    """U-Net whose rest reads the image itself and two tensors of different sizes."""
    image = keras.Input((None, None, 2), name="image")
    a = conv(3, "a", activation="relu")(image)
    b = norm("norm")(conv(4, "b", strides=2, activation="relu")(a))
    up = layers.Conv2DTranspose(3, 3, strides=2, padding="same", name="up")(b)
    x = layers.Concatenate(name="joined")([up, a, image])
    return keras.Model(image, layers.Conv2D(1, 1, activation="sigmoid", name="map")(x))


def odd_in_the_middle() -> keras.Model:
    """Two branches that are added; one contains a layer that cannot stream, the other is also an output."""
    image = keras.Input((None, None, 2), name="image")
    x = norm("norm")(conv(4, "first")(image))
    y = conv(4, "second")(Downward(name="odd")(layers.ReLU()(x)))
    side = conv(4, "side", activation="relu")(x)
    met = norm("after")(layers.Add(name="met")([y, side]))
    pooled = layers.GlobalMaxPooling2D(name="pooled")(met)
    return keras.Model(image, [layers.Dense(2, name="vector")(pooled), side])


def nested() -> keras.Model:
    inner = keras.Sequential(
        [keras.Input((None, None, 4)), conv(4, "inside"), Downward(name="odd")], name="inner"
    )
    image = keras.Input((None, None, 2), name="image")
    return keras.Model(image, conv(1, "last")(inner(conv(4, "first")(image))))


CUTS = [
    (residual, {"upto": "stem"}),
    (residual, {"upto": "b1_conv"}),
    (classifier, {"upto": "b1_add"}),
    (unet, {"upto": "b"}),
    (odd_in_the_middle, {"unsupported": "device"}),
    (odd_in_the_middle, {"upto": "first", "unsupported": "device"}),
    (nested, {"unsupported": "device"}),
]
FAST = (0, 4, 6)
cuts = pytest.mark.parametrize(
    ("build", "cut"),
    [
        pytest.param(*case, marks=[] if i in FAST else pytest.mark.slow)
        for i, case in enumerate(CUTS)
    ],
)


def numbers(shape: Any, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=tuple(shape))


def both(build: Callable[[], keras.Model], **cut: Any) -> tuple[Any, keras.Model]:
    """Return a streamed model in strips of two rows, and a plain one with copies of its weights."""
    model, twin = build(), build()
    model.set_weights([numbers(w.shape, i) ** 2 * 0.3 for i, w in enumerate(model.get_weights())])
    twin.set_weights(model.get_weights())
    return tfbig.stream(model, strip_rows=2, **cut), twin


def like(outputs: Any) -> Any:
    return tf.nest.map_structure(lambda t: tf.constant(numbers(t.shape, 7), t.dtype), outputs)


# ------------------------------------------------------------------- outputs and gradients


@cuts
def test_outputs_and_gradients(build: Any, cut: Any, float64: None) -> None:
    """Outputs in both modes, gradients of image and weights, moving statistics, and penalties."""
    big, plain = both(build, **cut)
    x = tf.constant(numbers((2, 12, 8, 2)))
    dy = like(plain(x))
    actual, expected = (
        gradients(lambda x, m=m: m(x, training=True), x, m.trainable_variables, dy)
        for m in (big, plain)
    )
    assert_same(actual, expected, FLOAT64)
    assert_same(big.get_weights(), plain.get_weights(), FLOAT64)
    assert_same(big(x, training=False), plain(x, training=False), FLOAT64)
    assert_same(float(sum(big.losses)), float(sum(plain.losses)), FLOAT64)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "cut"),
    [
        (one_block_classifier, {"upto": "b0_norm"}),
        (classifier, {"upto": "b1_norm"}),
        *CUTS[3:5],
    ],
)
def test_fit_evaluate_predict(build: Any, cut: Any, float64: None) -> None:
    """Ten steps with losses, penalties and metrics, which are Keras' own here."""
    x, results = numbers((20, 8, 6, 2)), []
    for model in both(build, **cut):
        y = [numbers((20, *shape[1:])) for shape in shapes(model, x[:2])]
        model.compile(keras.optimizers.SGD(0.01), "mse", metrics=[["mae"]] * len(y))
        history = model.fit(x, y, batch_size=2, shuffle=False, verbose=0).history
        scores = model.evaluate(x, y, batch_size=4, verbose=0)
        predicted = model.predict(x, batch_size=3, verbose=0)
        results.append([*history.values(), scores, predicted, *model.get_weights()])
    assert_same(*results, FLOAT64)


def shapes(model: Any, x: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(t.shape) for t in keras.tree.flatten(model(x))]


@pytest.mark.slow
def test_handles(float64: None) -> None:
    """The rest reads the image itself; image, labels and sample weights come by handle."""
    random = np.random.default_rng(9)
    x, y = (random.integers(0, 256, (2, 8, 6, c), np.uint8) for c in (2, 1))
    sources = [[tfbig.open(image) for image in images] for images in (x, y // 128, y // 64)]
    handles = tuple(tf.constant([s.handle for s in each]) for each in sources)
    results = []
    for data in ((x, y // 128, y // 64), handles):
        big, _ = both(unet, upto="b")
        big.compile("sgd", "binary_crossentropy")
        dataset = tf.data.Dataset.from_tensors(data)
        logs = big.fit(dataset, shuffle=False, verbose=0).history
        predicted = big.predict(dataset.map(lambda x, *_: x), verbose=0)
        results.append([np.float64(logs["loss"]), predicted, *big.get_weights()])
    assert_same(*results, FLOAT64)


def test_predict_to_file(tmp_path: Path) -> None:
    big, plain = both(unet, upto="a")
    image = np.random.default_rng(9).integers(0, 9, (8, 6, 2), np.uint8)
    big.predict_to(image, str(tmp_path / "map.npy"))
    expected = plain.predict(image[None], verbose=0)[0]
    # float32: at most 36 products in a sum, through three layers
    assert_same(np.load(tmp_path / "map.npy"), expected, 3 * 36 * 2**-24)


def test_dropout_and_frozen_layers_of_the_rest(float64: None) -> None:
    """Dropout of the rest draws the masks of the plain model; frozen statistics do not change."""

    def build() -> keras.Model:
        def head(x: Any) -> Any:
            return layers.Dropout(0.5, seed=3)(norm("tail")(x))

        return residual(head, ("b0",))

    x = tf.constant(numbers((2, 9, 8, 2)))
    big, plain = both(build, upto="stem")
    for frozen in (False, True):
        for model in (big, plain):
            model.get_layer("tail").trainable = not frozen
        assert_same(big(x, training=True), plain(x, training=True), FLOAT64)
    assert_same(big.get_weights(), plain.get_weights(), FLOAT64)


# ------------------------------------------------------------------------- split


def parts(build: Callable[[], keras.Model], **cut: Any) -> tuple[set[str], set[str]]:
    """Return the names of the layers of front and rest."""
    split = front_and_rest.find(build(), cut.get("upto"), cut.get("unsupported", "error"))
    assert split is not None
    front, rest = (
        {n.name for n in m.layers if not isinstance(n, layers.InputLayer)}
        for m in (split.front, split.rest)
    )
    return front, rest


def test_front_up_to_a_layer() -> None:
    front, rest = parts(residual, upto="b1_conv")
    assert front == {"first", "norm", "stem", "b1_conv"} | {
        f"b0_{n}" for n in ("conv", "norm", "relu", "last", "side", "add")
    }
    assert rest == {f"b1_{n}" for n in ("norm", "relu", "last", "side", "add")} | {"head"}


def test_front_without_unsupported_layers() -> None:
    front, rest = parts(odd_in_the_middle, unsupported="device")
    assert {"first", "norm", "side"} < front
    assert rest == {"odd", "second", "met", "after", "pooled", "vector"}
    assert parts(nested, unsupported="device") == ({"first"}, {"inner", "last"})


@pytest.mark.slow
@pytest.mark.parametrize("cut", [{}, {"upto": "head"}, {"unsupported": "device"}])
def test_no_split_if_all_layers_stream(cut: Any) -> None:
    """Losses then run strip by strip."""
    big, _ = both(residual, **cut)
    assert big.outputs_stream
    assert not both(residual, upto="b1_add")[0].outputs_stream


def test_split_does_not_change_the_model() -> None:
    big, plain = both(residual, upto="b0_add")
    assert [id(v) for v in big.weights] == [id(v) for v in big.twin.weights]
    assert [w.path for w in big.weights] == [w.path for w in plain.weights]
    assert big.twin.get_config() == plain.get_config()
    assert big.count_params() == plain.count_params()


@pytest.mark.slow
def test_save_and_load(float64: None, tmp_path: Path) -> None:
    x, y = numbers((2, 8, 6, 2)), numbers((2, 8, 6, 1))
    big, plain = both(nested, upto="inner", unsupported="device")
    big.compile("adam", "mse")
    big.fit(x, y, verbose=0)
    big.save(tmp_path / "big.keras")
    loaded = keras.saving.load_model(tmp_path / "big.keras")
    assert (loaded.settings.upto, loaded.settings.unsupported) == ("inner", "device")
    logs = [model.fit(x, y, verbose=0).history for model in (big, loaded)]
    assert logs[0] == logs[1]
    plain.load_weights(tmp_path / "big.keras")
    assert_same(big.twin(x), loaded(x), FLOAT64)


# ---------------------------------------------------------------------------------- plans


def test_plan_counts_whole_tensors() -> None:
    """Computed by hand: 1 x 64 x 48, split after `b0_add`; six layers of block 1 and the head, with gradients."""
    big = tfbig.stream(residual(), tfbig.Budget(device="4MB"), upto="b0_add")
    plain = tfbig.stream(big._split.front, tfbig.Budget(device="4MB"))
    crossing = 32 * 24 * 4
    inside = 3 * (32 * 24 * 4) + 3 * (16 * 12 * 4)  # conv, norm, relu; last, side, add
    whole = 4 * (crossing + inside + 16 * 12 * 3)
    for training in (True, False):
        plan = big.plan((1, 64, 48, 2), training)
        assert plan.rest.whole_bytes == whole * (2 if training else 1)
        front = plain.plan((1, 64, 48, 2), training)
        assert (
            plan.projected.device
            == front.projected.device + plan.rest.whole_bytes
            <= plan.allowed.device
        )
        assert plan.allowed.device == 4_000_000
    assert "whole tensors of 'b1_conv' .. 'head' (7 layers)" in str(plan)


def test_strips_use_the_remaining_memory() -> None:
    def strips(device: int) -> int:
        return (
            tfbig.stream(residual(), tfbig.Budget(device=device), upto="b0_add")
            .plan((1, 256, 256, 2))
            .strips
        )

    big = tfbig.stream(residual(), tfbig.Budget(device="1GB"), upto="b0_add")
    whole = big.plan((1, 256, 256, 2)).rest.whole_bytes
    assert strips(whole + 4 * 10**5) > strips(whole + 2 * 10**6) > strips(10**9) == AT_ONCE


def test_rest_that_does_not_fit() -> None:
    big = tfbig.stream(residual(), tfbig.Budget(device="1MB"), upto="b0_add")
    big.compile("sgd", "mse")
    message = (
        r"'residual' on 1 x 256 x 256: the whole tensors of 'b1_conv' .. 'head' \(7 layers\) take .* of the "
        r"device, and the smallest tile .*, but 976.6 KiB are allowed. Raise `device` to .*, or use smaller images"
    )
    with pytest.raises(tfbig.BudgetError, match=message):
        big.plan((1, 256, 256, 2))
    with pytest.raises(tfbig.BudgetError, match=message):
        big.train_on_batch(np.zeros((1, 256, 256, 2), "f"), np.zeros((1, 64, 64, 3), "f"))


def test_rest_in_host_memory() -> None:
    """Without a device budget the rest counts as host memory."""
    free = tfbig.stream(residual(), tfbig.Budget(host="60GB"), upto="b0_add")
    plan = free.plan((1, 4096, 4096, 2))
    assert plan.rest.whole_bytes > DEFAULT_STRIPS
    assert not plan.allowed.firm
    small = tfbig.stream(
        residual(), tfbig.Budget(host=plan.rest.whole_bytes, disk=0), upto="b0_add"
    )
    with pytest.raises(
        tfbig.BudgetError, match=r"that do not stream 632.0 MiB\), but .* Raise `host` to"
    ):
        small.plan((1, 4096, 4096, 2))
    budget = tfbig.Budget(host=plan.total_bytes - 10**6, disk=0)
    tight = tfbig.stream(residual(), budget, upto="b0_add").plan((1, 4096, 4096, 2))
    assert tight.total_bytes <= plan.total_bytes - 10**6


def test_strips_that_do_not_fit() -> None:
    whole = tfbig.stream(residual(), upto="b0_add").plan((1, 64, 64, 2)).rest.whole_bytes
    big = tfbig.stream(residual(), tfbig.Budget(device=whole + 100), upto="b0_add")
    with pytest.raises(
        tfbig.BudgetError, match=r"the whole tensors .* of the device, and the smallest tile"
    ):
        big.plan((1, 64, 64, 2))


# --------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("build", "cut", "kind", "message"),
    [
        (
            residual,
            {"upto": "b1_conf"},
            ValueError,
            "'residual' has no layer called 'b1_conf' to stream up to; did you mean 'b1_conv', ",
        ),
        (nested, {"upto": "inside"}, ValueError, "It is inside 'inner', which can only stream as"),
        (residual, {"unsupported": "host"}, ValueError, "unsupported='host': expected 'error' or"),
        (odd_in_the_middle, {}, tfbig.UnsupportedLayerError, "layer 'odd'"),
        (odd_in_the_middle, {"upto": "met"}, tfbig.UnsupportedLayerError, "layer 'odd'"),
    ],
)
def test_invalid_split(build: Any, cut: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        tfbig.stream(build(), **cut)


def test_nothing_to_stream() -> None:
    image = keras.Input((8, 6, 2))
    model = keras.Model(image, conv(1, "last")(Downward(name="odd")(image)))
    message = r"nothing of .* would stream: its first layer 'odd' \(Downward\) runs on whole .* in its place, or"
    with pytest.raises(tfbig.UnsupportedLayerError, match=message):
        tfbig.stream(model, unsupported="device")
    augmented = keras.Model(image, conv(1, "last")(keras.layers.RandomFlip()(image)))
    with pytest.raises(tfbig.UnsupportedLayerError, match="apply it to the data instead"):
        tfbig.stream(augmented, unsupported="device")


@pytest.mark.slow
def test_activity_regularizer_runs_in_the_rest(float64: None) -> None:
    def build() -> keras.Model:
        image = keras.Input((None, None, 2))
        x = norm("norm")(conv(4, "first", strides=4)(image))
        return keras.Model(image, conv(2, "head", activity_regularizer="l2")(x))

    with pytest.raises(tfbig.UnsupportedLayerError, match="'head' has an activity_regularizer"):
        tfbig.stream(build())
    x, y, losses = numbers((2, 8, 6, 2)), numbers((2, 2, 2, 2)), []
    for model in both(build, unsupported="device"):
        model.compile("sgd", "mse")
        losses.append([np.float64(model.train_on_batch(x, y)) for _ in range(2)])
    assert_same(*losses, FLOAT64)


def test_layer_called_before_and_after_the_split(float64: None) -> None:
    inputs = keras.Input((None, None, 2))
    shared = keras.layers.Conv2D(2, 3, padding="same")
    model = keras.Model(inputs, shared(keras.layers.Lambda(lambda x: 2 * x)(shared(inputs))))
    x = np.random.default_rng(0).normal(size=(2, 9, 7, 2))
    big = tfbig.stream(model, strip_rows=2, unsupported="device")
    assert_same(big(x), model(x), FLOAT64)

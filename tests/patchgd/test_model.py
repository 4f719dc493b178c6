"""PatchGD: with all patches it is plain training, with some it is the published loop, and nothing is read whole."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same
from keras import layers, ops

import tfbig
from tfbig import SourceError
from tfbig.patchgd import LatentGrid, PatchGD, patch_model, patch_sampling, slice_encoder
from tfbig.patchgd.patch_reader import Patches
from tfbig.sources import ArrayBag

CONVS = {1: layers.Conv1D, 2: layers.Conv2D, 3: layers.Conv3D}
POOLS = {
    1: layers.GlobalAveragePooling1D,
    2: layers.GlobalAveragePooling2D,
    3: layers.GlobalAveragePooling3D,
}


def encoder(axes: int = 2, norm: bool = False, rate: float = 0.0) -> keras.Model:
    keras.utils.set_random_seed(3)
    patch = keras.Input((*[None] * axes, 2))
    x = CONVS[axes](4, 2)(patch)
    x = layers.BatchNormalization(momentum=0.8)(x) if norm else x
    x = layers.Dropout(rate, seed=1)(ops.tanh(x))
    return keras.Model(patch, layers.Dense(3)(POOLS[axes]()(x)), name="encoder")


def head(axes: int = 2, norm: bool = False) -> keras.Model:
    keras.utils.set_random_seed(4)
    z = keras.Input((*[None] * axes, 3))
    x = CONVS[axes](4, 3, padding="same")(z)
    x = layers.BatchNormalization(momentum=0.7)(x) if norm else x
    return keras.Model(z, layers.Dense(3)(POOLS[axes]()(ops.tanh(x))), name="head")


def entropy() -> keras.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def images(*size: int, count: int = 6, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, *size, 2)).astype(keras.config.floatx())


LABELS = np.array([0, 2, 1, 1, 0, 2])


class Recorder(keras.optimizers.SGD):
    """SGD that keeps the gradients that it was given, in the order of `PatchGD.trainable_variables`."""

    def apply_gradients(self, pairs: Any, **options: Any) -> Any:
        pairs = list(pairs)
        self.given = [g for g, _ in pairs]
        return super().apply_gradients(pairs, **options)


def exact_gradients(model: PatchGD, x: Any, y: Any) -> list[tf.Tensor]:
    """Of the plain model, in the order of the model's variables."""
    twin = model.twin
    with tf.GradientTape() as tape:
        loss = entropy()(y, twin(x, training=True))
    return tape.gradient(loss, [v._value for v in model.trainable_variables])


def given_gradients(model: PatchGD, x: Any, y: Any) -> list[tf.Tensor]:
    """What the optimizer is given in one step, whose learning rate is 0."""
    model.compile(Recorder(0.0), entropy(), run_eagerly=True)
    model.train_on_batch(x, y)
    return model.optimizer.given


@pytest.mark.parametrize(
    ("size", "patch", "stride", "options", "optimizer"),
    [
        ((12, 16), 4, 4, {}, "sgd"),
        ((12, 16), 4, 4, {"patches_at_once": 5}, "adam"),
        ((13, 17), (5, 4), (3, 4), {"patches_at_once": 1}, "sgd"),
        ((13, 17), (5, 4), (3, 4), {"sampling": 1000}, "adam"),
        ((20,), 8, 3, {}, "adam"),
        ((8, 7, 9), 4, (4, 2, 3), {"patches_at_once": 30}, "sgd"),
    ],
)
def test_all_patches_in_one_inner_step_are_plain_training(
    size: Any, patch: Any, stride: Any, options: Any, optimizer: str, float64: None
) -> None:
    """Six steps of `fit` over batches of two sizes."""
    axes, x = len(size), images(*size)
    options = {"sampling": 1.0, "inner_steps": 1} | options
    model = PatchGD(encoder(axes), head(axes), patch, stride, **options)
    twin = patch_model(encoder(axes), head(axes), patch, stride)
    twin.set_weights(model.twin.get_weights())
    found = []
    for each in (model, twin):
        each.compile(optimizer, entropy(), metrics=["accuracy"])
        found.append(each.fit(x, LABELS, batch_size=4, epochs=3, shuffle=False, verbose=0).history)
    assert_same(found[0]["loss"], found[1]["loss"], FLOAT64)
    assert found[0]["accuracy"] == found[1]["accuracy"]
    assert_same(model.twin.get_weights(), twin.get_weights(), FLOAT64)
    assert_same(model.predict(x, verbose=0), twin.predict(x, verbose=0), FLOAT64)
    assert_same(model.evaluate(x, LABELS, verbose=0), twin.evaluate(x, LABELS, verbose=0), FLOAT64)


def test_gradients_are_those_of_the_plain_model(float64: None) -> None:
    model = PatchGD(encoder(), head(), 4, 3, sampling=1.0, inner_steps=1)
    x = images(11, 14)
    assert_same(given_gradients(model, x, LABELS), exact_gradients(model, x, LABELS), FLOAT64)


@pytest.mark.parametrize(
    "sampling", [0.5, 0.25, 0.2, 1, 5]
)  # of 12 patches: also what does not divide
@pytest.mark.parametrize("patches_at_once", [None, 4])
def test_the_published_scale_gives_the_encoder_one_share_and_unbiased_all_of_it(
    sampling: Any, patches_at_once: Any, float64: None
) -> None:
    """Gradients of all inner steps accumulate: no weight changes and every patch is in one set."""
    x = images(12, 16)
    scales = {}
    for scale in patch_sampling.SCALES:
        model = PatchGD(
            encoder(),
            head(),
            4,
            sampling=sampling,
            accumulate=None,
            encoder_scale=scale,
            patches_at_once=patches_at_once,
        )
        scales[scale] = given_gradients(model, x, LABELS)
    exact = exact_gradients(model, x, LABELS)
    of_encoder = len(model.encoder.trainable_variables)
    num_sets = -(-12 // patch_sampling.set_size(sampling, 12))
    assert_same(scales["unbiased"], exact, FLOAT64)
    assert_same(scales["published"][of_encoder:], exact[of_encoder:], FLOAT64)
    shares = [g / num_sets for g in exact[:of_encoder]]
    assert_same(scales["published"][:of_encoder], shares, FLOAT64)


def oracle(model: PatchGD, x: Any, y: Any, rate: float, seed: Any) -> list[float]:
    """The published loop, written out in eager Keras; gives the losses of the inner steps."""
    grid = Patches(tf.constant(x), model.patch, model.stride, 2)
    count, cells, batch = grid.count, grid.cells, len(x)
    choose = patch_sampling.Chooser(
        model.sampling, "shuffle", model.encoder_scale, batch, count, seed
    )
    flat = lambda places: tf.reshape(grid.take(places), [-1, *model.patch, 2])  # noqa: E731
    order = np.argsort(
        tf.random.stateless_uniform([batch, count], patch_sampling.folded(seed, 0)).numpy()
    )
    z = np.zeros((batch, count, 3))
    for i in range(choose.num_sets):  # the filling, with statistics of each slice
        part = order[:, count * i // choose.num_sets : count * (i + 1) // choose.num_sets]
        codes = model.encoder(flat(tf.constant(part)), training=True)
        np.put_along_axis(z, part[..., None], np.reshape(codes, (batch, -1, 3)), 1)
    losses, sums = [], None
    variables = model.trainable_variables
    steps = model.inner_steps or choose.num_sets
    for k in range(steps):
        places, _ = choose(tf.constant(k), lambda: None)
        with tf.GradientTape() as tape:
            codes = tf.reshape(model.encoder(flat(places), training=True), [batch, -1, 3])
            rows = [
                tf.tensor_scatter_nd_update(z[n], places[n][:, None], codes[n])
                for n in range(batch)
            ]
            fresh = tf.stack(rows)
            loss = entropy()(y, model.head(tf.reshape(fresh, [batch, *cells, 3]), training=True))
        found = tape.gradient(loss, [v._value for v in variables])
        found = [g / model.accumulate for g in found]
        sums = found if sums is None else [s + g for s, g in zip(sums, found, strict=True)]
        z = fresh.numpy()
        losses.append(float(loss))
        if (k + 1) % model.accumulate == 0:
            for v, s in zip(variables, sums, strict=True):
                v.assign_sub(rate * s)
            sums = None
    return losses


@pytest.mark.parametrize("accumulate", [1, 2, 4])
@pytest.mark.parametrize("eager", [False, True])
def test_it_is_the_published_loop(accumulate: int, eager: bool, float64: None) -> None:
    """Stale codes, BatchNormalization of slices and of inner steps, moving statistics: all as written out."""
    x, both = images(12, 16, count=2), []
    for _ in range(2):
        both.append(
            PatchGD(
                encoder(norm=True), head(norm=True), 4, sampling=0.25, accumulate=accumulate, seed=5
            )
        )
    model, plain = both
    model.compile(keras.optimizers.SGD(0.1), entropy(), run_eagerly=eager)
    seed = plain.next_seed()
    loss = model.train_on_batch(x, LABELS[:2])
    losses = oracle(plain, x, LABELS[:2], 0.1, seed)
    assert loss == pytest.approx(np.mean(losses), rel=FLOAT64)
    assert_same(model.get_weights(), plain.get_weights(), FLOAT64)


def test_a_frozen_filling_moves_no_statistics(float64: None) -> None:
    """They move in the inner steps alone; published, in the filling too."""
    x, moved = images(12, 16, count=2), {}
    for filling in ("published", "frozen"):
        model = PatchGD(
            encoder(norm=True), head(), 4, sampling=1.0, inner_steps=1, filling_norm=filling
        )
        model.compile(keras.optimizers.SGD(0.0), entropy())
        model.train_on_batch(x, LABELS[:2])
        (norm,) = [v for v in model.encoder.layers if isinstance(v, layers.BatchNormalization)]
        moved[filling] = norm.moving_mean.numpy()
    conv = model.encoder.layers[1]
    grid = Patches(tf.constant(x), (4, 4), (4, 4), 2)
    mean = np.mean(
        conv(tf.reshape(grid.take(tf.tile(tf.range(12)[None], [2, 1])), [-1, 4, 4, 2])), (0, 1, 2)
    )
    assert_same(moved["frozen"], 0.2 * mean, FLOAT64)
    assert_same(moved["published"], (1 - 0.8**2) * mean, FLOAT64)


def test_dropout_is_drawn_again_in_the_backward_of_slices(float64: None) -> None:
    """The gradient is that of the codes that were seen: central differences along it, at the same masks."""
    net = encoder(rate=0.5)
    (generator,) = [v for v in net.non_trainable_variables if "seed" in v.path]
    grid = Patches(tf.constant(images(12, 16)), (4, 4), (4, 4), 2)
    places = tf.tile(tf.range(12)[None], [6, 1])
    cotangent = tf.constant(np.random.default_rng(1).normal(size=(6, 12, 3)))

    def value() -> tf.Tensor:
        generator.assign([5, 7])
        return tf.reduce_sum(slice_encoder.encode(net, grid.take, places, 5) * cotangent)

    variables = [v._value for v in net.trainable_variables]
    with tf.GradientTape() as tape:
        found = value()
    assert float(found) == float(value())
    assert generator.numpy().tolist() != [5, 7]
    gradients = tape.gradient(found, variables)
    direction = [g / tf.linalg.global_norm(gradients) for g in gradients]
    step, ends = 1e-5, []
    for sign in (1, -1):
        for v, d in zip(variables, direction, strict=True):
            v.assign_add(sign * step * d)
        ends.append(value())
        for v, d in zip(variables, direction, strict=True):
            v.assign_sub(sign * step * d)
    slope = float(ends[0] - ends[1]) / (2 * step)
    assert slope == pytest.approx(float(tf.linalg.global_norm(gradients)), rel=1e-7)


# ------------------------------------------------------------------------------------------ sets


def chooser(
    sampling: Any, sampler: str = "shuffle", count: Any = 10, scale: str = "unbiased"
) -> Any:
    return patch_sampling.Chooser(sampling, sampler, scale, 3, count, tf.constant([2, 9]))


@pytest.mark.parametrize("sampling", [0.25, 0.3, 3, 1, 1.0, 0.01])
@pytest.mark.parametrize("known", [True, False])
def test_every_patch_is_in_one_set_of_a_turn(sampling: Any, known: bool) -> None:
    made = chooser(sampling, count=10 if known else tf.constant(10))
    num_sets = int(made.num_sets)
    turns = []
    for turn in range(3):
        sets = [made(tf.constant(turn * num_sets + k), lambda: None) for k in range(num_sets)]
        assert all((np.diff(s) > 0).all() for s, _ in sets)  # none twice, in the order of the grid
        sizes = [s.shape[1] for s, _ in sets]
        assert max(sizes) <= int(made.size)
        assert max(sizes) - min(sizes) <= 1
        turns.append(np.concatenate([s for s, _ in sets], 1))
        np.testing.assert_array_equal(np.sort(turns[-1]), [list(range(10))] * 3)
        assert all((w.numpy() == num_sets).all() for _, w in sets)
    if num_sets > 1:
        assert (turns[0] != turns[1]).any()
        assert (turns[0][0] != turns[0][1]).any()  # each image has sets of its own


@pytest.mark.parametrize(
    ("sampling", "count", "size"),
    [(0.1, 30, 3), (0.125, 256, 32), (0.25, 121, 31), (0.3, 10, 3), (40, 30, 30), (1.0, 7, 7)],
)
def test_sizes_of_sets(sampling: Any, count: int, size: int) -> None:
    assert patch_sampling.set_size(sampling, count) == size
    assert int(patch_sampling.set_size(sampling, tf.constant(count))) == size


@pytest.mark.parametrize("sampler", ["replacement", "attention"])
def test_draws_are_unbiased(sampler: str) -> None:
    """The mean of the weighted sums is the sum over all patches, within five standard errors."""
    values = np.random.default_rng(3).normal(size=10)
    attention = tf.constant([np.arange(1.0, 11)] * 3)
    made, sums, seen = chooser(4, sampler), [], np.zeros(10)
    for k in range(400):
        places, weights = made(tf.constant(k), lambda: attention)
        assert places.shape == (3, 4)
        sums += list((values[places.numpy()] * weights.numpy()).sum(1))
        seen += np.bincount(places.numpy().ravel(), minlength=10)
    assert abs(np.mean(sums) - values.sum()) < 5 * np.std(sums) / len(sums) ** 0.5
    expected = (np.arange(1, 11) / 55 + 0.1) / 2 if sampler == "attention" else np.full(10, 0.1)
    total = seen.sum()
    assert (abs(seen / total - expected) < 5 * np.sqrt(expected / total)).all()


def test_published_weights_are_one() -> None:
    for sampler in patch_sampling.SAMPLERS:
        _, weights = chooser(4, sampler, scale="published")(
            tf.constant(1), lambda: tf.ones([3, 10])
        )
        assert (weights.numpy() == 1).all()


class Looking(layers.Layer):
    """A head that pools by attention, and says where it looks."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.gate, self.out = layers.Dense(1), layers.Dense(3)

    def build(self, shape: Any) -> None:
        self.gate.build((None, None, shape[-1]))
        self.out.build((None, shape[-1]))

    def attention(self, z: Any) -> Any:
        flat = ops.reshape(z, (ops.shape(z)[0], -1, z.shape[-1]))
        return ops.softmax(self.gate(flat)[..., 0], axis=1)

    def call(self, z: Any) -> Any:
        flat = ops.reshape(z, (ops.shape(z)[0], -1, z.shape[-1]))
        return self.out(ops.sum(self.attention(z)[..., None] * flat, axis=1))

    def compute_output_shape(self, shape: Any) -> Any:
        return (shape[0], 3)


@pytest.mark.parametrize("sampler", patch_sampling.SAMPLERS)
@pytest.mark.parametrize(
    "accumulate", [None, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3))]
)
def test_every_sampler_learns(sampler: str, accumulate: Any) -> None:
    """The mean of an image tells its class."""
    y = np.tile(np.arange(3), 8)
    x = images(8, 12, count=24) * 0.3 + y[:, None, None, None].astype("float32") - 1
    keras.utils.set_random_seed(0)
    model = PatchGD(
        encoder(), Looking(), 4, sampling=2, accumulate=accumulate, sampler=sampler, seed=0
    )
    model.compile(keras.optimizers.Adam(0.03), entropy(), metrics=["accuracy"])
    model.fit(x, y, batch_size=4, epochs=12, verbose=0)
    assert model.evaluate(x, y, verbose=0)[1] == 1.0


def test_the_same_seed_trains_the_same() -> None:
    x, found = images(12, 16), []
    for seed in (1, 1, 2):
        model = PatchGD(encoder(rate=0.2), head(), 4, sampling=0.25, seed=seed)
        model.compile("adam", entropy())
        model.fit(x, LABELS, batch_size=2, shuffle=False, verbose=0)
        found.append(model.encoder.get_weights()[0])
    np.testing.assert_array_equal(found[0], found[1])
    assert (found[0] != found[2]).any()


# ----------------------------------------------------------------------------------------- handles


@pytest.mark.parametrize("image_shape", [None, (12, 16, 2)])
def test_handles_train_as_tensors_do(image_shape: Any, float64: None) -> None:
    x = np.random.default_rng(0).integers(0, 256, (6, 12, 16, 2), np.uint8)
    held = [tfbig.open(image) for image in x]
    found = []
    for inputs in (x.astype("float64"), np.array([s.handle for s in held])):
        options = {"sampling": 3, "accumulate": 2, "seed": 3, "image_shape": image_shape}
        model = PatchGD(encoder(norm=True), head(), 4, **options)
        model.compile(keras.optimizers.SGD(0.01), entropy(), metrics=["accuracy"])
        data = tf.data.Dataset.from_tensor_slices((inputs, LABELS)).batch(2)
        logs = model.fit(data, epochs=2, shuffle=False, verbose=0).history
        scores = model.evaluate(data, verbose=0, return_dict=True)
        found.append((logs, scores, model.predict(data, verbose=0), model.get_weights()))
    assert_same(found[0], found[1], FLOAT64)


def test_a_handle_of_another_size_than_said_is_named() -> None:
    model = PatchGD(encoder(), head(), 4, image_shape=(12, 16, 2))
    other = ArrayBag(np.zeros((16, 16, 2), np.uint8), "mine")
    with pytest.raises(
        SourceError, match=r"mine: is \(16, 16\); expected \(12, 16\), the image_shape"
    ):
        model.predict(tf.constant([other.handle]), verbose=0)


def test_series_by_handle(float64: None) -> None:
    x = np.random.default_rng(0).normal(size=(4, 20, 2))
    held = [ArrayBag(series) for series in x]
    model = PatchGD(encoder(1), head(1), 8, 4, source_dtype="float64")
    found = model(tf.constant([s.handle for s in held]))
    assert_same(found, model(tf.constant(x)), FLOAT64)


def test_images_of_several_sizes_are_traced_once() -> None:
    traces = []

    class Counting(layers.Layer):
        def call(self, x: Any) -> Any:
            traces.append(1)
            return x

    net = encoder()
    net = keras.Model(net.input, Counting()(net.output))
    sizes = [(12, 16), (20, 9), (8, 8), (30, 25)]
    held = [tfbig.open(np.zeros((*size, 2), np.uint8)) for size in sizes]
    model = PatchGD(net, head(), 4, sampling=3)
    model.compile("sgd", entropy())
    data = tf.data.Dataset.from_tensor_slices(([s.handle for s in held], [0, 1, 2, 0])).batch(1)
    model.fit(data.take(1), shuffle=False, verbose=0)
    before = len(traces)
    model.fit(data, epochs=2, shuffle=False, verbose=0)
    assert len(traces) == before


def test_no_more_than_patches_is_read() -> None:
    windows = []

    class Seen(tfbig.Source):
        def _read_window(self, *window: int) -> np.ndarray:
            windows.append((window[1] - window[0], window[3] - window[2]))
            return np.zeros((*windows[-1], 2), np.uint8)

        def _read(self, start: int, stop: int) -> np.ndarray:
            raise AssertionError("whole rows were read")

    source = Seen((64, 64, 2), np.uint8, "seen")
    model = PatchGD(encoder(), head(), 8, sampling=4, inner_steps=2)
    model.compile("sgd", entropy())
    model.train_on_batch(tf.constant([source.handle]), LABELS[:1])
    assert {rows for rows, _ in windows} == {8}
    assert max(columns for _, columns in windows) <= 32  # a slice of four neighbours


@pytest.mark.parametrize(
    ("shapes", "dtype", "message"),
    [
        ([(12, 16, 2), (12, 17, 2)], np.uint8, "have different shapes"),
        ([(12, 16, 3)], np.uint8, "has 3 channels of uint8; expected 2 of uint8"),
        ([(12, 16, 2)], np.int16, r"has 2 channels of int16; .* pass source_dtype='int16'"),
        ([(3, 16, 2)], np.uint8, "smaller than a patch"),
    ],
)
def test_images_that_cannot_be_used_are_named(shapes: Any, dtype: Any, message: str) -> None:
    held = [tfbig.open(np.zeros(shape, dtype)) for shape in shapes]
    model = PatchGD(encoder(), head(), 4)
    model.compile("sgd", entropy())
    handles = tf.constant([s.handle for s in held])
    for run in (model.train_on_batch, model.test_on_batch):
        with pytest.raises((SourceError, ValueError), match=message):
            run(handles, LABELS[: len(held)])
    with pytest.raises((SourceError, ValueError), match=message):
        model(handles)
    with pytest.raises((SourceError, ValueError), match=message):
        model.predict(handles, verbose=0)


def test_tensors_smaller_than_a_patch() -> None:
    model = PatchGD(encoder(), head(), 4)
    with pytest.raises(ValueError, match="smaller than a patch"):
        model(tf.zeros([1, 3, 9, 2]))
    call = tf.function(model, input_signature=[tf.TensorSpec([None, None, None, 2])])
    assert call(tf.zeros([1, 5, 9, 2])).shape == (1, 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="smaller than a patch"):
        call(tf.zeros([1, 3, 9, 2]))


# ------------------------------------------------------------------------------------------ Keras


def test_it_is_saved_and_goes_on(tmp_path: Any) -> None:
    x = images(12, 16)
    model = PatchGD(
        encoder(norm=True), head(), 4, (4, 3), 0.3, accumulate=2, filling_norm="frozen", seed=4
    )
    model.compile("adam", entropy())
    model.fit(x, LABELS, batch_size=2, shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    own = model.get_config().keys() - {"encoder", "head"}
    assert all(loaded.get_config()[key] == model.get_config()[key] for key in own)
    assert_same(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
    for each in (model, loaded):
        each.fit(x, LABELS, batch_size=2, shuffle=False, verbose=0)
    assert_same(loaded.get_weights(), model.get_weights())  # sets and moments of Adam too


def test_weights_losses_and_regularisers(float64: None) -> None:
    """Sample weights, two outputs and a penalty on weights, as in the plain model."""
    x, z = images(8, 12), keras.Input((None, None, 3))
    found = []
    for plain in (False, True):
        net = encoder()
        net.layers[1].kernel_regularizer = keras.regularizers.L2(0.01)
        keras.utils.set_random_seed(0)
        pooled = layers.GlobalAveragePooling2D()(z)
        both = keras.Model(
            z, {"a": layers.Dense(3, name="a")(pooled), "b": layers.Dense(1, name="b")(pooled)}
        )
        model = patch_model(net, both, 4) if plain else PatchGD(net, both, 4, sampling=1.0)
        model.compile("sgd", {"a": entropy(), "b": "mse"}, loss_weights={"a": 1.0, "b": 0.3})
        y = {"a": LABELS, "b": LABELS[:, None] * 0.5}
        weights = {"a": np.arange(6.0), "b": np.ones(6)}
        logs = model.fit(
            x, y, sample_weight=weights, batch_size=3, shuffle=False, verbose=0
        ).history
        found.append((logs, [w.numpy() for w in [*net.weights, *both.weights]]))
    assert_same(found[0], found[1], FLOAT64)


def test_what_is_not_trained_stays() -> None:
    net = encoder()
    net.layers[1].trainable = False
    model = PatchGD(net, head(), 4, sampling=0.5)
    before = net.layers[1].get_weights()
    model.compile(keras.optimizers.AdamW(weight_decay=0.1), entropy())
    model.fit(images(12, 16), LABELS, verbose=0)
    assert_same(net.layers[1].get_weights(), before)
    net.trainable = False
    model = PatchGD(net, head(), 4, sampling=0.5)
    model.compile("adam", entropy())
    model.fit(images(12, 16), LABELS, verbose=0)
    assert_same(net.layers[1].get_weights(), before)


@pytest.mark.parametrize(
    ("policy", "at_once"),
    [
        ("mixed_bfloat16", 2),
        ("mixed_float16", None),
        pytest.param("mixed_float16", 2, marks=pytest.mark.slow),  # slow on processors
    ],
)
def test_mixed_precision(policy: str, at_once: Any) -> None:
    keras.config.set_dtype_policy(policy)
    model = PatchGD(encoder(norm=True), head(), 4, sampling=0.5, patches_at_once=at_once)
    model.compile("adam", entropy())
    before = model.get_weights()
    loss = model.fit(images(12, 16), LABELS, verbose=0).history["loss"]
    assert np.isfinite(loss).all()
    assert any((a != b).any() for a, b in zip(before, model.get_weights(), strict=True))


def test_the_latent_grid_is_that_of_every_patch() -> None:
    net = encoder()
    model = PatchGD(net, head(), 4, 3, sampling=3)
    x = images(10, 13, count=2)
    z = model.latent(x)
    assert z.shape == (2, 3, 4, 3)
    assert_same(z[:, 1, 2], net(x[:, 3:7, 6:10]), 1e-6)
    assert_same(z[:, 2, 3], net(x[:, 6:10, 9:13]), 1e-6)


def maps(patch: Any) -> keras.Model:
    """Convolutions whose stride is their kernel, so that no patch lacks what is beyond its border: a map of codes."""
    keras.utils.set_random_seed(3)
    x = image = keras.Input((*patch, 2))
    for width in (4, 3):
        x = ops.tanh(CONVS[len(patch)](width, 2, 2)(x))
    return keras.Model(image, x, name="maps")


@pytest.mark.parametrize(
    ("size", "patch"), [((16, 36), (8, 12)), ((24,), (8,)), ((8, 12, 8), (8, 4, 4))]
)
def test_maps_of_codes_lie_side_by_side(size: Any, patch: Any, float64: None) -> None:
    """Z is the map that the network makes of the whole image, and the gradients are those of the network."""
    whole, own = maps([None] * len(size)), maps(patch)
    options = {"sampling": 0.3, "accumulate": None, "encoder_scale": "unbiased"}
    model = PatchGD(own, head(len(size)), patch, **options)
    x = images(*size)
    assert_same(model.latent(x), whole(x), FLOAT64)
    assert_same(model.twin(x), model.head(whole(x)), FLOAT64)
    with tf.GradientTape() as tape:
        loss = entropy()(LABELS, model.head(whole(x)))
    variables = [*whole.trainable_variables, *model.head.trainable_variables]
    exact = tape.gradient(loss, [v._value for v in variables])
    assert_same(given_gradients(model, x, LABELS), exact, FLOAT64)


def test_attention_to_a_map_is_that_to_its_patch() -> None:
    model = PatchGD(maps((8, 12)), Looking(), (8, 12), sampler="attention")
    x = images(16, 36)
    codes = np.asarray(model.head.attention(model.latent(x))).reshape(6, 2, 2, 3, 3)
    assert_same(model.attention(x), tf.constant(codes.sum((2, 4)).reshape(6, 6)), 1e-6)
    model.compile("sgd", entropy())
    assert np.isfinite(model.train_on_batch(x, LABELS))


@pytest.mark.parametrize("on_host", [True, False])
def test_z_is_kept_on_the_host_if_asked(on_host: bool) -> None:
    """Where it is gathered and changed, as placed in the graph; the encoder goes wherever it would."""
    model = PatchGD(encoder(), head(), 4, sampling=3, latent_on_host=on_host)
    model.compile("sgd", entropy())

    @tf.function(autograph=False)
    def step(x: Any, y: Any) -> Any:
        return model.train_step((x, y))

    graph = step.get_concrete_function(tf.zeros([2, 12, 16, 2]), tf.constant([0, 1])).graph
    found = graph.as_graph_def()
    nodes = [*found.node, *(n for function in found.library.function for n in function.node_def)]
    kept = {n.op: n.device for n in nodes if not n.name.startswith("gradient_tape")}
    for operation in ("TensorListReserve", "TensorScatterUpdate"):
        assert ("CPU:0" in kept[operation]) == on_host
    convolutions = [n.device for n in nodes if n.op == "Conv2D"]
    assert convolutions
    assert not any(convolutions)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampling": 0}, "sampling=0: expected a number of patches"),
        ({"sampling": 1.5}, "sampling=1.5: expected a number of patches"),
        ({"sampling": True}, "sampling=True: expected a number of patches"),
        (
            {"sampler": "all"},
            "sampler='all': expected one of 'shuffle', 'replacement', 'attention'",
        ),
        (
            {"encoder_scale": "exact"},
            "scale='exact': expected one of 'published', 'unbiased'",
        ),
        ({"filling_norm": "none"}, "filling_norm='none': expected one of 'published', 'frozen'"),
        ({"inner_steps": 0}, "inner_steps=0: expected a number, 1 or more"),
        ({"accumulate": 0.5}, "accumulate=0.5: expected a number, 1 or more"),
        ({"patches_at_once": -1}, "patches_at_once=-1: expected a number, 1 or more"),
        ({"stride": 5}, "leaves pixels out"),
        ({"patch": (4, 4, 4)}, "patch=.*one for each of 2 axes"),
        ({"sampler": "attention"}, "head 'head' has no method"),
    ],
)
def test_settings_that_are_none(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PatchGD(encoder(), head(), **{"patch": 4} | options)


def test_encoders_that_are_none() -> None:
    net = encoder()
    two = keras.Model(net.input, [net.output, net.output])
    with pytest.raises(ValueError, match="has 1 inputs and 2 outputs"):
        PatchGD(two, head(), 4)
    patch = keras.Input((4, 4, 2))
    active = layers.Dense(3, activity_regularizer="l2", name="active")(layers.Flatten()(patch))
    with pytest.raises(ValueError, match=r"'active' of encoder .* has an activity_regularizer"):
        PatchGD(keras.Model(patch, active), head(), 4)
    with pytest.raises(
        ValueError, match=r"'maps' makes \(None, None, 3\) of a patch, which is known where"
    ):
        PatchGD(maps((None, None)), head(), 4)
    rows = keras.Model(patch, layers.Reshape((4, 8))(patch), name="rows")
    with pytest.raises(
        ValueError, match=r"'rows' makes \(4, 8\) of a patch; expected a code \(d,\)"
    ):
        PatchGD(rows, head(), 4)


# ---------------------------------------------------------------------------------- hierarchical Z


def inner(**options: Any) -> keras.Model:
    """From cells of 8 x 8, by patches of 4 x 4, to codes of 3 numbers."""
    keras.utils.set_random_seed(6)
    cell = keras.Input((8, 8, 2))
    z = LatentGrid(encoder(), 4, **options)(cell)
    return keras.Model(cell, layers.Dense(3)(ops.tanh(layers.Flatten()(z))), name="inner")


@pytest.mark.parametrize(
    "options",
    [{}, {"patches_at_once": 3}, {"sampling": 1.0}, {"sampling": 1.0, "patches_at_once": 3}],
)
def test_a_hierarchy_with_all_patches_is_plain_training(options: Any, float64: None) -> None:
    x, found = images(16, 24), []
    for model in (
        PatchGD(inner(**options), head(), 8, sampling=1.0, patches_at_once=4),
        patch_model(inner(), head(), 8),
    ):
        model.compile("sgd", entropy())
        model.fit(x, LABELS, batch_size=3, shuffle=False, verbose=0)
        found.append([v.numpy() for v in model.trainable_variables])
    assert_same(found[0], found[1], FLOAT64)


@pytest.mark.slow
def test_a_hierarchy_learns_from_a_share_of_inner_patches(tmp_path: Any) -> None:
    y = np.tile(np.arange(3), 8)
    x = images(16, 24, count=24) * 0.3 + y[:, None, None, None].astype("float32") - 1
    net = inner(sampling=0.25, patches_at_once=8, encoder_scale="unbiased")
    model = PatchGD(net, head(), 8, sampling=0.5, patches_at_once=4)
    model.compile(keras.optimizers.Adam(0.02), entropy(), metrics=["accuracy"])
    model.fit(x, y, batch_size=4, epochs=12, verbose=0)
    assert model.evaluate(x, y, verbose=0)[1] == 1.0
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_same(loaded.predict(x, verbose=0), model.predict(x, verbose=0))


def test_an_inner_grid_gives_its_encoder_a_share_of_the_gradient(float64: None) -> None:
    """Of one of four patches; the unbiased one is exact on average over all that can be chosen."""
    x = tf.constant(images(8, 8, count=1))
    found: dict[str, Any] = {}
    for scale in patch_sampling.SCALES:
        net = inner(sampling=0.25, encoder_scale=scale)
        (grid,) = [layer for layer in net.layers if isinstance(layer, LatentGrid)]
        seen: dict[bytes, Any] = {}
        while len(seen) < 4:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(net(x, training=True))
            kernel, *_ = tape.gradient(loss, [v._value for v in grid.encoder.trainable_variables])
            seen[np.round(kernel.numpy(), 12).tobytes()] = kernel
        found[scale] = sum(seen.values())
    plain = inner()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(plain(x, training=True))
    (grid,) = [layer for layer in plain.layers if isinstance(layer, LatentGrid)]
    exact, *_ = tape.gradient(loss, [v._value for v in grid.encoder.trainable_variables])
    assert_same(found["published"], exact, FLOAT64)
    assert_same(found["unbiased"], 4 * exact, FLOAT64)

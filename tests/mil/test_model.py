"""MIL: a step at the memory of a few instances equals the step of the whole bag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same
from keras import layers

import tfbig
from tfbig import SourceError, mil
from tfbig.models.pooling import ABMIL, MeanPooling
from tfbig.models.transmil import TransMIL
from tfbig.sources import ArrayBag

SIDE = 9


def entropy() -> keras.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def encoder(norm: bool = True, rate: float = 0.0) -> keras.Model:
    keras.utils.set_random_seed(3)
    tile = keras.Input((None, None, 3))
    x = layers.Conv2D(4, 3)(layers.Rescaling(1 / 255)(tile))
    x = layers.ReLU()(layers.BatchNormalization(momentum=0.8)(x) if norm else x)
    x = layers.Conv2D(6, 3, strides=2)(layers.Dropout(rate, seed=1)(x))
    x = layers.BatchNormalization()(x) if norm else x
    return keras.Model(tile, layers.GlobalAveragePooling2D()(layers.ReLU()(x)))


def bags(sizes: Any = (7, 12, 4, 7), seed: int = 0) -> list[ArrayBag]:
    rng = np.random.default_rng(seed)
    return [ArrayBag(rng.integers(0, 256, (n, SIDE, SIDE, 3), np.uint8)) for n in sizes]


LABELS = np.array([0, 1, 1, 0])


def both(aggregator: Any, optimizer: Any, build: Any = encoder, **options: Any) -> list[Any]:
    """The streamed model and the plain one, with equal weights."""
    options.setdefault("instances_at_once", 3)
    made = []
    for plain in (False, True):
        keras.utils.set_random_seed(5)
        model = mil.MIL(
            build(),
            aggregator(),
            instance_shape=(SIDE, SIDE, 3),
            **options,
        )
        made.append(model.twin if plain else model)
        made[-1].compile(optimizer(), entropy(), metrics=["accuracy"])
    made[1].set_weights(made[0].get_weights())
    return made


def train(models: Any, epochs: int = 3, **options: Any) -> list[Any]:
    """Histories of both; the plain model takes the bags as tensors."""
    found = []
    for model, dense in zip(models, (False, True), strict=True):
        data = mil.dataset(bags(), LABELS, seed=4, dense=dense, **options)
        if dense:
            data = data.map(lambda x, y: (tf.cast(x, keras.config.floatx()), y))
        found.append(model.fit(data, epochs=epochs, shuffle=False, verbose=0).history)
    return found


AGGREGATORS = {
    "abmil": lambda: ABMIL(2, hidden=8),
    "transmil": lambda: TransMIL(2, width=16),
}


@pytest.mark.parametrize(
    ("name", "norm"),
    [
        *(("abmil", norm) for norm in mil.model.NORMS),
        pytest.param("transmil", "exact", marks=pytest.mark.slow),
    ],
)
def test_it_learns_what_the_whole_bag_learns(name: str, norm: str, float64: None) -> None:
    """Twelve steps of `fit` over bags of three sizes; the dropout of TransMIL is off."""

    def aggregator() -> Any:
        made = AGGREGATORS[name]()
        for block in getattr(made, "blocks", ()):
            block.drop.rate = 0
        return made

    models = both(aggregator, lambda: keras.optimizers.SGD(0.1, momentum=0.9), norm=norm)
    logs = train(models)
    assert_same(logs[0]["loss"], logs[1]["loss"], FLOAT64)
    assert logs[0]["accuracy"] == logs[1]["accuracy"]
    assert_same(models[0].get_weights(), models[1].get_weights(), FLOAT64)


def test_accumulation_over_bags_of_several_sizes(float64: None) -> None:
    """Four bags a step, in Keras' own way."""
    models = both(
        AGGREGATORS["abmil"], lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=4)
    )
    train(models)
    assert int(models[0].optimizer.iterations) == int(models[1].optimizer.iterations)
    assert_same(models[0].get_weights(), models[1].get_weights(), FLOAT64)


def test_float64_by_policy_alone() -> None:
    """As `--precision float64` has it: `floatx` stays float32, to which no weight may be rounded."""
    keras.config.set_dtype_policy("float64")
    model = mil.MIL(encoder(), ABMIL(2), 3, instance_shape=(SIDE, SIDE, 3))
    bag = np.random.default_rng(0).normal(size=(1, 7, SIDE, SIDE, 3))
    found = model(bag, training=False)
    keras.config.set_floatx("float64")  # plain Keras rounds epsilons to it
    expected = model.twin(bag, training=False)
    keras.config.set_floatx("float32")
    assert_same(found, expected, FLOAT64)


def test_batches_of_bags_of_one_size(float64: None) -> None:
    models = both(AGGREGATORS["abmil"], lambda: keras.optimizers.SGD(0.1))
    train(models, batch_size=2, sample=4, shuffle=True)
    assert_same(models[0].get_weights(), models[1].get_weights(), FLOAT64)


def test_frozen_normalisation_is_one_sweep_and_does_not_move() -> None:
    model = mil.MIL(encoder(), ABMIL(2), 3, instance_shape=(SIDE, SIDE, 3), norm="frozen")
    assert len(model.plan((1, 7, SIDE, SIDE, 3)).sweeps) == 1
    assert len(model.twin.trainable_variables) == 4 + 6
    norms = [layer for layer in model.encoder.layers if "batch_norm" in layer.name]
    before = [w.numpy() for layer in norms for w in layer.weights]
    model.compile("sgd", entropy())
    model.fit(mil.dataset(bags(), LABELS), shuffle=False, verbose=0)
    assert_same([w.numpy() for layer in norms for w in layer.weights], before)


def test_a_frozen_encoder_gets_no_gradient_and_runs_forward_alone(float64: None) -> None:
    """Its weights have None for a gradient; the aggregator learns as in the plain model."""

    def frozen() -> keras.Model:
        net = encoder()
        net.trainable = False
        return net

    models = both(AGGREGATORS["abmil"], lambda: keras.optimizers.SGD(0.1), frozen)
    train(models)
    assert_same(models[0].get_weights(), models[1].get_weights(), FLOAT64)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(models[0](tf.constant([bags()[0].handle])))
    found = tape.gradient(loss, [v._value for v in models[0].twin.variables])
    learns = [v.trainable for v in models[0].twin.variables]
    assert [g is not None for g in found] == learns
    assert sum(learns) == 6


def test_dropout_is_replayed(float64: None) -> None:
    """The gradient is that of the loss that was seen: central differences along it, at the same masks."""
    model = mil.MIL(encoder(rate=0.5), ABMIL(2), 3, instance_shape=(SIDE, SIDE, 3))
    drop = next(layer for layer in model.encoder.layers if isinstance(layer, layers.Dropout))
    x, y = tf.constant(bags()[0].read(0, 7)[None], "float64"), LABELS[:1]

    def loss() -> tf.Tensor:
        drop.seed_generator.state.assign([5, 7])
        return entropy()(y, model(x, training=True))

    variables = [v._value for v in model.encoder.trainable_variables]
    with tf.GradientTape() as tape:
        value = loss()
    gradients = tape.gradient(value, variables)
    norm = float(tf.linalg.global_norm(gradients))
    step = 1e-6 / norm
    seen = []
    for sign in (1, -2):
        for v, g in zip(variables, gradients, strict=True):
            v.assign_add(sign * step * g)
        seen.append(float(loss()))
    assert (seen[0] - seen[1]) / (2 * step) == pytest.approx(norm**2, rel=1e-6)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy: str) -> None:
    keras.config.set_dtype_policy(policy)
    model = mil.MIL(encoder(), ABMIL(2), 3, instance_shape=(SIDE, SIDE, 3))
    model.compile(keras.optimizers.SGD(0.05), entropy())
    logs = model.fit(mil.dataset(bags(), LABELS), epochs=8, shuffle=False, verbose=0).history
    assert np.isfinite(logs["loss"]).all()
    assert logs["loss"][-1] < logs["loss"][0]
    assert all(v.dtype == "float32" for v in model.trainable_variables)


def test_validation_callbacks_evaluate_predict(tmp_path: Path) -> None:
    model = mil.MIL(encoder(), ABMIL(2), 3, instance_shape=(SIDE, SIDE, 3))
    model.compile("adam", entropy(), metrics=["accuracy"])
    data = mil.dataset(bags(), LABELS)
    best = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", "val_loss", save_best_only=True)
    logs = model.fit(
        data, validation_data=data, epochs=2, shuffle=False, verbose=0, callbacks=[best]
    ).history
    assert set(logs) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    found = model.predict(data, verbose=0)
    whole = [model.twin(b.read(0, b.shape[0])[None].astype("float32")) for b in bags()]
    np.testing.assert_allclose(found, np.concatenate(whole), atol=1e-5)
    model.save_weights(tmp_path / "m.weights.h5")
    model.twin.load_weights(tmp_path / "m.weights.h5")  # files of both are alike
    again = keras.saving.load_model(tmp_path / "best.keras")
    assert isinstance(again, mil.MIL)
    evaluated = again.evaluate(data, verbose=0, return_dict=True)
    assert evaluated["loss"] == pytest.approx(min(logs["val_loss"]), rel=1e-5)


@pytest.mark.parametrize("name", AGGREGATORS)
def test_it_says_what_it_looked_at(name: str) -> None:
    model = mil.MIL(encoder(), AGGREGATORS[name](), 3, instance_shape=(SIDE, SIDE, 3))
    bag = bags()[1]
    found = model.explain(bag)
    features = model.twin.get_layer("instances")(bag.read(0, 12)[None].astype("float32"))
    assert found["logits"].shape == (2,)
    for part in ("attention", "scores"):
        expected = getattr(model.aggregator, part)(features)[0]
        np.testing.assert_allclose(found[part], expected, atol=1e-5)
    assert found["attention"].sum() == pytest.approx(1, abs=1e-5)
    assert found["scores"].shape == (12, 2)


def test_an_aggregator_of_ones_own() -> None:
    """Any Keras layer; without the methods that `explain` asks for, that is said."""
    pool = layers.GlobalAveragePooling1D(name="mean")
    model = mil.MIL(encoder(), pool, 3, instance_shape=(SIDE, SIDE, 3))
    assert model.predict(mil.dataset(bags(), LABELS), verbose=0).shape == (4, 6)
    with pytest.raises(ValueError, match=r"'mean' .* has no method `attention"):
        model.explain(bags()[0])


class Two(MeanPooling):
    """Logits of the bag twice, under two names."""

    def call(self, bag: Any) -> Any:
        logits = super().call(bag)
        return {"bag": logits, "again": 2 * logits}

    def compute_output_shape(self, shape: Any) -> Any:
        return {"bag": (shape[0], 2), "again": (shape[0], 2)}


def test_one_label_is_that_of_every_output(float64: None) -> None:
    model = mil.MIL(encoder(), Two(2), 3, instance_shape=(SIDE, SIDE, 3))
    model.compile(keras.optimizers.SGD(0.0), {"bag": entropy(), "again": entropy()})
    logs = model.fit(mil.dataset(bags(), LABELS), shuffle=False, verbose=0).history

    def loss(training: bool) -> float:
        whole = [tf.constant(b.read(0, b.shape[0])[None], "float64") for b in bags()]
        logits = keras.ops.concatenate([model.twin(x, training=training)["bag"] for x in whole])
        return float(entropy()(LABELS, logits) + entropy()(LABELS, 2 * logits))

    judged = model.evaluate(mil.dataset(bags(), LABELS), verbose=0, return_dict=True)
    assert judged["loss"] == pytest.approx(loss(training=False), rel=1e-6)
    assert logs["loss"][0] == pytest.approx(loss(training=True), rel=1e-6)


# --------------------------------------------------------------------------- as published


@pytest.mark.parametrize("norm", ["none", "frozen"])
def test_the_published_loop_gives_the_gradient_of_the_whole_bag(norm: str, float64: None) -> None:
    """Without BatchNormalization that learns, and without dropout."""
    options = {"mode": "published", "instances_at_once": 3, "instance_shape": (SIDE, SIDE, 3)}
    models = []
    for plain in (False, True):
        keras.utils.set_random_seed(5)
        model = mil.MIL(encoder(norm != "none"), ABMIL(2), norm="frozen", **options)
        models.append(model.twin if plain else model)
        models[-1].compile(keras.optimizers.SGD(0.1, momentum=0.9), entropy(), metrics=["accuracy"])
    logs = train(models)
    assert_same(logs[0]["loss"], logs[1]["loss"], FLOAT64)
    assert logs[0]["accuracy"] == logs[1]["accuracy"]
    assert_same(models[0].get_weights(), models[1].get_weights(), FLOAT64)


def test_the_published_loop_with_normalisation_by_slices(float64: None) -> None:
    """Against its three passes written out, moving statistics included."""
    model = mil.MIL(
        encoder(), ABMIL(2), 3, instance_shape=(SIDE, SIDE, 3), norm="per_slice", mode="published"
    )
    model.compile(keras.optimizers.SGD(1.0), entropy())
    x, y = tf.constant(bags()[0].read(0, 7)[None], "float64"), LABELS[:1]
    net, pool = model.encoder, model.aggregator
    before, start = model.get_weights(), [v.numpy() for v in net.non_trainable_variables]
    parts = [x[0, i : i + 3] for i in (0, 3, 6)]
    z = tf.concat([net(part, training=True) for part in parts], 0)
    for v, value in zip(net.non_trainable_variables, start, strict=True):
        v.assign(value)
    with tf.GradientTape() as tape:
        loss = entropy()(y, pool(z[None]))
    found = tape.gradient(loss, [v._value for v in pool.trainable_variables])
    sums = [tf.zeros_like(v._value) for v in net.trainable_variables]
    for i, part in zip((0, 3, 6), parts, strict=True):
        with tf.GradientTape() as tape:
            bag = tf.concat([net(part, training=True), z[:i], z[i + 3 :]], 0)
            value = entropy()(y, pool(bag[None]))
        new = tape.gradient(value, [v._value for v in net.trainable_variables])
        sums = [a + b for a, b in zip(sums, new, strict=True)]
    moved = [v.numpy() for v in net.non_trainable_variables]
    model.set_weights(before)
    for v, value in zip(net.non_trainable_variables, start, strict=True):
        v.assign(value)
    expected = [
        v.numpy() - g.numpy()
        for layer, gradients in ((net, sums), (pool, found))
        for v, g in zip(layer.trainable_variables, gradients, strict=True)
    ]
    logs = model.train_on_batch(x, y, return_dict=True)
    assert logs["loss"] == pytest.approx(float(loss))
    after = [v.numpy() for v in (*net.trainable_variables, *pool.trainable_variables)]
    assert_same(after, expected, FLOAT64)
    assert_same([v.numpy() for v in net.non_trainable_variables], moved, FLOAT64)


# ------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "global"}, "norm='global': expected one of 'exact', 'frozen', 'per_slice'"),
        ({"mode": "fast"}, "mode='fast'"),
        ({"mode": "published"}, "mode='published' has no exact BatchNormalization"),
        ({"mode": "published", "norm": "frozen"}, "need instances_at_once"),
        ({"norm": "per_slice"}, "need instances_at_once"),
        ({"instance_shape": None}, r"instances of shape \(None, None, 3\)"),
        (
            {
                "mode": "published",
                "norm": "frozen",
                "instances_at_once": 3,
                "pool": TransMIL(2, 16),
            },
            "'trans_mil.*' .TransMIL. depends on the order of the instances",
        ),
    ],
)
def test_arguments_that_do_not_go(options: dict[str, Any], message: str) -> None:
    options = {"instance_shape": (SIDE, SIDE, 3), "pool": None} | options
    with pytest.raises(ValueError, match=message):
        mil.MIL(encoder(), options.pop("pool") or ABMIL(2), **options)


def test_a_bag_of_one_instance_and_of_less_than_a_slice() -> None:
    model = mil.MIL(encoder(), ABMIL(2), 3, instance_shape=(SIDE, SIDE, 3))
    model.compile("sgd", entropy())
    logs = model.fit(mil.dataset(bags((1, 2)), LABELS[:2]), shuffle=False, verbose=0).history
    assert np.isfinite(logs["loss"]).all()


def test_bags_that_cannot_be_used_are_named_and_the_others_go_on(tmp_path: Path) -> None:
    np.save(tmp_path / "good.npy", bags()[0].read(0, 7))
    np.save(tmp_path / "empty.npy", np.ones((0, SIDE, SIDE, 3), np.uint8))
    np.save(tmp_path / "wide.npy", np.ones((3, SIDE, SIDE + 1, 3), np.uint8))
    paths = [str(tmp_path / f"{n}.npy") for n in ("good", "empty", "none", "good", "wide")]
    found = mil.read_bags(paths, [1, 0, 0, 2, 0], classes=2)
    assert [bag.name for bag in found.bags] == paths[:1]
    assert found.labels.tolist() == [1]
    reasons = dict(found.failed)
    assert "empty bag" in reasons[paths[1]]
    assert "no such file" in reasons[paths[2]]
    assert "instances are (9, 10, 3) uint8, those of" in reasons[paths[4]]
    assert "label 2 is none of the 2 classes, 0 to 1" in reasons[paths[3]]
    with pytest.raises(SourceError, match=r"none of 2 bags can be used\. The first: .*empty"):
        mil.read_bags(paths[1:3], [0, 0], classes=2)
    with pytest.raises(ValueError, match="3 labels for 1 bags"):
        mil.read_bags(paths[:1], [0, 1, 1], classes=2)


def test_tiles_of_background_are_left_out() -> None:
    """Shares of grey between 3 and 230, both excluded: 1, 0.5, 0 (white), 0 (black), 0.75."""
    tiles = np.full((5, 2, 2, 3), 100, np.uint8)
    tiles[1, 0], tiles[2], tiles[3], tiles[4, 0, 0] = 231, 230, 3, 255
    bag = ArrayBag(tiles, coords=np.arange(10).reshape(5, 2))
    for share, kept in ((0.6, [0, 4]), (0.5, [0, 1, 4]), (1.0, [0]), (0.0, [0, 1, 2, 3, 4])):
        found = mil.foreground(bag, share)
        np.testing.assert_array_equal(found.read(0, found.shape[0]), tiles[kept])
        np.testing.assert_array_equal(found.coords[:, 0], 2 * np.array(kept))
    with pytest.raises(SourceError, match=r"none of 1 tiles has a share of 0\.6"):
        mil.foreground(ArrayBag(tiles[2:3]), 0.6)
    with pytest.raises(SourceError, match="expected tiles"):
        mil.foreground(ArrayBag(np.ones((3, 7))), 0.6)


@pytest.mark.parametrize("sample", [0, -1, 1.5, float("nan")])
def test_a_sample_is_a_number_or_a_share(sample: float) -> None:
    with pytest.raises(ValueError, match=f"sample={sample}: expected a number of instances"):
        mil.dataset(bags(), LABELS, sample=sample)


def test_samples_and_orders_are_new_in_every_epoch_and_the_same_again() -> None:
    def epochs() -> list[Any]:
        data = mil.dataset(made, LABELS, sample=0.5, shuffle=True, seed=1)
        return [[(str(x.numpy()[0]), int(y[0])) for x, y in data] for _ in range(3)]

    made = bags()
    first, again = epochs(), epochs()
    assert first == again
    assert len({tuple(epoch) for epoch in first}) == 3
    label = dict(zip((bag.handle.encode() for bag in made), LABELS, strict=True))
    for epoch in first:
        assert sorted(y for _, y in epoch) == sorted(LABELS)
        for handle, y in epoch:
            name, _, query = handle[2:-1].partition("?")
            assert label[name.encode()] == y
            size = tfbig.sources.resolve(name).shape[0]
            assert f"count={round(size / 2)}&" in query

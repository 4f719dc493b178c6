"""MIL: a step at the memory of a few instances equals the step on the whole bag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same
from keras import layers
from mil_models import LABELS, SIDE, bags, both, encoder, entropy, small_encoder, train

import tfbig
from tfbig import mil
from tfbig.models.pooling import ABMIL, MeanPooling
from tfbig.models.transmil import TransMIL

AGGREGATORS = {
    "abmil": lambda: ABMIL(2, hidden=8),
    "transmil": lambda: TransMIL(2, width=16),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "norm"),
    [
        ("abmil", "exact"),
        *(
            pytest.param(name, norm, marks=pytest.mark.slow)
            for name, norm in [
                *(("abmil", norm) for norm in mil.model.NORMS if norm != "exact"),
                ("transmil", "exact"),
            ]
        ),
    ],
)
def test_training_equals_the_whole_bag(name: str, norm: str, float64: None) -> None:
    """After twelve steps of `fit` over bags of three sizes; the dropout of TransMIL is off."""

    def aggregator() -> Any:
        layer = AGGREGATORS[name]()
        for block in getattr(layer, "blocks", ()):
            block.drop.rate = 0
        return layer

    models = both(aggregator, lambda: keras.optimizers.SGD(0.1, momentum=0.9), norm=norm)
    logs = train(models)
    assert_same(logs[0]["loss"], logs[1]["loss"], FLOAT64)
    assert logs[0]["accuracy"] == logs[1]["accuracy"]
    assert_same(models[0].get_weights(), models[1].get_weights(), FLOAT64)


@pytest.mark.slow
def test_gradient_accumulation(float64: None) -> None:
    """Four bags of several sizes per step, with `gradient_accumulation_steps` of Keras."""
    models = both(
        AGGREGATORS["abmil"],
        lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=4),
        small_encoder,
    )
    train(models)
    assert int(models[0].optimizer.iterations) == int(models[1].optimizer.iterations)
    assert_same(models[0].get_weights(), models[1].get_weights(), FLOAT64)


def test_float64_by_policy_alone() -> None:
    """A float64 policy, as `--precision float64` sets it, with `floatx` float32 rounds no weight."""
    keras.config.set_dtype_policy("float64")
    model = mil.MIL(encoder(), ABMIL(2), 3, instance_shape=(SIDE, SIDE, 3))
    bag = np.random.default_rng(0).normal(size=(1, 7, SIDE, SIDE, 3))
    outputs = model(bag, training=False)
    keras.config.set_floatx("float64")  # plain Keras rounds epsilons to floatx
    expected = model.twin(bag, training=False)
    keras.config.set_floatx("float32")
    assert_same(outputs, expected, FLOAT64)


@pytest.mark.slow
def test_batches_of_equal_bags(float64: None) -> None:
    models = both(AGGREGATORS["abmil"], lambda: keras.optimizers.SGD(0.1), small_encoder)
    train(models, batch_size=2, sample=4, shuffle=True)
    assert_same(models[0].get_weights(), models[1].get_weights(), FLOAT64)


def test_frozen_normalisation() -> None:
    """Frozen BatchNormalization needs one sweep, and its weights do not change."""
    model = mil.MIL(encoder(), ABMIL(2), 3, instance_shape=(SIDE, SIDE, 3), norm="frozen")
    assert len(model.plan((1, 7, SIDE, SIDE, 3)).sweeps) == 1
    assert len(model.twin.trainable_variables) == 4 + 6
    norms = [layer for layer in model.encoder.layers if "batch_norm" in layer.name]
    before = [w.numpy() for layer in norms for w in layer.weights]
    model.compile("sgd", entropy())
    model.fit(mil.dataset(bags(), LABELS), shuffle=False, verbose=0)
    assert_same([w.numpy() for layer in norms for w in layer.weights], before)


@pytest.mark.slow
def test_frozen_encoder(float64: None) -> None:
    """A frozen encoder has no gradient; the aggregator is trained as in the plain model."""

    def frozen() -> keras.Model:
        net = small_encoder()
        net.trainable = False
        return net

    models = both(AGGREGATORS["abmil"], lambda: keras.optimizers.SGD(0.1), frozen)
    train(models)
    assert_same(models[0].get_weights(), models[1].get_weights(), FLOAT64)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(models[0](tf.constant([bags()[0].handle])))
    gradients = tape.gradient(loss, [v._value for v in models[0].twin.variables])
    trainable = [v.trainable for v in models[0].twin.variables]
    assert [g is not None for g in gradients] == trainable
    assert sum(trainable) == 6


@pytest.mark.slow
def test_dropout_is_replayed(float64: None) -> None:
    """The gradient uses the masks of the forward pass: compared with central differences at the same masks."""
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
    losses = []
    for sign in (1, -2):
        for v, g in zip(variables, gradients, strict=True):
            v.assign_add(sign * step * g)
        losses.append(float(loss()))
    assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(norm**2, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy: str) -> None:
    keras.config.set_dtype_policy(policy)
    model = mil.MIL(small_encoder(), ABMIL(2), 3, instance_shape=(SIDE, SIDE, 3))
    model.compile(keras.optimizers.SGD(0.05), entropy())
    logs = model.fit(mil.dataset(bags(), LABELS), epochs=8, shuffle=False, verbose=0).history
    assert logs["loss"][-1] < logs["loss"][0]
    assert all(v.dtype == "float32" for v in model.trainable_variables)


def test_fit_evaluate_predict_save(tmp_path: Path) -> None:
    model = mil.MIL(small_encoder(), ABMIL(2), 3, instance_shape=(SIDE, SIDE, 3))
    model.compile("adam", entropy(), metrics=["accuracy"])
    data = mil.dataset(bags(), LABELS)
    best = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", "val_loss", save_best_only=True)
    logs = model.fit(
        data, validation_data=data, epochs=2, shuffle=False, verbose=0, callbacks=[best]
    ).history
    assert set(logs) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    logits = model.predict(data, verbose=0)
    whole = [model.twin(b.read(0, b.shape[0])[None].astype("float32")) for b in bags()]
    np.testing.assert_allclose(logits, np.concatenate(whole), atol=1e-5)
    model.save_weights(tmp_path / "m.weights.h5")
    model.twin.load_weights(tmp_path / "m.weights.h5")  # both use the same file format
    loaded = keras.saving.load_model(tmp_path / "best.keras")
    assert isinstance(loaded, mil.MIL)
    evaluated = loaded.evaluate(data, verbose=0, return_dict=True)
    assert evaluated["loss"] == pytest.approx(min(logs["val_loss"]), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", AGGREGATORS)
def test_explain(name: str) -> None:
    model = mil.MIL(small_encoder(), AGGREGATORS[name](), 3, instance_shape=(SIDE, SIDE, 3))
    bag = bags()[1]
    result = model.explain(bag)
    features = model.twin.get_layer("instances")(bag.read(0, 12)[None].astype("float32"))
    assert result["logits"].shape == (2,)
    for part in ("attention", "scores"):
        expected = getattr(model.aggregator, part)(features)[0]
        np.testing.assert_allclose(result[part], expected, atol=1e-5)
    assert result["attention"].sum() == pytest.approx(1, abs=1e-5)
    assert result["scores"].shape == (12, 2)


def test_custom_aggregator() -> None:
    """Any Keras layer works; `explain` names the method that it lacks."""
    pool = layers.GlobalAveragePooling1D(name="mean")
    model = mil.MIL(small_encoder(), pool, 3, instance_shape=(SIDE, SIDE, 3))
    assert model.predict(mil.dataset(bags(), LABELS), verbose=0).shape == (4, 6)
    with pytest.raises(ValueError, match=r"'mean' .* has no method `attention"):
        model.explain(bags()[0])


class TwoOutputs(MeanPooling):
    """Aggregator with two outputs, the logits and twice the logits."""

    def call(self, bag: Any) -> Any:
        logits = super().call(bag)
        return {"bag": logits, "double": 2 * logits}

    def compute_output_shape(self, shape: Any) -> Any:
        return {"bag": (shape[0], 2), "double": (shape[0], 2)}


@pytest.mark.slow
def test_one_label_for_every_output(float64: None) -> None:
    model = mil.MIL(small_encoder(), TwoOutputs(2), 3, instance_shape=(SIDE, SIDE, 3))
    model.compile(keras.optimizers.SGD(0.0), {"bag": entropy(), "double": entropy()})
    logs = model.fit(mil.dataset(bags(), LABELS), shuffle=False, verbose=0).history

    def loss(training: bool) -> float:
        whole = [tf.constant(b.read(0, b.shape[0])[None], "float64") for b in bags()]
        logits = keras.ops.concatenate([model.twin(x, training=training)["bag"] for x in whole])
        return float(entropy()(LABELS, logits) + entropy()(LABELS, 2 * logits))

    evaluated = model.evaluate(mil.dataset(bags(), LABELS), verbose=0, return_dict=True)
    assert evaluated["loss"] == pytest.approx(loss(training=False), rel=1e-6)
    assert logs["loss"][0] == pytest.approx(loss(training=True), rel=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "global"}, "norm='global': expected one of 'exact', 'frozen', 'per_slice'"),
        ({"mode": "fast"}, "mode='fast'"),
        ({"mode": "published"}, "mode='published' has no exact BatchNormalization"),
        (
            {"mode": "published", "norm": "frozen"},
            "need the size of a slice; pass instances_at_once",
        ),
        ({"norm": "per_slice"}, "need the size of a slice; pass instances_at_once"),
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
def test_invalid_arguments(options: dict[str, Any], message: str) -> None:
    options = {"instance_shape": (SIDE, SIDE, 3), "pool": None} | options
    with pytest.raises(ValueError, match=message):
        mil.MIL(encoder(), options.pop("pool") or ABMIL(2), **options)


@pytest.mark.slow
def test_small_bags() -> None:
    """A bag of one instance, and one smaller than a slice, train as in the plain model."""
    models = both(AGGREGATORS["abmil"], lambda: keras.optimizers.SGD(0.01), small_encoder)
    for bag, label in zip(bags((1, 2)), LABELS[:2], strict=True):
        x = bag.read(0, bag.shape[0])[None].astype("float32")
        inputs = (tf.constant([bag.handle]), x)
        pairs = zip(models, inputs, strict=True)
        streamed, plain = (model.train_on_batch(each, label[None])[0] for model, each in pairs)
        assert streamed == pytest.approx(plain, rel=1e-4)


def test_subclassed_encoder_is_refused() -> None:
    class Encoder(keras.Model):
        def call(self, x: Any) -> Any:
            return x

    with pytest.raises(
        tfbig.UnsupportedLayerError,
        match=r"\(Encoder\) is a subclassed model; expected a functional",
    ):
        mil.MIL(Encoder(), ABMIL(2))

"""Optimisers compared with their equations in NumPy, with all features of the Keras base class."""

from __future__ import annotations

import json
from math import sqrt

import keras
import numpy as np
import pytest
import tensorflow as tf
from optimizer_loops import (
    MAKERS,
    applied,
    assert_close,
    batch,
    every_optimizer,
    looped,
    some_gradients,
)

from tfbig.optimizers import CoupledAdam, DemonAdamW, LookaheadRAdam, RAdam


@every_optimizer
def test_matches_equations(name, float64):
    gradients = some_gradients()
    assert_close(applied(MAKERS[name](), gradients), looped(name, gradients))


@pytest.mark.slow
@every_optimizer
@pytest.mark.parametrize("jit_compile", [False, True])
def test_matches_equations_in_graph(name, jit_compile, float64):
    gradients = some_gradients()
    actual = applied(MAKERS[name](), gradients, lambda f: tf.function(f, jit_compile=jit_compile))
    assert_close(actual, looped(name, gradients))


@pytest.mark.slow
@every_optimizer
@pytest.mark.parametrize("clip", ["global_clipnorm", "clipnorm", "clipvalue"])
def test_clipping_excludes_l2(name, clip, float64):
    """The term `l2 * w` is not clipped, and does not count towards the norm."""
    limit = 0.5
    norm = {
        "global_clipnorm": lambda pair: [sqrt(sum((g**2).sum() for g in pair))] * 2,
        "clipnorm": lambda pair: [sqrt((g**2).sum()) for g in pair],
    }
    gradients = some_gradients()
    if clip == "clipvalue":
        clipped = [[np.clip(g, -limit, limit) for g in pair] for pair in gradients]
    else:
        clipped = [
            [g * min(1, limit / n) for g, n in zip(pair, norm[clip](pair), strict=True)]
            for pair in gradients
        ]
    assert_close(applied(MAKERS[name](**{clip: limit}), gradients), looped(name, clipped))


@pytest.mark.slow
@every_optimizer
@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_gradient_accumulation(name, wrap, float64):
    """`steps`, `k` and bias corrections count updates, not batches."""
    gradients = some_gradients(44)
    thirds = [gradients[i : i + 3] for i in range(0, 42, 3)]
    means = [[sum(g) / 3 for g in zip(*third, strict=True)] for third in thirds]
    actual = applied(MAKERS[name](gradient_accumulation_steps=3), gradients, wrap)
    assert_close(actual, looped(name, means))


@pytest.mark.parametrize(
    "name", [n if n == "lookahead" else pytest.param(n, marks=pytest.mark.slow) for n in MAKERS]
)
def test_learning_rate_schedule(name, float64):
    """The schedule is 0 from the eleventh update on, between two steps of the slow weights."""
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([9], [2**-7, 0.0])
    optimizer = MAKERS[name]()
    optimizer.learning_rate = schedule
    gradients = some_gradients(11)
    expected = looped(name, gradients[:10], lr=2**-7)
    assert_close(applied(optimizer, gradients), expected)


@every_optimizer
def test_exclude_from_weight_decay(name, float64):
    optimizer = MAKERS[name]()
    optimizer.exclude_from_weight_decay(var_names=["variable"])
    gradients = some_gradients(5)
    none = {"decay": 0.0} if name in ("demon", "lookahead") else {"l2": 0.0}
    assert_close(applied(optimizer, gradients), looped(name, gradients, **none))


@every_optimizer
def test_sparse_gradients(name):
    """A sparse gradient, as of an embedding, has the effect of the equal dense tensor."""
    rows = tf.IndexedSlices(tf.constant([[1.0, 2.0], [3.0, 4.0]]), [2, 0], [3, 2])
    weights = []
    for gradient in (rows, tf.convert_to_tensor(rows)):
        optimizer, variable = MAKERS[name](), keras.Variable(np.ones((3, 2), "float32"))
        for _ in range(4):
            optimizer.apply([gradient], [variable])
        weights.append(variable.numpy())
    np.testing.assert_allclose(*weights, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "policy", "accumulation"),
    [
        ("coupled", "mixed_float16", 2),
        ("lookahead", "float32", None),
        *(
            pytest.param(name, policy, accumulation, marks=pytest.mark.slow)
            for name, policy, accumulation in (
                ("coupled", "float32", None),
                ("demon", "float32", None),
                ("demon", "mixed_float16", 2),
                ("radam", "float32", None),
                ("radam", "mixed_float16", 2),
                ("lookahead", "mixed_float16", 2),
            )
        ),
    ],
)
def test_save_and_continue_training(name, policy, accumulation, tmp_path):
    keras.config.set_dtype_policy(policy)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    optimizer = MAKERS[name](gradient_accumulation_steps=accumulation)
    model.compile(optimizer, "mse")
    is_scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert is_scaled == (policy == "mixed_float16")
    for seed in range(5):  # not a multiple of k, nor of the accumulation
        model.fit(*batch(seed), batch_size=8, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    before = model.get_weights()
    for seed in range(5, 9):
        for each in (model, again):
            each.fit(*batch(seed), batch_size=8, verbose=0)
        for a, b in zip(model.get_weights(), again.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)
    assert any((a != b).any() for a, b in zip(before, model.get_weights(), strict=True))
    assert int(optimizer.iterations) == int(again.optimizer.iterations)
    # The first loss scale is too large for float16, which skips one batch.
    assert int(optimizer.iterations) == (9 - is_scaled) // (accumulation or 1)


@every_optimizer
def test_non_finite_gradient_is_skipped(name):
    optimizer = keras.optimizers.LossScaleOptimizer(MAKERS[name](), initial_scale=1.0)
    variable = keras.Variable(np.ones(2, "float32"))
    optimizer.apply([tf.constant([np.inf, 0.0])], [variable])
    np.testing.assert_array_equal(variable, [1, 1])
    assert int(optimizer.iterations) == 0
    optimizer.apply([tf.ones(2)], [variable])
    assert (variable.numpy() < 1).all()
    assert (variable.numpy() > 0.9).all()  # the slow weights were initialised


@every_optimizer
def test_config_round_trip(name):
    optimizer = MAKERS[name](beta_1=0.8, beta_2=0.99, epsilon=1e-5, clipnorm=2.0, name="custom")
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(optimizer)))
    assert config["registered_name"] == f"tfbig>{type(optimizer).__name__}"
    again = keras.saving.deserialize_keras_object(config)
    assert type(again) is type(optimizer)
    assert again.get_config() == optimizer.get_config()
    arguments = {"coupled": "l2", "demon": "steps", "demon_l2": "l2", "radam": "l2"}
    argument = arguments.get(name, "k")
    assert {argument, "beta_1", "beta_2", "epsilon"} <= again.get_config().keys()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CoupledAdam(weight_decay=0.1), r"weight_decay is 0\.1, .* Use l2"),
        (lambda: DemonAdamW(0.1, steps=0), "DemonAdamW: steps is 0, expected an integer of 1"),
        (lambda: DemonAdamW(0.1, steps=1.5), r"steps is 1\.5"),
        (lambda: LookaheadRAdam(k=0), "LookaheadRAdam: k is 0"),
        (lambda: LookaheadRAdam(alpha=0), "alpha is 0, expected a number above 0 and at most 1"),
        (lambda: LookaheadRAdam(alpha=1.5), r"alpha is 1\.5"),
        (lambda: RAdam(amsgrad=True), "not recognized.*amsgrad"),
    ],
)
def test_invalid_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()

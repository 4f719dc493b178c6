"""Optimisers against loops of their equations in NumPy, under all that Keras puts around an optimiser."""

from __future__ import annotations

import json
from math import prod, sqrt

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfbig.optimizers import CoupledAdam, DemonAdamW, LookaheadRAdam, RAdam

ROUNDING = 1e-12
"""Relative to the largest weight: 30 updates of some ten float64 operations each, of order 1."""

# Decays and rates of schedules are powers of 2: Keras makes them float32 on their way.
MAKERS = {
    "coupled": lambda **options: CoupledAdam(0.01, **{"l2": 0.1, **options}),
    "demon": lambda **options: DemonAdamW(0.01, **{"steps": 20, "weight_decay": 0.125, **options}),
    "radam": lambda **options: RAdam(0.01, **{"l2": 0.1, **options}),
    "lookahead": lambda **options: LookaheadRAdam(
        0.01, **{"weight_decay": 0.125, "k": 4, **options}
    ),
}
every_optimizer = pytest.mark.parametrize("name", MAKERS)


def starts():
    rng = np.random.default_rng(7)
    return [rng.normal(size=(3, 2)), rng.normal(size=4)]


def some_gradients(steps=30):
    """Of two variables, sparse and with one entry that is always 0."""
    rng = np.random.default_rng(8)
    gradients = [
        [rng.normal(size=(3, 2)) * rng.integers(0, 2, (3, 2)), rng.normal(size=4)]
        for _ in range(steps)
    ]
    for pair in gradients:
        pair[1][0] = 0
    return gradients


def coupled(w, gradients, lr=0.01, l2=0.1, b1=0.9, b2=0.999, eps=1e-8):
    """`CoupledAdam`, one variable."""
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(gradients, 1):
        g = g + l2 * w
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        w = w - lr * m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps)
    return w


def demon(w, gradients, lr=0.01, steps=20, decay=0.125, b1=0.9, b2=0.999, eps=1e-8):
    """`DemonAdamW`, one variable."""
    m, v, used = np.zeros_like(w), np.zeros_like(w), []
    for t, g in enumerate(gradients, 1):
        left = max(1 - t / steps, 0)
        used.append(b1 * left / ((1 - b1) + b1 * left))
        w = w - lr * decay * w
        m = used[-1] * m + (1 - used[-1]) * g
        v = b2 * v + (1 - b2) * g**2
        w = w - lr * m / (1 - prod(used)) / (np.sqrt(v / (1 - b2**t)) + eps)
    return w


def radam_steps(w, gradients, lr=0.01, l2=0.1, decay=0.0, b1=0.9, b2=0.999, eps=1e-8):
    """`RAdam`, one variable: receives the weights to go on from, gives those after an update."""
    m, v, longest = np.zeros_like(w), np.zeros_like(w), 2 / (1 - b2) - 1
    for t, g in enumerate(gradients, 1):
        w = w - lr * decay * w
        g = g + l2 * w
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        m_hat, length = m / (1 - b1**t), longest - 2 * t * b2**t / (1 - b2**t)
        if length > 5:
            r = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
            m_hat = sqrt(r) * m_hat * sqrt(1 - b2**t) / (np.sqrt(v) + eps)
        w = yield w - lr * m_hat


def radam(w, gradients, **options):
    steps = radam_steps(w, gradients, **options)
    w = next(steps)
    for _ in gradients[1:]:
        w = steps.send(w)
    return w


def lookahead(w, gradients, alpha=0.5, k=4, decay=0.125, **options):
    """`LookaheadRAdam`, one variable."""
    slow, steps = w, radam_steps(w, gradients, l2=0.0, decay=decay, **options)
    w = next(steps)
    for t in range(1, len(gradients) + 1):
        if t % k == 0:
            slow = w = slow + alpha * (w - slow)
        if t < len(gradients):
            w = steps.send(w)
    return w


LOOPS = {"coupled": coupled, "demon": demon, "radam": radam, "lookahead": lookahead}


def looped(name, gradients, **options):
    return [
        LOOPS[name](w, list(g), **options)
        for w, g in zip(starts(), zip(*gradients, strict=True), strict=True)
    ]


def applied(optimizer, gradients, wrap=lambda f: f):
    """The variables after the optimiser was applied to each of the gradients."""
    variables = [keras.Variable(w, dtype="float64") for w in starts()]
    optimizer.build(variables)
    apply = wrap(lambda *grads: optimizer.apply(grads))
    for grads in gradients:
        apply(*[tf.constant(g) for g in grads])
    return [v.numpy() for v in variables]


def assert_close(actual, expected):
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=0, atol=ROUNDING * abs(e).max())


@every_optimizer
def test_equals_its_equations(name, float64):
    gradients = some_gradients()
    assert_close(applied(MAKERS[name](), gradients), looped(name, gradients))


@every_optimizer
@pytest.mark.parametrize("jit_compile", [False, True])
def test_equals_its_equations_in_a_graph(name, jit_compile, float64):
    gradients = some_gradients()
    actual = applied(MAKERS[name](), gradients, lambda f: tf.function(f, jit_compile=jit_compile))
    assert_close(actual, looped(name, gradients))


@every_optimizer
@pytest.mark.parametrize("clip", ["global_clipnorm", "clipnorm", "clipvalue"])
def test_clips_the_gradient_of_the_loss_alone(name, clip, float64):
    """What is added for `l2` is not bounded, and does not shrink the rest."""
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


@every_optimizer
@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_accumulates_gradients(name, wrap, float64):
    """Updates are counted, not batches: of `steps`, of `k` and of the corrections."""
    gradients = some_gradients(44)
    thirds = [gradients[i : i + 3] for i in range(0, 42, 3)]
    means = [[sum(g) / 3 for g in zip(*third, strict=True)] for third in thirds]
    actual = applied(MAKERS[name](gradient_accumulation_steps=3), gradients, wrap)
    assert_close(actual, looped(name, means))


@every_optimizer
def test_follows_a_schedule(name, float64):
    """Here one that is 0 from the eleventh update on, between two steps of the slow weights."""
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([9], [2**-7, 0.0])
    optimizer = MAKERS[name]()
    optimizer.learning_rate = schedule
    gradients = some_gradients(11)
    expected = looped(name, gradients[:10], lr=2**-7)
    assert_close(applied(optimizer, gradients), expected)


@every_optimizer
def test_weights_that_are_excluded_do_not_decay(name, float64):
    optimizer = MAKERS[name]()
    optimizer.exclude_from_weight_decay(var_names=["variable"])
    gradients = some_gradients(5)
    none = {"l2": 0.0} if name in ("coupled", "radam") else {"decay": 0.0}
    assert_close(applied(optimizer, gradients), looped(name, gradients, **none))


def test_radam_takes_a_decoupled_decay(float64):
    gradients = some_gradients()
    expected = looped("radam", gradients, decay=0.25)
    assert_close(applied(RAdam(0.01, l2=0.1, weight_decay=0.25), gradients), expected)


EXACT = {"beta_1": 0.875, "beta_2": 0.96875, "epsilon": 1e-30}
"""Keras rounds decays to float32, and adds epsilon elsewhere."""


def test_coupled_adam_without_penalty_is_adam(float64):
    gradients = [[g + 0.1 for g in pair] for pair in some_gradients()]
    adam = keras.optimizers.Adam(0.01, **EXACT)
    assert_close(applied(CoupledAdam(0.01, l2=0.0, **EXACT), gradients), applied(adam, gradients))


def test_demon_that_hardly_decays_is_adamw(float64):
    gradients = [[g + 0.1 for g in pair] for pair in some_gradients()]
    adamw = keras.optimizers.AdamW(0.01, weight_decay=0.125, **EXACT)
    demon = DemonAdamW(0.01, steps=10**15, weight_decay=0.125, **EXACT)
    assert_close(applied(demon, gradients), applied(adamw, gradients))


def test_demon_decays_its_momentum():
    """Half of the way 0.9 became 0.9 / 1.1, where Big-Layers' runs ended; then 0."""
    optimizer = DemonAdamW(0.01, steps=20)
    found = []
    for iterations in (0, 9, 19, 30):
        optimizer._iterations.assign(iterations)
        found.append(float(optimizer._beta_1("float64")))
    assert found == pytest.approx([0.9 * 0.95 / 0.955, 0.9 / 1.1, 0, 0], abs=1e-15)


def test_radam_is_rectified_from_the_sixth_update_on():
    optimizer, trusted = RAdam(), []
    for iterations in range(8):
        optimizer._iterations.assign(iterations)
        trusted.append(bool(optimizer._rectification()[1]))
    assert trusted == [False] * 5 + [True] * 3


def test_lookahead_starts_from_the_weights_of_the_first_update(float64):
    """Not from those that were there when it was built."""
    optimizer, variable = LookaheadRAdam(0.01, k=1, alpha=0.5), keras.Variable(np.zeros(1))
    optimizer.build([variable])
    variable.assign([10.0])
    optimizer.apply([tf.ones(1, "float64")])
    assert 9.9 < variable.numpy()[0] < 10


def test_lookahead_of_alpha_one_is_radam(float64):
    gradients = some_gradients()
    actual = applied(LookaheadRAdam(0.01, weight_decay=None, alpha=1.0, k=2), gradients)
    assert_close(actual, applied(RAdam(0.01), gradients))


@every_optimizer
def test_takes_sparse_gradients(name):
    """Of an embedding, like the same gradient as a dense tensor."""
    rows = tf.IndexedSlices(tf.constant([[1.0, 2.0], [3.0, 4.0]]), [2, 0], [3, 2])
    found = []
    for gradient in (rows, tf.convert_to_tensor(rows)):
        optimizer, variable = MAKERS[name](), keras.Variable(np.ones((3, 2), "float32"))
        for _ in range(4):
            optimizer.apply([gradient], [variable])
        found.append(variable.numpy())
    np.testing.assert_allclose(*found, rtol=1e-6)


def batch(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(8, 3)).astype("float32"), rng.normal(size=(8, 1)).astype("float32")


@every_optimizer
@pytest.mark.parametrize(("policy", "accumulation"), [("float32", None), ("mixed_float16", 2)])
def test_trains_and_goes_on_where_it_was_saved(name, policy, accumulation, tmp_path):
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
def test_skips_a_step_whose_gradient_is_not_finite(name):
    optimizer = keras.optimizers.LossScaleOptimizer(MAKERS[name](), initial_scale=1.0)
    variable = keras.Variable(np.ones(2, "float32"))
    optimizer.apply([tf.constant([np.inf, 0.0])], [variable])
    np.testing.assert_array_equal(variable, [1, 1])
    assert int(optimizer.iterations) == 0
    optimizer.apply([tf.ones(2)], [variable])
    assert (variable.numpy() < 1).all()
    assert (variable.numpy() > 0.9).all()  # and the slow weights were taken


@every_optimizer
def test_comes_back_from_its_config(name):
    optimizer = MAKERS[name](beta_1=0.8, beta_2=0.99, epsilon=1e-5, clipnorm=2.0, name="own")
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(optimizer)))
    assert config["registered_name"] == f"tfbig>{type(optimizer).__name__}"
    again = keras.saving.deserialize_keras_object(config)
    assert type(again) is type(optimizer)
    assert again.get_config() == optimizer.get_config()
    own = {"coupled": "l2", "demon": "steps", "radam": "l2", "lookahead": "k"}[name]
    assert {own, "beta_1", "beta_2", "epsilon"} <= again.get_config().keys()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CoupledAdam(weight_decay=0.1), r"weight_decay is 0\.1, .* Give l2"),
        (lambda: DemonAdamW(0.1, steps=0), "DemonAdamW: steps is 0, expected an integer of 1"),
        (lambda: DemonAdamW(0.1, steps=1.5), r"steps is 1\.5"),
        (lambda: LookaheadRAdam(k=0), "LookaheadRAdam: k is 0"),
        (lambda: LookaheadRAdam(alpha=0), "alpha is 0, expected over 0 and at most 1"),
        (lambda: LookaheadRAdam(alpha=1.5), r"alpha is 1\.5"),
        (lambda: RAdam(amsgrad=True), "not recognized.*amsgrad"),
    ],
)
def test_refuses(make, message):
    with pytest.raises(ValueError, match=message):
        make()

"""Whatever a budget makes of a model, it computes the same."""

from __future__ import annotations

import re
from collections import Counter

import keras
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same
from twins import learn, normed, residual

import tfbig
from benchmarks import profile
from tfbig.engine import machine_rates
from tfbig.plan.plan import Plan, Rates

layers = keras.layers


@pytest.mark.parametrize("share", [0.85, 0.72])
def test_what_is_made_again_is_the_same(float64: None, share: float) -> None:
    """Segments are replayed to keep less; outputs, gradients and statistics are those of the plain model."""
    twin = residual()
    x = tf.random.stateless_normal((2, 61, 47, 3), (1, 2), dtype=tf.float64)
    device = 800_000
    free = tfbig.stream(twin, tfbig.Budget(device=device, disk=0)).plan(x.shape)
    assert not free.layout.replays
    host = free.total_bytes - int((1 - share) * free.host_bytes)
    big = tfbig.stream(twin, tfbig.Budget(device=device, host=host, disk=0))
    plan = big.plan(x.shape)
    assert plan.layout.replays
    assert plan.total_bytes <= host
    assert_same(learn(big, twin, x), learn(twin, twin, x), FLOAT64)


def stem() -> keras.Model:
    """As networks begin: the first image is the largest, and pooled at once."""
    start = keras.Input((None, None, 3))
    x = layers.Conv2D(8, 5, strides=2, padding="same", use_bias=False)(start)
    x = layers.MaxPooling2D(3, 2, padding="same")(layers.ReLU()(layers.BatchNormalization()(x)))
    for _ in range(2):
        x = layers.Conv2D(4, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    return keras.Model(start, layers.Dense(2)(layers.GlobalAveragePooling2D()(x)))


def repeated(plan: tfbig.Plan) -> set[str]:
    """Layers that several sweeps run although that is not cheap."""
    names = [n.layer for s in plan.sweeps for n in s.locals if not n.op.cheap]
    return {name for name in names if names.count(name) > 1}


def test_what_every_sweep_makes_again_is_the_same(float64: None) -> None:
    """The first convolution is not stored, nor its gradient, although BatchNormalization asks for all of it."""
    twin = stem()
    x = tf.random.stateless_normal((2, 61, 47, 3), (1, 2), dtype=tf.float64)
    free = tfbig.stream(twin, tfbig.Budget(device="1MB", disk=0)).plan(x.shape)
    first = 2 * 31 * 24 * 8 * 8  # bytes of its output
    host = free.total_bytes - first
    big = tfbig.stream(twin, tfbig.Budget(device="1MB", host=host, disk=0))
    plan = big.plan(x.shape)
    assert not repeated(free)
    assert repeated(plan) == {twin.layers[1].name}
    assert plan.total_bytes <= host
    assert free.recompute_factor < plan.recompute_factor
    assert_same(learn(big, twin, x), learn(twin, twin, x), FLOAT64)


@pytest.mark.parametrize(
    ("store", "bound"),
    [pytest.param("float32", 2**-24, marks=pytest.mark.slow), ("bfloat16", 2**-9)],
)
def test_narrow_stores_round_what_goes_through_them(
    float64: None, store: str, bound: float
) -> None:
    """Thirteen stores in a row, forward and backward; BatchNorm's gradient is a difference, which costs digits."""
    twin = residual()
    x = tf.random.stateless_normal((2, 61, 47, 3), (1, 2), dtype=tf.float64)
    exact = tfbig.stream(twin, tfbig.Budget(device=800_000))
    narrow = tfbig.stream(twin, tfbig.Budget(device=800_000), store=store)
    share = narrow.plan(x.shape).host_bytes / exact.plan(x.shape).host_bytes
    assert share == {"float32": 1 / 2, "bfloat16": 1 / 4}[store]
    found, expected = (learn(model, twin, x) for model in (narrow, exact))
    errors = [
        float(tf.norm(a - e) / tf.norm(e))
        for a, e in zip(found, expected, strict=True)
        if tf.norm(e) > 1e-6  # gradients that are zero but for rounding say nothing
    ]
    assert 0 < max(errors) < 100 * bound


@pytest.mark.slow
def test_narrow_stores_leave_images_of_the_same_width_alone() -> None:
    keras.config.set_dtype_policy("mixed_bfloat16")
    twin = residual()
    x = tf.random.stateless_normal((1, 61, 47, 3), (1, 2))
    found, expected = (
        learn(tfbig.stream(twin, tfbig.Budget(device=400_000), store=store), twin, x)
        for store in ("bfloat16", None)
    )
    assert_same(found, expected)


@pytest.mark.parametrize(
    ("device", "strip_rows"),
    [
        ("700KB", None),
        ("40MB", 9),
        *(pytest.param(size, None, marks=pytest.mark.slow) for size in ("1.2MB", "40MB")),
    ],
)
def test_what_stays_on_the_device_is_the_same(
    float64: None, device: str, strip_rows: int | None
) -> None:
    """Nothing, some images, and all of them, of one strip or of several; a device of its own is asked for by name."""
    twin = residual()
    x = tf.random.stateless_normal((2, 61, 47, 3), (1, 2), dtype=tf.float64)
    budget = tfbig.Budget(device=device)
    big = tfbig.stream(twin, budget, devices="/CPU:0", strip_rows=strip_rows)
    plan = big.plan(x.shape)
    assert plan.device_bytes <= budget.device_bytes
    stored = {s.value for s in plan.timeline.spans}
    assert bool(plan.layout.kept) == (device != "700KB")
    assert (plan.layout.kept == stored) == (device == "40MB")
    assert (plan.host_bytes == 0) == (device == "40MB")
    assert (plan.strips > 1) == (device != "40MB" or strip_rows is not None)
    assert_same(learn(big, twin, x), learn(twin, twin, x), FLOAT64)


def test_a_batch_of_any_size_leaves_nothing_on_the_device(float64: None) -> None:
    """What there is room for is not known while a step is traced."""
    twin = residual()
    big = tfbig.stream(twin, tfbig.Budget(device="300KB"), devices="/CPU:0")
    x = tf.random.stateless_normal((4, 24, 16, 3), (1, 2), dtype=tf.float64)
    assert len(big.plan(x[:1].shape).layout.kept) > len(big.plan(x.shape).layout.kept)
    signature = [tf.TensorSpec((None, 24, 16, 3), x.dtype)]
    step = tf.function(lambda x: big(x, training=True), input_signature=signature)
    for batch in (1, 4):
        assert_same([step(x[:batch])], [twin(x[:batch], training=True)], FLOAT64)


def test_what_is_made_again_on_the_device_is_the_same(
    float64: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where copies are slow segments are replayed beside images that stay, the images that they make among them."""
    monkeypatch.setattr(
        machine_rates, "of", lambda *_: Rates(operations=1e14, passes=1e13, copies=1e8)
    )
    twin = residual()
    x = tf.random.stateless_normal((2, 61, 47, 3), (1, 2), dtype=tf.float64)
    big = tfbig.stream(twin, tfbig.Budget(device="1.8MB"), devices="/CPU:0")
    plan = big.plan(x.shape)
    assert plan.strips > 1
    assert plan.host_bytes == 0
    assert plan.layout.replays
    assert plan.layout.inner <= plan.layout.kept
    assert_same(learn(big, twin, x), learn(twin, twin, x), FLOAT64)


def test_what_stays_on_the_device_is_not_made_again_for_its_statistics() -> None:
    """Of two convolutions, both with their gradients, each runs once."""
    inputs = keras.Input((None, None, 3))
    x = layers.Conv2D(8, 3, padding="same")(inputs)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    twin = keras.Model(inputs, layers.Conv2D(1, 3, padding="same")(x))
    big = tfbig.stream(twin, tfbig.Budget(device="1GB", host="1GB"), devices="/CPU:0")
    big.compile("sgd", "mse")
    pair = [tf.random.stateless_normal((1, 64, 64, n), (1, n)) for n in (3, 1)]
    assert big.plan((1, 64, 64, 3)).host_bytes == 0
    big.train_on_batch(*pair)
    counts = Counter(kind for *_, kind in profile.traced(lambda: big.train_on_batch(*pair)))
    forward, filters = (
        sum(n for kind, n in counts.items() if kind.endswith(name))
        for name in ("Conv2D", "Conv2DBackpropFilter")
    )
    assert (forward, filters) == (2, 2)


@pytest.mark.slow
def test_another_size_keeps_other_images_on_the_device(float64: None) -> None:
    """The layout of a small image keeps all; a large one, in the same data set, gets one of its own."""
    twin = residual()
    big = tfbig.stream(twin, tfbig.Budget(device="3MB"), devices="/CPU:0")
    kept = []
    for rows in (8, 61, 30):
        x = tf.random.stateless_normal((2, rows, 47, 3), (1, 2), dtype=tf.float64)
        kept.append(big.plan(x.shape).layout.kept)
        assert_same(learn(big, twin, x), learn(twin, twin, x), FLOAT64)
    assert kept[1] < kept[0]


@pytest.mark.parametrize("place", ["device", "host"])
def test_the_budget_that_an_error_names_will_do(place: str) -> None:
    """The first sweep is not the one with the largest strip; strips that nobody limits grow with the host budget."""
    start = keras.Input((None, None, 3))
    fine = layers.Conv2D(8, 3, padding="same", activation="relu")(start)
    x = normed(normed(layers.MaxPooling2D()(fine), 8, 3), 16, 3)
    x = layers.Concatenate()([layers.UpSampling2D()(x), fine])
    model = keras.Model(start, layers.Conv2D(1, 3, padding="same", activation="sigmoid")(x))

    def plan(size: str) -> Plan:
        big = tfbig.stream(model, tfbig.Budget(disk=0, **{place: size}))
        big.compile("sgd", "binary_crossentropy")
        return big.plan((1, 200, 160, 3))

    with pytest.raises(tfbig.BudgetError) as found:
        plan("2kB")
    named = re.search(rf"Raise `{place}` to ([\d.]+ \w+)", str(found.value))
    assert named is not None
    assert plan(named[1]).shape == (1, 200, 160, 3)

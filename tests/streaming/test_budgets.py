"""Streamed models compute the same results for every budget, layout and store."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import keras
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same
from twins import BLOCKS, Blocks, learn, normed, residual

import tfbig
from benchmarks import profile
from tfbig.engine import machine_rates, step_geometry
from tfbig.plan import pricing
from tfbig.plan.plan import Plan, Rates
from tfbig.plan.prepared_graph import PreparedGraph
from tfbig.stores import host_store
from tfbig.stores.host_memory import HostMemory
from tfbig.stores.page_pool import PAGE
from tfbig.system import backend, cuda_driver

layers = keras.layers


ONE = ((12, 2),)
TWO = ((8, 1), (12, 2))
THREE = ((8, 1), (8, 1), (12, 2))
"""Blocks of smaller residual networks: tracing takes most of the time of these tests."""


def images(*shape: int) -> tf.Tensor:
    return tf.random.stateless_normal(shape, (1, 2), dtype=tf.float64)


@pytest.fixture
def free_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count no bytes for traces: of small images, those of other sweeps and replays take more than these save."""
    monkeypatch.setattr(pricing, "replay_bytes", lambda replays: 0)
    monkeypatch.setattr(PreparedGraph, "fixed_bytes", lambda *_: 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("share", "blocks"),
    [
        (0.72, THREE),
        *(pytest.param(share, BLOCKS, marks=pytest.mark.slow) for share in (0.85, 0.72)),
    ],
)
def test_rematerialise(float64: None, free_traces: None, share: float, blocks: Blocks) -> None:
    """Outputs, gradients and statistics do not change if segments are replayed to store less."""
    twin = residual(blocks)
    x = images(2, 61, 47, 3)
    device = 800_000
    free = tfbig.stream(twin, tfbig.Budget(device=device, disk=0)).plan(x.shape)
    assert not free.layout.replays
    host = free.total_bytes - int((1 - share) * free.projected.host)
    big = tfbig.stream(twin, tfbig.Budget(device=device, host=host, disk=0))
    plan = big.plan(x.shape)
    assert plan.layout.replays
    assert plan.total_bytes <= host
    assert_same(learn(big, twin, x), learn(twin, twin, x), FLOAT64)


def weight_gradients(model: keras.Model, twin: keras.Model, x: tf.Tensor) -> list[tf.Tensor]:
    """Return the gradients of the trainable weights, but none of the image."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.sin(model(x, training=True)))
    return tape.gradient(loss, [v._value for v in twin.trainable_variables])


@pytest.mark.slow
def test_frozen_layers_need_less(float64: None, free_traces: None) -> None:
    """A budget that does not do for all layers does if the first blocks are frozen; gradients are the same."""
    twin = residual(THREE)
    x = images(2, 61, 47, 3)

    def streamed(host: int | None = None) -> tfbig.StreamedModel:
        budget = tfbig.Budget(device=800_000, host=host, disk=0)
        return tfbig.stream(twin, budget, plain_if_small=False)

    front = twin.layers[: 2 * len(twin.layers) // 3]
    for layer in front:
        layer.trainable = False
    free = streamed().plan(x.shape)
    host = free.total_bytes - free.projected.host // 10
    big = streamed(host)
    plan = big.plan(x.shape)
    assert plan.total_bytes <= host < free.total_bytes
    actual, expected = (weight_gradients(model, twin, x) for model in (big, twin))
    assert_same(actual, expected, FLOAT64)
    for layer in front:
        layer.trainable = True
    with pytest.raises(tfbig.BudgetError, match=r"a step needs at least .* but .* are allowed"):
        streamed(host).plan(x.shape)


def stem() -> keras.Model:
    """Return a network whose first image is the largest and is pooled immediately, as in most networks."""
    start = keras.Input((None, None, 3))
    x = layers.Conv2D(8, 5, strides=2, padding="same", use_bias=False)(start)
    x = layers.MaxPooling2D(3, 2, padding="same")(layers.ReLU()(layers.BatchNormalization()(x)))
    for _ in range(2):
        x = layers.Conv2D(4, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    return keras.Model(start, layers.Dense(2)(layers.GlobalAveragePooling2D()(x)))


def rematerialised(plan: tfbig.Plan) -> set[str]:
    """Return the layers that several sweeps run although they are expensive."""
    names = [n.layer for s in plan.sweeps for n in s.locals if not n.op.cheap]
    return {name for name in names if names.count(name) > 1}


@pytest.mark.slow
def test_rematerialise_in_every_sweep(float64: None, free_traces: None) -> None:
    """Neither the first convolution nor its gradient is stored, although BatchNormalization needs all rows."""
    twin = stem()
    x = images(2, 61, 47, 3)
    free = tfbig.stream(twin, tfbig.Budget(device="1MB", disk=0)).plan(x.shape)
    first = 2 * 31 * 24 * 8 * 8  # bytes of its output
    host = free.total_bytes - first
    big = tfbig.stream(twin, tfbig.Budget(device="1MB", host=host, disk=0))
    plan = big.plan(x.shape)
    assert not rematerialised(free)
    assert rematerialised(plan) == {twin.layers[1].name}
    assert plan.total_bytes <= host
    assert free.recompute_factor < plan.recompute_factor
    assert_same(learn(big, twin, x), learn(twin, twin, x), FLOAT64)


@pytest.mark.parametrize(
    ("store", "bound", "blocks"),
    [
        pytest.param("bfloat16", 2**-9, ONE, marks=pytest.mark.slow),
        pytest.param("bfloat16", 2**-9, BLOCKS, marks=pytest.mark.slow),
        pytest.param("float32", 2**-24, BLOCKS, marks=pytest.mark.slow),
    ],
)
def test_16_bit_and_32_bit_stores(float64: None, store: str, bound: float, blocks: Blocks) -> None:
    """Rounding errors of consecutive stores (13 in five blocks); BatchNorm's gradient loses digits in a difference."""
    twin = residual(blocks)
    x = images(2, 61, 47, 3)
    exact = tfbig.stream(twin, tfbig.Budget(device=800_000))
    narrow = tfbig.stream(twin, tfbig.Budget(device=800_000), store=store)
    share = narrow.plan(x.shape).projected.host / exact.plan(x.shape).projected.host
    assert share == {"float32": 1 / 2, "bfloat16": 1 / 4}[store]
    actual, expected = (learn(model, twin, x) for model in (narrow, exact))
    errors = [
        float(tf.norm(a - e) / tf.norm(e))
        for a, e in zip(actual, expected, strict=True)
        if tf.norm(e) > 1e-6  # skip gradients that are zero up to rounding
    ]
    assert 0 < max(errors) < 100 * bound


@pytest.mark.slow
def test_store_of_the_width_of_images_is_exact() -> None:
    keras.config.set_dtype_policy("mixed_bfloat16")
    twin = residual()
    x = tf.random.stateless_normal((1, 61, 47, 3), (1, 2))
    actual, expected = (
        learn(tfbig.stream(twin, tfbig.Budget(device=400_000), store=store), twin, x)
        for store in ("bfloat16", None)
    )
    assert_same(actual, expected)


@pytest.mark.parametrize(
    ("device", "strip_rows", "blocks"),
    [
        pytest.param("700KB", None, ONE, marks=pytest.mark.slow),
        *(
            pytest.param(size, rows, BLOCKS, marks=pytest.mark.slow)
            for size, rows in (("700KB", None), ("40MB", 9), ("1.2MB", None), ("40MB", None))
        ),
    ],
)
def test_keep_on_device(float64: None, device: str, strip_rows: int | None, blocks: Blocks) -> None:
    """No, some and all images stay on the device, in one strip or several; devices are set by name."""
    twin = residual(blocks)
    x = images(2, 61, 47, 3)
    budget = tfbig.Budget(device=device)
    big = tfbig.stream(twin, budget, devices="/CPU:0", strip_rows=strip_rows)
    plan = big.plan(x.shape)
    assert plan.projected.device <= budget.device_bytes
    stored = {s.value for s in plan.timeline.spans}
    assert bool(plan.layout.kept) == (device != "700KB")
    assert (plan.layout.kept == stored) == (device == "40MB")
    assert (plan.projected.host == 0) == (device == "40MB")
    assert (plan.strips > 1) == (device != "40MB" or strip_rows is not None)
    assert_same(learn(big, twin, x), learn(twin, twin, x), FLOAT64)


@pytest.mark.slow
def test_page_locked_stores(float64: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that counts as a GPU: stores are in memory that counts as page-locked, more of it for larger images."""
    memory, locked = HostMemory(), []
    monkeypatch.setattr(backend, "is_gpu", lambda device: device is not None)
    monkeypatch.setattr(cuda_driver, "page_lock", lambda _, size: locked.append(size) is None)
    monkeypatch.setattr(cuda_driver, "page_unlock", lambda _: None)
    for module in (host_store, step_geometry):
        monkeypatch.setattr(module, "MEMORY", memory)
    twin = residual(TWO)
    big = tfbig.stream(twin, tfbig.Budget(device="500KB"), devices="/CPU:0")
    needs, prepare = [], step_geometry._prepare_space

    def prepared(plan: tfbig.Plan, *others: Any) -> None:
        needs.append(plan.projected.host)
        prepare(plan, *others)

    monkeypatch.setattr(step_geometry, "_prepare_space", prepared)
    for side in (37, 61, 45):
        x = images(2, side, 47, 3)
        assert_same(learn(big, twin, x), learn(twin, twin, x), FLOAT64)
        assert memory.locked is not None
        assert 0 < memory.locked.peak_bytes <= memory.locked.size
    page, *sizes = locked
    assert page == PAGE
    assert sizes == [-(-need // PAGE) * PAGE for need in needs[:2]]


@pytest.mark.slow
def test_dynamic_batch_size_keeps_nothing_on_device(float64: None) -> None:
    """The available room is unknown while a step is traced."""
    twin = residual(TWO)
    big = tfbig.stream(twin, tfbig.Budget(device="300KB"), devices="/CPU:0")
    x = images(4, 24, 16, 3)
    assert len(big.plan(x[:1].shape).layout.kept) > len(big.plan(x.shape).layout.kept)
    signature = [tf.TensorSpec((None, 24, 16, 3), x.dtype)]
    step = tf.function(lambda x: big(x, training=True), input_signature=signature)
    for batch in (1, 4):
        assert_same([step(x[:batch])], [twin(x[:batch], training=True)], FLOAT64)


@pytest.mark.parametrize(
    ("device", "blocks"),
    [
        pytest.param("1.5MB", ((8, 1), (8, 1)), marks=pytest.mark.slow),
        pytest.param("1.95MB", ((8, 1), (8, 1), (8, 1)), marks=pytest.mark.slow),
        pytest.param("1.95MB", BLOCKS, marks=pytest.mark.slow),
    ],
    ids=["two", "three", "five"],
)
def test_rematerialise_on_device(
    float64: None, device: str, blocks: Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If copies are slow, segments are replayed while other images, and those of the segments, stay on the device."""
    monkeypatch.setattr(
        machine_rates, "of", lambda *_: Rates(operations=1e14, passes=1e13, copies=1e8)
    )
    twin = residual(blocks)
    x = images(2, 61, 47, 3)
    big = tfbig.stream(twin, tfbig.Budget(device=device), devices="/CPU:0")
    plan = big.plan(x.shape)
    assert plan.strips > 1
    assert plan.projected.host == 0
    assert plan.layout.replays
    assert plan.layout.inner <= plan.layout.kept
    assert_same(learn(big, twin, x), learn(twin, twin, x), FLOAT64)


def test_kept_images_are_computed_once() -> None:
    """Each of two convolutions, and each of their gradients, runs once."""
    inputs = keras.Input((None, None, 3))
    x = layers.Conv2D(8, 3, padding="same")(inputs)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    twin = keras.Model(inputs, layers.Conv2D(1, 3, padding="same")(x))
    big = tfbig.stream(twin, tfbig.Budget(device="1GB", host="1GB"), devices="/CPU:0")
    big.compile("sgd", "mse")
    pair = [tf.random.stateless_normal((1, 64, 64, n), (1, n)) for n in (3, 1)]
    assert big.plan((1, 64, 64, 3)).projected.host == 0
    big.train_on_batch(*pair)
    counts = Counter(kind for *_, kind in profile.traced(lambda: big.train_on_batch(*pair)))
    forward, filters = (
        sum(n for kind, n in counts.items() if kind.endswith(name))
        for name in ("Conv2D", "Conv2DBackpropFilter")
    )
    assert (forward, filters) == (2, 2)


@pytest.mark.slow
def test_layout_per_image_size(float64: None) -> None:
    """A small image is kept completely; a large one in the same dataset has its own layout."""
    twin = residual()
    big = tfbig.stream(twin, tfbig.Budget(device="3MB"), devices="/CPU:0")
    kept = []
    for rows in (8, 61, 30):
        x = images(2, rows, 47, 3)
        kept.append(big.plan(x.shape).layout.kept)
        assert_same(learn(big, twin, x), learn(twin, twin, x), FLOAT64)
    assert kept[1] < kept[0]


def test_prediction_drops_cut_points_that_do_not_fit(float64: None) -> None:
    """Images that are stored to save halo are computed again instead, in tiles, where the host has no room for them."""
    image = x = keras.Input((None, None, 1))
    for _ in range(4):
        x = layers.Conv2D(8, 7, padding="same", activation="relu")(x)
    twin = keras.Model(image, layers.Conv2D(1, 1, activation="sigmoid")(x))
    pixels = images(1, 200, 150, 1)

    def streamed(host: int | None) -> tuple[Plan, tfbig.StreamedModel]:
        big = tfbig.stream(twin, tfbig.Budget(device="1MB", host=host, disk=0))
        return big.plan(pixels.shape, training=False), big

    free, _ = streamed(None)
    assert len(free.sweeps) > 1
    tight, big = streamed(free.total_bytes - free.projected.host // 2)
    assert len(tight.sweeps) == 1
    assert tight.projected.host == 200 * 150 * 8  # the output
    assert tight.projected.device <= 10**6
    assert_same(big.predict(pixels, verbose=0), twin.predict(pixels, verbose=0), FLOAT64)


@pytest.mark.parametrize("place", ["device", "host"])
def test_budget_named_in_error_is_sufficient(place: str) -> None:
    """The largest strip is not in the first sweep; without a device limit strips grow with the host budget."""
    start = keras.Input((None, None, 3))
    fine = layers.Conv2D(8, 3, padding="same", activation="relu")(start)
    x = normed(normed(layers.MaxPooling2D()(fine), 8, 3), 16, 3)
    x = layers.Concatenate()([layers.UpSampling2D()(x), fine])
    model = keras.Model(start, layers.Conv2D(1, 3, padding="same", activation="sigmoid")(x))

    def plan(size: str) -> Plan:
        big = tfbig.stream(model, tfbig.Budget(disk=0, **{place: size}))
        big.compile("sgd", "binary_crossentropy")
        return big.plan((1, 200, 160, 3))

    with pytest.raises(tfbig.BudgetError) as error:
        plan("2kB")
    budget = re.search(rf"Raise `{place}` to ([\d.]+ \w+)", str(error.value))
    assert budget is not None
    assert plan(budget[1]).shape == (1, 200, 160, 3)

"""On a GPU: results equal the plain model's and stay within the budget. Run with `pytest -m gpu tests/gpu`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from samples import ENVIRONMENT, PROGRAMS

import tfbig
from tfbig.engine import machine_rates
from tfbig.models.resnet import resnet18
from tfbig.stores.host_memory import MEMORY
from tfbig.system import unified_memory

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _on_a_gpu() -> None:
    if not tf.config.list_physical_devices("GPU"):
        pytest.skip("needs a GPU that TensorFlow can use")


def network() -> keras.Model:
    encoder = resnet18(include_top=False, pooling="avg")
    return keras.Model(encoder.input, layers.Dense(1, dtype=keras.config.floatx())(encoder.output))


def image(side: int, dtype: str = "float32") -> tf.Tensor:
    return tf.random.stateless_uniform((1, side, side, 3), (1, 2), dtype=dtype)


def step_results(model: keras.Model, twin: keras.Model, x: tf.Tensor) -> list[np.ndarray]:
    """Return the output, the gradients of the weights, and the statistics after one call."""
    before = twin.get_weights()
    with tf.GradientTape() as tape:
        y = model(x, training=True)
        loss = tf.reduce_sum(y**2)
    gradients = tape.gradient(loss, [v._value for v in twin.trainable_variables])
    after = [v.numpy() for v in twin.non_trainable_variables]
    twin.set_weights(before)
    return [y.numpy(), *(g.numpy() for g in gradients), *after]


def assert_close(actual: list[np.ndarray], expected: list[np.ndarray], rtol: float) -> None:
    for a, b in zip(actual, expected, strict=True):
        assert np.abs(a - b).max() <= rtol * max(np.abs(b).max(), 1e-6)


@pytest.mark.parametrize("budget", ["64MB", "2GB"])
def test_step_equals_plain_keras_in_float64(budget: str) -> None:
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    try:
        twin, x = network(), image(512, "float64")
        big = tfbig.stream(twin, tfbig.Budget(device=budget))
        assert big.settings.strip_devices == ("/GPU:0",)
        with tf.device("/GPU:0"):
            assert_close(step_results(big, twin, x), step_results(twin, twin, x), 1e-9)
    finally:
        keras.config.set_floatx("float32")


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_training(policy: str) -> None:
    """The loss falls over a few steps as in the plain model; float16 uses loss scaling."""
    keras.config.set_dtype_policy(policy)
    histories = []
    for streams in (False, True):
        keras.utils.set_random_seed(0)
        model: Any = network()
        if streams:
            model = tfbig.stream(model, tfbig.Budget(device="256MB"))
        optimizer: Any = keras.optimizers.AdamW(1e-5, 1e-4)
        if policy == "mixed_float16":  # no step is skipped because the loss is scaled by too much
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0**10)
        model.compile(optimizer, "mse", jit_compile=False)
        x, y = image(512), tf.ones((1, 1))
        histories.append([float(model.train_on_batch(x, y)) for _ in range(6)])
    plain, streamed = histories
    assert streamed[-1] < streamed[0]
    assert np.abs(np.subtract(plain, streamed)).max() <= 0.05 * max(plain)


def test_peak_stays_within_the_budget() -> None:
    """The budget covers strips, and in the first step what cuDNN needs to choose kernels, but not the weights."""
    budget = 2**30
    big = tfbig.stream(network(), tfbig.Budget(device=budget))
    big.compile("adam", "mse")
    x, y = image(4096).numpy(), tf.ones((1, 1))
    big.optimizer.build(big.trainable_variables)
    held = tf.config.experimental.get_memory_info("GPU:0")["current"]
    assert big.plan(x.shape).projected.device <= budget
    for _ in range(2):
        tf.config.experimental.reset_memory_stats("GPU:0")
        big.train_on_batch(x, y)
        peak = tf.config.experimental.get_memory_info("GPU:0")["peak"]
        assert peak - held <= budget


def test_measured_rates_of_a_gpu(measured_rates: Callable[..., machine_rates.Rates]) -> None:
    rates = measured_rates("/GPU:0")
    assert rates.operations > 10 * machine_rates.Rates().operations
    assert (
        rates.operations / rates.copies
        > machine_rates.Rates().operations / machine_rates.Rates().copies
    )


def test_unified_memory() -> None:
    """Runs in a new process, and allocates far less than the memory of the GPU."""
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "unified_memory_on_gpu.py")],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    physical, limit, total, peak = json.loads(done.stdout.splitlines()[-1])
    assert physical < limit <= 1.06 * physical
    assert total == 1024.0**3
    assert peak > 0


def test_unified_memory_is_refused_once_devices_exist() -> None:
    tf.ones([1])
    with pytest.raises(tfbig.UnifiedMemoryError, match="too late"):
        tfbig.unified_memory()
    assert unified_memory.peak_bytes() is not None


def test_stores_are_page_locked() -> None:
    """Images that do not fit the GPU are in memory from which it copies by itself; results stay equal."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    try:
        twin, x = network(), image(512, "float64")
        big = tfbig.stream(twin, tfbig.Budget(device="64MB", disk=0))
        ours = step_results(big, twin, x)
        assert MEMORY.locked is not None
        assert MEMORY.locked.peak_bytes > 0
        with tf.device("/GPU:0"):
            assert_close(ours, step_results(twin, twin, x), 1e-9)
    finally:
        keras.config.set_floatx("float32")

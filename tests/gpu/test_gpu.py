"""On a GPU: the same numbers as on the CPU and as the plain model, within the budget. `pytest -m gpu tests/gpu`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfbig
from tfbig.engine import machine_rates
from tfbig.models.resnet import resnet18
from tfbig.system import unified_memory

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def _on_a_gpu() -> None:
    if not tf.config.list_physical_devices("GPU"):
        pytest.skip("there is no GPU that TensorFlow can use")


def network() -> keras.Model:
    encoder = resnet18(include_top=False, pooling="avg")
    return keras.Model(encoder.input, layers.Dense(1, dtype="float32")(encoder.output))


def image(side: int, dtype: str = "float32") -> tf.Tensor:
    return tf.random.stateless_uniform((1, side, side, 3), (1, 2), dtype=dtype)


def learned(model: keras.Model, twin: keras.Model, x: tf.Tensor) -> list[np.ndarray]:
    """Output and gradients of the weights, and the statistics after one call."""
    before = twin.get_weights()
    with tf.GradientTape() as tape:
        y = model(x, training=True)
        loss = tf.reduce_sum(y**2)
    found = tape.gradient(loss, [v._value for v in twin.trainable_variables])
    after = [v.numpy() for v in twin.non_trainable_variables]
    twin.set_weights(before)
    return [y.numpy(), *(g.numpy() for g in found), *after]


def assert_near(found: list[np.ndarray], expected: list[np.ndarray], room: float) -> None:
    for a, b in zip(found, expected, strict=True):
        assert np.abs(a - b).max() <= room * max(np.abs(b).max(), 1e-6)


@pytest.mark.parametrize("budget", ["64MB", "2GB"])
def test_a_step_equals_the_plain_one_in_float64(budget: str) -> None:
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    try:
        twin, x = network(), image(512, "float64")
        big = tfbig.stream(twin, tfbig.Budget(device=budget))
        assert big.devices == ("/GPU:0",)
        with tf.device("/GPU:0"):
            assert_near(learned(big, twin, x), learned(twin, twin, x), 1e-9)
    finally:
        keras.config.set_floatx("float32")


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_learns(policy: str) -> None:
    """The loss of a few steps falls as that of the plain model does; float16 scales it."""
    keras.config.set_dtype_policy(policy)
    histories = []
    for streams in (False, True):
        keras.utils.set_random_seed(0)
        model: Any = network()
        if streams:
            model = tfbig.stream(model, tfbig.Budget(device="256MB"))
        model.compile(keras.optimizers.AdamW(1e-4, 1e-4), "mse", jit_compile=False)
        x, y = image(512), tf.ones((1, 1))
        histories.append([float(model.train_on_batch(x, y)) for _ in range(6)])
    plain, streamed = histories
    assert streamed[-1] < streamed[0]
    assert np.abs(np.subtract(plain, streamed)).max() <= 0.05 * max(plain)


def test_the_peak_of_the_device_stays_within_the_budget() -> None:
    """What the strips take, beside weights, the state of the optimiser and cuDNN's workspace."""
    budget = 2**30
    big = tfbig.stream(network(), tfbig.Budget(device=budget))
    big.compile("adam", "mse")
    x, y = image(4096), tf.ones((1, 1))
    big.train_on_batch(x[:, :512, :512], y)
    held = tf.config.experimental.get_memory_info("GPU:0")["current"]
    tf.config.experimental.reset_memory_stats("GPU:0")
    big.train_on_batch(x.numpy(), y)
    peak = tf.config.experimental.get_memory_info("GPU:0")["peak"]
    assert big.plan(x.shape).device_bytes <= budget
    assert peak - held <= 1.25 * budget


def test_the_planner_knows_that_a_gpu_computes_faster_than_it_copies() -> None:
    found = machine_rates.of("/GPU:0")
    assert found.operations > 10 * machine_rates.Rates().operations
    assert (
        found.operations / found.copies
        > machine_rates.Rates().operations / machine_rates.Rates().copies
    )


def test_unified_memory_is_what_the_device_reports() -> None:
    """In a process of its own; nothing near the memory of the card is asked for."""
    program = """
import json, tfbig, tensorflow as tf
from tfbig.system import unified_memory
found = tfbig.unified_memory(1.05)
x = tf.ones([1024, 1024])
print(json.dumps([found.physical_bytes, found.limit_bytes, float(tf.reduce_sum(x @ x)), unified_memory.peak_bytes()]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=True,
    )
    physical, limit, total, peak = json.loads(done.stdout.splitlines()[-1])
    assert physical < limit <= 1.06 * physical
    assert total == 1024.0**3
    assert peak > 0


def test_unified_memory_comes_too_late_once_there_are_devices() -> None:
    tf.ones([1])
    with pytest.raises(tfbig.UnifiedMemoryError, match="too late"):
        tfbig.unified_memory()
    assert unified_memory.peak_bytes() is not None

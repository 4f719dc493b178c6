"""A 3-D U-Net with Dice and cross-entropy, streamed: equal to the plain model, with deep supervision too."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same, integer_weights, integers
from twins import unlike_at_start

import tfbig
from tfbig.losses import DiceCrossentropy, deep_supervision
from tfbig.models.unet3d import unet3d

FEATURES = (3, 4, 5)
CASES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "cube": ({}, (12, 8, 4)),
    "longest axis last": ({}, (4, 8, 12)),
    "filled": ({"sizes": (7, 6, 9)}, (7, 6, 9)),
    "anisotropic": (
        {"strides": [1, (1, 2, 2), (2, 2, 1)], "kernel_sizes": [(1, 3, 3), 3, (3, 3, 1)]},
        (6, 8, 10),
    ),
}


def network(options: dict[str, Any], deep: bool = True) -> keras.Model:
    keras.utils.set_random_seed(0)
    model = unet3d(3, 2, FEATURES, deep_supervision=deep, **options)
    unlike_at_start(model)
    return model


def train(model: Any, x: np.ndarray, y: Any, batch_dice: bool) -> list[Any]:
    """Return the losses of two steps, and the weights after them, whose change is the gradient."""
    num_outputs = len(y) if isinstance(y, list) else 1
    losses = [DiceCrossentropy(batch_dice=batch_dice) for _ in range(num_outputs)]
    weights = deep_supervision.loss_weights(num_outputs)
    deep = num_outputs > 1
    model.compile(
        keras.optimizers.SGD(0.1),
        losses if deep else losses[0],
        loss_weights=weights if deep else None,
    )
    values = [np.float64(model.train_on_batch(x, y)) for _ in range(2)]
    return [*values, np.float64(model.test_on_batch(x, y)), *model.get_weights()]


def data(size: tuple[int, ...], num_outputs: int, strides: Any) -> tuple[np.ndarray, Any]:
    random = np.random.default_rng(3)
    x = random.normal(size=(2, *size, 2))
    labels = random.integers(0, 3, (2, *size, 1)).astype("uint8")
    return x, deep_supervision.labels_of_outputs(labels, num_outputs, strides)


@pytest.mark.slow
def test_step_of_two_stages(float64: None) -> None:
    """One step of a smaller network; the tests below are slower."""
    results = []
    for streamed in (True, False):
        keras.utils.set_random_seed(0)
        model = unet3d(3, 2, (2, 3), num_convolutions=1)
        unlike_at_start(model)
        x, (y,) = data((6, 4, 4), 1, 2)
        each = tfbig.stream(model, strip_rows=3) if streamed else model
        each.compile(keras.optimizers.SGD(0.1), DiceCrossentropy())
        results.append([np.float64(each.train_on_batch(x, y)), *model.get_weights()])
    assert_same(*results, FLOAT64)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rows", "batch_dice"),
    [(name, rows, dice) for name in CASES for rows, dice in ((1, False), (3, True))],
)
def test_step_with_deep_supervision(name: str, rows: int, batch_dice: bool, float64: None) -> None:
    options, size = CASES[name]
    plain, streamed = network(options), network(options)
    x, y = data(size, 2, options.get("strides", 2))
    big = tfbig.stream(streamed, strip_rows=rows)
    assert_same(train(big, x, y, batch_dice), train(plain, x, y, batch_dice), FLOAT64)


@pytest.mark.slow
@pytest.mark.parametrize(("device", "spills"), [("100KB", False), ("1MB", False), ("100KB", True)])
def test_step_within_a_budget(device: str, spills: bool, float64: None) -> None:
    """Strips, tiles and stores as the planner chooses them; on request with images on disk."""
    options, size = CASES["cube"]
    plain, streamed = network(options, deep=False), network(options, deep=False)
    x, (y,) = data(size, 1, 2)
    host = None
    if spills:
        whole = tfbig.stream(streamed, tfbig.Budget(device=device))
        whole.compile("sgd", DiceCrossentropy())
        plan = whole.plan(x.shape)
        host = plan.total_bytes - plan.projected.host // 3
    big = tfbig.stream(streamed, tfbig.Budget(device=device, host=host, disk="100MB"))
    assert_same(train(big, x, y, False), train(plain, x, y, False), FLOAT64)
    assert bool(big.plan(x.shape).layout.spilled) == spills


def test_layers_of_three_axes_bitwise() -> None:
    """The layers of the network but for normalisation, on integers in float32, whose sums are exact."""
    start = keras.Input((None, None, None, 2))
    x = keras.layers.ZeroPadding3D((1, 0, 1))(start)
    x = keras.layers.Conv3D(3, (3, 1, 3), strides=(2, 1, 2))(x)
    x = keras.layers.Conv3DTranspose(2, (2, 1, 2), strides=(2, 1, 2))(x)
    x = keras.layers.Concatenate()([x, start])
    model = keras.Model(start, keras.layers.Conv3D(2, 1)(x))
    model.set_weights(integer_weights(model))
    x = tf.constant(integers((1, 8, 5, 6, 2)))
    factors, results = integers((1, 8, 5, 6, 2), seed=5), []
    for each in (tfbig.stream(model, strip_rows=3), model):
        with tf.GradientTape() as tape:
            y = each(x)
            total = tf.reduce_sum(y * factors)
        results.append([y, *tape.gradient(total, [v._value for v in model.trainable_variables])])
    assert_same(*results)

"""The latent grid as a layer: places of codes, joined maps, and hierarchies."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same
from keras import layers, ops
from patch_models import (
    LABELS,
    applied_gradients,
    encoder,
    entropy,
    head,
    images,
    maps,
)

from tfbig.patchgd import LatentGrid, PatchGD, patch_model, patch_sampling


def test_codes_of_patches() -> None:
    net = encoder()
    model = PatchGD(net, head(), 4, 3, sampling=3)
    x = images(10, 13, count=2)
    z = model.latent(x)
    assert z.shape == (2, 3, 4, 3)
    assert_same(z[:, 1, 2], net(x[:, 3:7, 6:10]), 1e-6)
    assert_same(z[:, 2, 3], net(x[:, 6:10, 9:13]), 1e-6)


@pytest.mark.parametrize(
    ("size", "patch"),
    [
        ((16, 36), (8, 12)),
        pytest.param((24,), (8,), marks=pytest.mark.slow),
        ((8, 12, 8), (8, 4, 4)),
    ],
)
def test_joined_maps(size: Any, patch: Any, float64: None) -> None:
    """Z equals the feature map of the whole image, and so do the gradients."""
    whole, net = maps([None] * len(size)), maps(patch)
    options = {"sampling": 0.3, "accumulate": None, "encoder_scale": "unbiased"}
    model = PatchGD(net, head(len(size)), patch, **options)
    x = images(*size)
    assert_same(model.latent(x), whole(x), FLOAT64)
    assert_same(model.twin(x), model.head(whole(x)), FLOAT64)
    with tf.GradientTape() as tape:
        loss = entropy()(LABELS, model.head(whole(x)))
    variables = [*whole.trainable_variables, *model.head.trainable_variables]
    exact = tape.gradient(loss, [v._value for v in variables])
    assert_same(applied_gradients(model, x, LABELS), exact, FLOAT64)


def inner(**options: Any) -> keras.Model:
    """Return an encoder of cells of 8 x 8, in patches of 4 x 4, to codes of 3 numbers."""
    keras.utils.set_random_seed(6)
    cell = keras.Input((8, 8, 2))
    z = LatentGrid(encoder(), 4, **options)(cell)
    return keras.Model(cell, layers.Dense(3)(ops.tanh(layers.Flatten()(z))), name="inner")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"sampling": 1.0, "patches_at_once": 3},
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"patches_at_once": 3}, marks=pytest.mark.slow),
        pytest.param({"sampling": 1.0}, marks=pytest.mark.slow),
    ],
)
def test_hierarchy_equals_plain_training(options: Any, float64: None) -> None:
    x, weights = images(16, 24), []
    for model in (
        PatchGD(inner(**options), head(), 8, sampling=1.0, patches_at_once=4),
        patch_model(inner(), head(), 8),
    ):
        model.compile("sgd", entropy(), run_eagerly=not isinstance(model, PatchGD))
        model.fit(x, LABELS, batch_size=3, shuffle=False, verbose=0)
        weights.append([v.numpy() for v in model.trainable_variables])
    assert_same(weights[0], weights[1], FLOAT64)


@pytest.mark.slow
def test_hierarchy_learns(tmp_path: Any) -> None:
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


def test_gradient_of_an_inner_grid(float64: None) -> None:
    """One of four patches has a gradient; the unbiased one is exact on average over all four."""
    x = tf.constant(images(8, 8, count=1))
    sums: dict[str, Any] = {}
    for scale in patch_sampling.SCALES:
        net = inner(sampling=0.25, encoder_scale=scale)
        (grid,) = [layer for layer in net.layers if isinstance(layer, LatentGrid)]
        seen: dict[bytes, Any] = {}

        @tf.function
        def gradient(net: Any = net, grid: Any = grid) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(net(x, training=True))
            return tape.gradient(loss, grid.encoder.trainable_variables[0]._value)

        while len(seen) < 4:
            kernel = gradient()
            seen[np.round(kernel.numpy(), 12).tobytes()] = kernel
        sums[scale] = sum(seen.values())
    plain = inner()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(plain(x, training=True))
    (grid,) = [layer for layer in plain.layers if isinstance(layer, LatentGrid)]
    exact, *_ = tape.gradient(loss, [v._value for v in grid.encoder.trainable_variables])
    assert_same(sums["published"], exact, FLOAT64)
    assert_same(sums["unbiased"], 4 * exact, FLOAT64)


def test_invalid_encoders() -> None:
    net = encoder()
    two = keras.Model(net.input, [net.output, net.output])
    with pytest.raises(ValueError, match="has 1 inputs and 2 outputs"):
        PatchGD(two, head(), 4)
    patch = keras.Input((4, 4, 2))
    active = layers.Dense(3, activity_regularizer="l2", name="active")(layers.Flatten()(patch))
    with pytest.raises(ValueError, match=r"'active' of encoder .* has an activity_regularizer"):
        PatchGD(keras.Model(patch, active), head(), 4)
    with pytest.raises(
        ValueError, match=r"'maps' has outputs of unknown size \(None, None, 3\); give its input"
    ):
        PatchGD(maps((None, None)), head(), 4)
    rows = keras.Model(patch, layers.Reshape((4, 8))(patch), name="rows")
    with pytest.raises(
        ValueError, match=r"'rows' returns shape \(4, 8\) for a patch; expected a code \(d,\)"
    ):
        PatchGD(rows, head(), 4)

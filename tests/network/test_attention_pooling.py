"""Attention pooling of whole images, in plain Keras."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from tfbig.network.attention_pooling import AttentionPooling


def image(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def expected(pool: AttentionPooling, x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the mean as the formula of the paper has it."""
    v, u, w = ([t.numpy() for t in layer.weights] for layer in (pool.v, pool.u, pool.w))
    flat = x.reshape(len(x), -1, x.shape[-1])
    gates = 1 / (1 + np.exp(-(flat @ u[0] + u[1])))
    shares = np.exp((np.tanh(flat @ v[0] + v[1]) * gates) @ w[0] + w[1]) * weights.reshape(
        len(x), -1, 1
    )
    return (shares * flat).sum(1) / shares.sum(1)


@pytest.mark.parametrize("size", [(9,), (5, 4), (3, 4, 2)])
def test_mean_by_the_formula(size: tuple[int, ...]) -> None:
    pool, x = AttentionPooling(hidden=7), image(2, *size, 6)
    mean = pool(x)
    assert mean.shape == pool.compute_output_shape(x.shape) == (2, 6)
    np.testing.assert_allclose(mean, expected(pool, x, np.ones((2, *size, 1))), rtol=1e-5)


def test_weights() -> None:
    pool, x = AttentionPooling(hidden=7), image(2, 5, 4, 6)
    weights = np.random.default_rng(1).integers(0, 3, (2, 5, 4, 1))
    weights[1] = 0
    mean = pool([x, weights])
    np.testing.assert_allclose(mean[0], expected(pool, x, weights.clip(1e-30))[0], rtol=1e-5)
    assert (mean[1].numpy() == 0).all()


def test_large_logits() -> None:
    """The softmax does not overflow, where pixels that do not count have the largest logits either."""
    pool, x = AttentionPooling(hidden=2, gated=False, activation="relu"), image(1, 4, 4, 3)
    pool(x)
    for weight in pool.weights:
        weight.assign(np.full(weight.shape, 1000.0))
    x[0, 1, 2] = 1e5
    weights = np.ones((1, 4, 4, 1), "float32")
    weights[0, 1, 2] = 0
    assert np.isfinite(pool([x, weights])).all()
    np.testing.assert_allclose(pool(x)[0], x[0, 1, 2])


def test_saved_and_loaded() -> None:
    start = keras.Input((None, None, 3))
    model = keras.Model(start, AttentionPooling(4, gated=False, activation="gelu")(start))
    other = keras.Model.from_config(model.get_config())
    other.set_weights(model.get_weights())
    x = image(1, 3, 5, 3)
    np.testing.assert_array_equal(other(x), model(x))

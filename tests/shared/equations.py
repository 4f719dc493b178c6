"""NumPy functions for equations of attention: random bags, softmax, a dense layer, and a comparison."""

import numpy as np


def bag(batch=2, count=11, width=6, seed=0):
    return np.random.default_rng(seed).normal(size=(batch, count, width)).astype("float32")


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def dense(layer, x):
    kernel, *bias = (w.numpy().astype("float64") for w in layer.weights)
    return x @ kernel + (bias[0] if bias else 0)


def close(actual, expected, rtol=2e-5):
    """Assert closeness; the default suits sums of a few hundred float32 products in different orders."""
    actual, expected = np.asarray(actual, "float64"), np.asarray(expected, "float64")
    np.testing.assert_allclose(actual, expected, rtol=0, atol=rtol * max(abs(expected).max(), 1))

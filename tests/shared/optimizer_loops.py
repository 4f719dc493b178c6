"""Equations of the optimisers as loops in NumPy."""

from __future__ import annotations

from functools import partial
from math import prod, sqrt

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfbig.optimizers import CoupledAdam, DemonAdamW, LookaheadRAdam, RAdam

ROUNDING = 1e-12
"""Error relative to the largest weight: 30 updates of about ten float64 operations each, of order 1."""


# Decays and rates of schedules are powers of 2, because Keras converts them to float32.
MAKERS = {
    "coupled": lambda **options: CoupledAdam(0.01, **{"l2": 0.1, **options}),
    "demon": lambda **options: DemonAdamW(0.01, **{"steps": 20, "weight_decay": 0.125, **options}),
    "demon_l2": lambda **options: DemonAdamW(
        0.01, **{"steps": 20, "weight_decay": 0.0, "l2": 0.1, **options}
    ),
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
    """Return gradients of two variables, sparse and with one entry that is always 0."""
    rng = np.random.default_rng(8)
    gradients = [
        [rng.normal(size=(3, 2)) * rng.integers(0, 2, (3, 2)), rng.normal(size=4)]
        for _ in range(steps)
    ]
    for pair in gradients:
        pair[1][0] = 0
    return gradients


def coupled(w, gradients, lr=0.01, l2=0.1, b1=0.9, b2=0.999, eps=1e-8):
    """Compute the updates of `CoupledAdam` for one variable."""
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(gradients, 1):
        g = g + l2 * w
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        w = w - lr * m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps)
    return w


def demon(w, gradients, lr=0.01, steps=20, decay=0.125, l2=0.0, b1=0.9, b2=0.999, eps=1e-8):
    """Compute the updates of `DemonAdamW` for one variable."""
    m, v, used = np.zeros_like(w), np.zeros_like(w), []
    for t, g in enumerate(gradients, 1):
        g = g + l2 * w
        left = max(1 - t / steps, 0)
        used.append(b1 * left / ((1 - b1) + b1 * left))
        w = w - lr * decay * w
        m = used[-1] * m + (1 - used[-1]) * g
        v = b2 * v + (1 - b2) * g**2
        w = w - lr * m / (1 - prod(used)) / (np.sqrt(v / (1 - b2**t)) + eps)
    return w


def radam_steps(w, gradients, lr=0.01, l2=0.1, decay=0.0, b1=0.9, b2=0.999, eps=1e-8):
    """Yield the weights of one variable after each update of `RAdam`; `send` sets the weights of the next update."""
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
    """Compute the updates of `LookaheadRAdam` for one variable."""
    slow, steps = w, radam_steps(w, gradients, l2=0.0, decay=decay, **options)
    w = next(steps)
    for t in range(1, len(gradients) + 1):
        if t % k == 0:
            slow = w = slow + alpha * (w - slow)
        if t < len(gradients):
            w = steps.send(w)
    return w


LOOPS = {
    "coupled": coupled,
    "demon": demon,
    "demon_l2": partial(demon, decay=0.0, l2=0.1),
    "radam": radam,
    "lookahead": lookahead,
}


def looped(name, gradients, **options):
    return [
        LOOPS[name](w, list(g), **options)
        for w, g in zip(starts(), zip(*gradients, strict=True), strict=True)
    ]


def applied(optimizer, gradients, wrap=lambda f: f):
    """Return the variables after the optimiser was applied to each of the gradients."""
    variables = [keras.Variable(w, dtype="float64") for w in starts()]
    optimizer.build(variables)
    apply = wrap(lambda *grads: optimizer.apply(grads))
    for grads in gradients:
        apply(*[tf.constant(g) for g in grads])
    return [v.numpy() for v in variables]


def assert_close(actual, expected):
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=0, atol=ROUNDING * abs(e).max())


EXACT = {"beta_1": 0.875, "beta_2": 0.96875, "epsilon": 1e-30}
"""Options for comparison with Keras, which rounds decays to float32 and adds epsilon elsewhere."""


def batch(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(8, 3)).astype("float32"), rng.normal(size=(8, 1)).astype("float32")

"""CoupledAdam and DemonAdamW compared with Adam and AdamW of Keras."""

from __future__ import annotations

import keras
import pytest
from optimizer_loops import EXACT, applied, assert_close, some_gradients

from tfbig.optimizers import CoupledAdam, DemonAdamW


@pytest.mark.slow
def test_coupled_adam_without_penalty_is_adam(float64):
    gradients = [[g + 0.1 for g in pair] for pair in some_gradients()]
    adam = keras.optimizers.Adam(0.01, **EXACT)
    assert_close(applied(CoupledAdam(0.01, l2=0.0, **EXACT), gradients), applied(adam, gradients))


def test_demon_with_constant_momentum_is_adamw(float64):
    gradients = [[g + 0.1 for g in pair] for pair in some_gradients()]
    adamw = keras.optimizers.AdamW(0.01, weight_decay=0.125, **EXACT)
    demon = DemonAdamW(0.01, steps=10**15, weight_decay=0.125, **EXACT)
    assert_close(applied(demon, gradients), applied(adamw, gradients))


def test_demon_momentum():
    """Momentum 0.9 is 0.9 / 1.1 at half of the steps, where Big-Layers' runs ended, and 0 at the end."""
    optimizer = DemonAdamW(0.01, steps=20)
    momentum = []
    for iterations in (0, 9, 19, 30):
        optimizer._iterations.assign(iterations)
        momentum.append(float(optimizer._beta_1("float64")))
    assert momentum == pytest.approx([0.9 * 0.95 / 0.955, 0.9 / 1.1, 0, 0], abs=1e-15)

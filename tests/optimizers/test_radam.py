"""RAdam and LookaheadRAdam: rectification, decoupled decay and slow weights."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from optimizer_loops import applied, assert_close, looped, some_gradients

from tfbig.optimizers import LookaheadRAdam, RAdam


def test_radam_weight_decay(float64):
    gradients = some_gradients()
    expected = looped("radam", gradients, decay=0.25)
    assert_close(applied(RAdam(0.01, l2=0.1, weight_decay=0.25), gradients), expected)


def test_radam_is_rectified_from_sixth_update():
    optimizer, trusted = RAdam(), []
    for iterations in range(8):
        optimizer._iterations.assign(iterations)
        trusted.append(bool(optimizer._rectification()[1]))
    assert trusted == [False] * 5 + [True] * 3


def test_lookahead_starts_at_first_update(float64):
    """The weights when the optimiser was built have no effect."""
    optimizer, variable = LookaheadRAdam(0.01, k=1, alpha=0.5), keras.Variable(np.zeros(1))
    optimizer.build([variable])
    variable.assign([10.0])
    optimizer.apply([tf.ones(1, "float64")])
    assert 9.9 < variable.numpy()[0] < 10

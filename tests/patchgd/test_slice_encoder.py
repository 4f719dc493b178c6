"""Encoding slice by slice: dropout of the backward pass."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from patch_models import (
    encoder,
    images,
)

from tfbig.patchgd import slice_encoder
from tfbig.patchgd.patch_reader import PatchReader


def test_dropout_is_replayed(float64: None) -> None:
    """The gradient uses the masks of the forward pass: compared with central differences at the same masks."""
    net = encoder(rate=0.5)
    (generator,) = [v for v in net.non_trainable_variables if "seed" in v.path]
    grid = PatchReader(tf.constant(images(12, 16)), (4, 4), (4, 4), 2)
    indices = tf.tile(tf.range(12)[None], [6, 1])
    cotangent = tf.constant(np.random.default_rng(1).normal(size=(6, 12, 3)))

    def value() -> tf.Tensor:
        generator.assign([5, 7])
        return tf.reduce_sum(slice_encoder.encode(net, grid.take, indices, 5) * cotangent)

    variables = [v._value for v in net.trainable_variables]
    with tf.GradientTape() as tape:
        total = value()
    assert float(total) == float(value())
    assert generator.numpy().tolist() != [5, 7]
    gradients = tape.gradient(total, variables)
    direction = [g / tf.linalg.global_norm(gradients) for g in gradients]
    step, ends = 1e-5, []
    for sign in (1, -1):
        for v, d in zip(variables, direction, strict=True):
            v.assign_add(sign * step * d)
        ends.append(value())
        for v, d in zip(variables, direction, strict=True):
            v.assign_sub(sign * step * d)
    slope = float(ends[0] - ends[1]) / (2 * step)
    assert slope == pytest.approx(float(tf.linalg.global_norm(gradients)), rel=1e-7)

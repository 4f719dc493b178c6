"""The inner steps of a training step against the published loop, written out in eager Keras."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same
from keras import layers
from patch_models import (
    LABELS,
    encoder,
    entropy,
    head,
    images,
)

from tfbig.patchgd import PatchGD, patch_sampling
from tfbig.patchgd.patch_reader import PatchReader


def oracle(model: PatchGD, x: Any, y: Any, rate: float, seed: Any) -> list[float]:
    """Run the published loop, written out in eager Keras; return the losses of the inner steps."""
    grid = PatchReader(tf.constant(x), model.patch, model.stride, 2)
    count, cells, batch = grid.count, grid.cells, len(x)
    choose = patch_sampling.Chooser(
        model.sampling, "shuffle", model.encoder_scale, batch, count, seed
    )
    flat = lambda indices: tf.reshape(grid.take(indices), [-1, *model.patch, 2])  # noqa: E731
    order = np.argsort(
        tf.random.stateless_uniform([batch, count], patch_sampling.seed_of_part(seed, 0)).numpy()
    )
    z = np.zeros((batch, count, 3))
    for i in range(choose.num_sets):  # the filling, with statistics of each slice
        part = order[:, count * i // choose.num_sets : count * (i + 1) // choose.num_sets]
        codes = model.encoder(flat(tf.constant(part)), training=True)
        np.put_along_axis(z, part[..., None], np.reshape(codes, (batch, -1, 3)), 1)
    losses, sums = [], None
    variables = model.trainable_variables
    steps = model.inner_steps or choose.num_sets
    for k in range(steps):
        indices, _ = choose(tf.constant(k), lambda: None)
        with tf.GradientTape() as tape:
            codes = tf.reshape(model.encoder(flat(indices), training=True), [batch, -1, 3])
            rows = [
                tf.tensor_scatter_nd_update(z[n], indices[n][:, None], codes[n])
                for n in range(batch)
            ]
            fresh = tf.stack(rows)
            loss = entropy()(y, model.head(tf.reshape(fresh, [batch, *cells, 3]), training=True))
        gradients = tape.gradient(loss, [v._value for v in variables])
        gradients = [g / model.accumulate for g in gradients]
        sums = gradients if sums is None else [s + g for s, g in zip(sums, gradients, strict=True)]
        z = fresh.numpy()
        losses.append(float(loss))
        if (k + 1) % model.accumulate == 0:
            for v, s in zip(variables, sums, strict=True):
                v.assign_sub(rate * s)
            sums = None
    return losses


@pytest.mark.parametrize(
    ("eager", "accumulate"),
    [
        (False, 2),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [(False, 1), (False, 4), (True, 1), (True, 2), (True, 4)]
        ),
    ],
)
def test_matches_the_published_loop(accumulate: int, eager: bool, float64: None) -> None:
    """Stale codes, BatchNormalization of slices and of inner steps, and moving statistics."""
    x, both = images(12, 16, count=2), []
    for _ in range(2):
        both.append(
            PatchGD(
                encoder(norm=True), head(norm=True), 4, sampling=0.25, accumulate=accumulate, seed=5
            )
        )
    model, plain = both
    model.compile(keras.optimizers.SGD(0.1), entropy(), run_eagerly=eager)
    seed = plain.next_seed()
    loss = model.train_on_batch(x, LABELS[:2])
    losses = oracle(plain, x, LABELS[:2], 0.1, seed)
    assert loss == pytest.approx(np.mean(losses), rel=FLOAT64)
    assert_same(model.get_weights(), plain.get_weights(), FLOAT64)


def test_statistics_of_the_filling(float64: None) -> None:
    """A frozen filling leaves moving statistics to the inner steps; the published one updates them too."""
    x, moved = images(12, 16, count=2), {}
    for filling in ("published", "frozen"):
        model = PatchGD(
            encoder(norm=True), head(), 4, sampling=1.0, inner_steps=1, filling_norm=filling
        )
        model.compile(keras.optimizers.SGD(0.0), entropy(), run_eagerly=True)
        model.train_on_batch(x, LABELS[:2])
        (norm,) = [v for v in model.encoder.layers if isinstance(v, layers.BatchNormalization)]
        moved[filling] = norm.moving_mean.numpy()
    conv = model.encoder.layers[1]
    grid = PatchReader(tf.constant(x), (4, 4), (4, 4), 2)
    mean = np.mean(
        conv(tf.reshape(grid.take(tf.tile(tf.range(12)[None], [2, 1])), [-1, 4, 4, 2])), (0, 1, 2)
    )
    assert_same(moved["frozen"], 0.2 * mean, FLOAT64)
    assert_same(moved["published"], (1 - 0.8**2) * mean, FLOAT64)

"""The published loop of ABMIL-ACC against the whole bag, and against its passes written out."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same
from mil_models import LABELS, SIDE, bags, encoder, entropy, train

from tfbig import mil
from tfbig.models.pooling import ABMIL


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["frozen", "none"])
def test_published_loop_equals_the_whole_bag(norm: str, float64: None) -> None:
    """The gradients are equal without trainable BatchNormalization and without dropout."""
    options = {"mode": "published", "instances_at_once": 3, "instance_shape": (SIDE, SIDE, 3)}
    models = []
    for plain in (False, True):
        keras.utils.set_random_seed(5)
        model = mil.MIL(encoder(norm != "none"), ABMIL(2), norm="frozen", **options)
        models.append(model.twin if plain else model)
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        models[-1].compile(optimizer, entropy(), metrics=["accuracy"], run_eagerly=plain)
    logs = train(models)
    assert_same(logs[0]["loss"], logs[1]["loss"], FLOAT64)
    assert logs[0]["accuracy"] == logs[1]["accuracy"]
    assert_same(models[0].get_weights(), models[1].get_weights(), FLOAT64)


def test_normalisation_by_slices(float64: None) -> None:
    """Weights, loss and moving statistics equal those of the three passes written out."""
    model = mil.MIL(
        encoder(), ABMIL(2), 3, instance_shape=(SIDE, SIDE, 3), norm="per_slice", mode="published"
    )
    model.compile(keras.optimizers.SGD(1.0), entropy())
    x, y = tf.constant(bags()[0].read(0, 7)[None], "float64"), LABELS[:1]
    net, pool = model.encoder, model.aggregator
    before, start = model.get_weights(), [v.numpy() for v in net.non_trainable_variables]
    parts = [x[0, i : i + 3] for i in (0, 3, 6)]
    z = tf.concat([net(part, training=True) for part in parts], 0)
    for v, value in zip(net.non_trainable_variables, start, strict=True):
        v.assign(value)
    with tf.GradientTape() as tape:
        loss = entropy()(y, pool(z[None]))
    pool_gradients = tape.gradient(loss, [v._value for v in pool.trainable_variables])
    sums = [tf.zeros_like(v._value) for v in net.trainable_variables]
    for i, part in zip((0, 3, 6), parts, strict=True):
        with tf.GradientTape() as tape:
            bag = tf.concat([net(part, training=True), z[:i], z[i + 3 :]], 0)
            value = entropy()(y, pool(bag[None]))
        new = tape.gradient(value, [v._value for v in net.trainable_variables])
        sums = [a + b for a, b in zip(sums, new, strict=True)]
    moved = [v.numpy() for v in net.non_trainable_variables]
    model.set_weights(before)
    for v, value in zip(net.non_trainable_variables, start, strict=True):
        v.assign(value)
    expected = [
        v.numpy() - g.numpy()
        for layer, gradients in ((net, sums), (pool, pool_gradients))
        for v, g in zip(layer.trainable_variables, gradients, strict=True)
    ]
    logs = model.train_on_batch(x, y, return_dict=True)
    assert logs["loss"] == pytest.approx(float(loss))
    after = [v.numpy() for v in (*net.trainable_variables, *pool.trainable_variables)]
    assert_same(after, expected, FLOAT64)
    assert_same([v.numpy() for v in net.non_trainable_variables], moved, FLOAT64)

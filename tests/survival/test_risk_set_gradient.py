"""The gradient in two passes against that of all members at once."""

from __future__ import annotations

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from cohorts import cohort
from keras import layers
from mil_models import SIDE, bags, small_encoder

from tfbig import NonFiniteError, mil
from tfbig.survival import cox_loss, risk_set_gradient

INPUT = (6, 6, 2)


def network(*middle):
    """A small network with the given layers in the middle, and one risk."""
    keras.utils.set_random_seed(2)
    image = keras.Input(INPUT)
    x = layers.Conv2D(3, 3, activation="tanh")(image)
    for layer in middle:
        x = layer(x)
    return keras.Model(image, layers.Dense(1)(layers.Flatten()(x)))


def members_of(n, dtype="float64"):
    rng = np.random.default_rng(n)
    return [rng.normal(size=(1, *INPUT)).astype(dtype) for _ in range(n)]


def on_one_tape(model, members, times, events, loss=cox_loss):
    """One forward pass over all members, one after the other, and its gradient."""
    with tf.GradientTape() as tape:
        risks = tf.concat([tf.reshape(model(member, training=True), [-1]) for member in members], 0)
        value = loss(risks, times, events)
    return value, tape.gradient(value, [v.value for v in model.trainable_variables])


def state(model):
    return [v.numpy() for v in model.non_trainable_variables]


def reset(model, values):
    for variable, value in zip(model.non_trainable_variables, values, strict=True):
        variable.assign(value)


def assert_same(found, expected, rtol=1e-10):
    np.testing.assert_allclose(found[0], expected[0], rtol=rtol)
    scale = max(np.abs(gradient).max() for gradient in expected[1])
    for gradient, twin in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(gradient, twin, rtol=rtol, atol=rtol * scale)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_equals_the_gradient_of_the_batch(ties):
    _, times, events = cohort(0, n=12)
    assert len(np.unique(times[events])) < events.sum()  # ties
    model, members = network(), members_of(12)

    def loss(*data):
        return cox_loss(*data, ties)

    expected = on_one_tape(model, [np.concatenate(members)], times, events, loss)
    assert_same(risk_set_gradient(model, members, times, events, loss), expected)
    order = np.random.default_rng(0).permutation(12)
    moved = [members[k] for k in order], times[order], events[order]
    assert_same(risk_set_gradient(model, *moved, loss), expected)


@pytest.mark.usefixtures("float64")
def test_moving_statistics_are_updated_once():
    """They end as after one pass over the members, each normalised by its own statistics."""
    _, times, events = cohort(1, n=5)
    model, members = network(layers.BatchNormalization(momentum=0.7)), members_of(5)
    before = state(model)
    expected = on_one_tape(model, members, times, events)
    once = state(model)
    assert not np.allclose(once[0], before[0])
    reset(model, before)
    assert_same(risk_set_gradient(model, members, times, events), expected)
    for found, value in zip(state(model), once, strict=True):
        np.testing.assert_array_equal(found, value)
    risk_set_gradient(model, members, times, events, training=False)
    np.testing.assert_array_equal(state(model)[0], once[0])


class GlobalNoise(layers.Layer):
    """Noise of Keras' global seed generator."""

    def call(self, x):
        return x * keras.random.uniform(keras.ops.shape(x), dtype=x.dtype)


RANDOM = {
    "dropout": lambda: [layers.Dropout(0.5), layers.SpatialDropout2D(0.5), layers.Dropout(0.2)],
    "noise and statistics": lambda: [layers.GaussianNoise(1.0), layers.BatchNormalization()],
    "global seed": lambda: [GlobalNoise()],
}


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("middle", RANDOM.values(), ids=RANDOM)
def test_both_passes_draw_the_same_masks(middle):
    _, times, events = cohort(2, n=5)
    model, members = network(*middle()), members_of(5)
    before = state(model)
    keras.utils.set_random_seed(7)
    expected = on_one_tape(model, members, times, events)
    after, drawn = state(model), keras.random.uniform([3])
    reset(model, before)
    keras.utils.set_random_seed(7)
    assert_same(risk_set_gradient(model, members, times, events), expected)
    for found, value in zip(state(model), after, strict=True):
        np.testing.assert_array_equal(found, value)
    np.testing.assert_array_equal(keras.random.uniform([3]), drawn)  # the generators went on once
    second = risk_set_gradient(model, members, times, events)
    assert float(second[0]) != float(expected[0])  # other masks in the next step


class Untracked(layers.Layer):
    """Noise whose state no variable holds."""

    def call(self, x):
        return x * tf.random.uniform(tf.shape(x), dtype=x.dtype)


def test_random_numbers_that_cannot_be_repeated_are_refused():
    _, times, events = cohort(3, n=3)
    with pytest.raises(
        RuntimeError, match=r"the risk of member 0 was .* Draw random numbers by Keras"
    ):
        risk_set_gradient(network(Untracked()), members_of(3, "float32"), times, events)


class Members:
    """Members that are made when they are asked for."""

    def __init__(self, n, counts=(None, None), before=lambda: None):
        self.n, self.counts, self.read, self.before = n, iter(counts), 0, before

    def __iter__(self):
        rng, count = np.random.default_rng(0), next(self.counts)
        for _ in range(self.n if count is None else count):
            self.read += 1
            self.before()
            yield tf.constant(rng.normal(size=(1, *INPUT)), tf.float32)


class Spy(layers.Layer):
    """Counts the earlier outputs of it that are still in memory, whenever it is called or asked."""

    def __init__(self):
        super().__init__()
        self.outputs, self.alive = [], []

    def count(self):
        gc.collect()
        self.alive.append(sum(output() is not None for output in self.outputs))

    def call(self, x):
        if tf.executing_eagerly():
            self.count()
        y = tf.tanh(x)
        self.outputs.append(weakref.ref(y))
        return y


@pytest.mark.slow
def test_one_member_is_in_memory_at_a_time():
    _, times, events = cohort(4, n=6)
    spy = Spy()
    model = network(spy)
    risk_set_gradient(model, Members(6, before=spy.count), times, events)
    assert spy.alive == [0] * 24  # when a member is read, and when it is computed
    on_one_tape(model, list(Members(6)), times, events)
    assert max(spy.alive) == 5  # so the count sees what a tape keeps


def test_a_dataset_is_read_twice():
    _, times, events = cohort(4, n=4)
    members = Members(4)
    lazy = risk_set_gradient(network(), members, times, events)
    assert members.read == 8
    assert_same(lazy, risk_set_gradient(network(), list(Members(4)), times, events), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
def test_streamed_bags():
    """A MIL model of the engine, one bag of another size after the other."""
    keras.utils.set_random_seed(5)
    aggregator = mil.ABMIL(classes=1, hidden=4)
    model = mil.MIL(
        small_encoder(), aggregator, instances_at_once=3, instance_shape=(SIDE, SIDE, 3)
    )
    members = [bag.read(0, bag.shape[0])[None].astype("float64") for bag in bags()]
    times, events = [2.0, 1.0, 2.0, 3.0], [1, 1, 1, 0]
    before = state(model)
    expected = on_one_tape(model.twin, members, times, events)
    once = state(model)
    reset(model, before)
    assert_same(risk_set_gradient(model, members, times, events), expected)
    for found, value in zip(state(model), once, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-10)


def test_embeddings_and_variables_without_influence():
    word = keras.Input((3,), dtype="int32")
    x = layers.Flatten()(layers.Embedding(5, 2)(word))
    idle = layers.Dense(1)
    model = keras.Model(word, layers.Dense(1)(x) + 0 * layers.Dense(1)(x))
    model.idle = idle
    idle.build((None, 2))
    members = [np.array([[0, 1, 1]]), np.array([[4, 0, 2]])]
    data = [1.0, 2.0], [1, 0]
    value, gradients = risk_set_gradient(model, members, *data)
    expected = on_one_tape(model, members, *data)
    np.testing.assert_allclose(value, expected[0])
    np.testing.assert_allclose(gradients[0], tf.convert_to_tensor(expected[1][0]), atol=1e-7)
    assert [g is None for g in gradients] == [g is None for g in expected[1]]
    assert gradients[-1] is None


def test_mixed_precision():
    keras.config.set_dtype_policy("mixed_bfloat16")
    _, times, events = cohort(5, n=4)
    value, gradients = risk_set_gradient(network(), members_of(4, "float32"), times, events)
    assert value.dtype == gradients[0].dtype == tf.float32
    assert all(np.isfinite(g).all() for g in gradients)


def test_wrong_arguments_are_refused():
    model, members = network(), members_of(2, "float32")
    wide = keras.Sequential([keras.Input(INPUT), layers.Flatten(), layers.Dense(2)])
    for arguments, message in [
        ((model, iter(members), [1, 2], [1, 1]), "members are an iterator, .* Give a list or a"),
        ((model, members, [1, 2], [0, 0]), "all 2 members are censored"),
        ((model, members, [1, 2, 3], [0, 0, 1]), "there are 2 members and 3 times"),
        ((model, [], [1], [1]), "there are 0 members and 1 times"),
        ((wide, members, [1, 2], [1, 1]), r"is shape \(1, 2\), expected one risk, \[1, 1\]. End"),
        ((model, [np.concatenate(members)], [1], [1]), r"is shape \(2, 1\), expected one risk"),
        ((keras.Sequential([layers.Dense(1)]), members, [1, 2], [1, 1]), "has no variables yet"),
    ]:
        with pytest.raises(ValueError, match="^risk_set_gradient: .*" + message):
            risk_set_gradient(*arguments)


def test_what_goes_wrong_on_the_way_is_refused():
    model, members = network(), members_of(2, "float32")
    with pytest.raises(NonFiniteError, match=r"risk of member 1 is nan \(1 of 2 are not finite\)"):
        risk_set_gradient(model, [members[0], members[1] * np.nan], [1, 2], [1, 1])
    for counts, message in [
        ((4, 3), "4 members in the first pass and 3 in the"),
        ((4, 5), "4 members in the first pass and 5 in the"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            risk_set_gradient(model, Members(4, counts), [1, 2, 3, 4], [1, 1, 1, 1])
    with pytest.raises(RuntimeError, match=r"called in a graph, expected eager mode"):
        tf.function(lambda: risk_set_gradient(model, members, [1, 2], [1, 1]))()

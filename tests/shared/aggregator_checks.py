"""Checks that hold for every aggregator of bags."""

import keras
import tensorflow as tf
from equations import bag, close

WIDTH = 6


def check_outputs(layer, classes=3):
    """A bag gives logits, an attention that sums to 1, and scores of its instances."""
    x = bag()
    assert layer(x).shape == (2, classes)
    assert layer.compute_output_shape((2, None, WIDTH)) == (2, classes)
    attention = layer.attention(x).numpy()
    assert attention.shape == (2, 11)
    assert (attention >= 0).all()
    close(attention.sum(1), [1, 1])
    assert layer.scores(x).shape == (2, 11, classes)


def check_bags_are_independent(layer):
    """A bag gets the same logits alone and in a batch."""
    x = bag()
    close(layer(x)[:1], layer(x[:1]))


def check_any_size(layer, counts=(1, 2, 16, 300)):
    """One graph handles bags of every size."""
    inputs = keras.Input((None, WIDTH))
    model = keras.Model(inputs, layer(inputs))
    graph = tf.function(model, input_signature=[tf.TensorSpec([None, None, WIDTH])])
    for count in counts:
        x = bag(count=count)
        tf.nest.map_structure(close, graph(x), layer(x))


def check_saving(layer, path):
    """A saved and loaded model gives the same logits."""
    inputs = keras.Input((None, WIDTH))
    model = keras.Model(inputs, layer(inputs))
    model.save(path)
    close(keras.saving.load_model(path)(bag()), model(bag()), 0)

"""Accumulate the gradient of a bag slice by slice with `tf.GradientTape`, and compare it with that of the whole bag.

    python examples/abmil_accumulation.py [--seed 0]

A bag of 64 drawn tiles goes through an encoder and an attention pool (ABMIL). The plain gradient records all tiles on
one tape. `accumulated` needs the memory of 16 tiles: it computes all features without a tape, takes the gradient of the
loss with respect to the features, and then sends the slices through the encoder again, each with a tape of its own.
`tfbig.mil.MIL` does the same inside `fit`, with BatchNormalization over the whole bag in addition. The script prints
how far the gradients of both are from the plain one.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import keras
import tensorflow as tf
from keras import layers

from tfbig import mil

INSTANCES, SLICE = 64, 16


def build_encoder() -> keras.Model:
    """Build a network from tiles `[n, 32, 32, 3]` to features `[n, 16]`."""
    tile = x = keras.Input((32, 32, 3))
    for width in (8, 16):
        x = layers.Conv2D(width, 3, 2, padding="same", activation="relu")(x)
    return keras.Model(tile, layers.GlobalAveragePooling2D()(x))


def loss_of(logits: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
    """Return the mean cross-entropy of bags."""
    losses = keras.losses.sparse_categorical_crossentropy(label, logits, from_logits=True)
    return tf.reduce_mean(losses)


def whole(encoder: keras.Model, pool: keras.Layer, bag: tf.Tensor, label: tf.Tensor) -> list:
    """Return the gradient of all weights, with all instances on one tape."""
    weights = encoder.trainable_weights + pool.trainable_weights
    with tf.GradientTape() as tape:
        loss = loss_of(pool(encoder(bag, training=True)[None]), label)
    return tape.gradient(loss, [w.value for w in weights])


def accumulated(encoder: keras.Model, pool: keras.Layer, bag: tf.Tensor, label: tf.Tensor) -> list:
    """Return the same gradient with one slice of instances on a tape at a time."""
    starts = range(0, len(bag), SLICE)
    features = tf.concat([encoder(bag[i : i + SLICE], training=True) for i in starts], 0)
    of_pool, of_encoder = ([w.value for w in m.trainable_weights] for m in (pool, encoder))
    with tf.GradientTape() as tape:
        tape.watch(features)
        loss = loss_of(pool(features[None]), label)
    to_features, *pool_gradients = tape.gradient(loss, [features, *of_pool])
    sums = [tf.zeros_like(w) for w in of_encoder]
    for i in starts:
        with tf.GradientTape() as tape:
            part = encoder(bag[i : i + SLICE], training=True)
        parts = tape.gradient(part, of_encoder, to_features[i : i + SLICE])
        sums = [s + g for s, g in zip(sums, parts, strict=True)]
    return sums + pool_gradients


def main(seed: int = 0) -> tuple[float, float]:
    """Print and return the largest relative differences of the accumulated gradient and of that of `MIL`."""
    keras.utils.set_random_seed(seed)
    tiles, _ = mil.generate.shapes(INSTANCES)
    bag = tf.constant(tiles.read(0, INSTANCES) / 255, keras.config.floatx())
    label = tf.constant([1])
    encoder, pool = build_encoder(), mil.ABMIL(classes=2, hidden=8, gated=True)
    model = mil.MIL(encoder, pool, instances_at_once=SLICE)
    expected = whole(encoder, pool, bag, label)
    with tf.GradientTape() as tape:
        loss = loss_of(model(bag[None], training=True), label)
    gradients = {
        "accumulated": accumulated(encoder, pool, bag, label),
        "tfbig.mil.MIL": tape.gradient(loss, [w.value for w in model.trainable_weights]),
    }
    differences = []
    for name, actual in gradients.items():
        pairs = zip(actual, expected, strict=True)
        differences.append(max(float(tf.norm(a - e) / tf.norm(e)) for a, e in pairs))
        print(f"{name:14} largest relative difference to the whole bag {differences[-1]:.1e}")
    return differences[0], differences[1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights")
    main(parser.parse_args().seed)

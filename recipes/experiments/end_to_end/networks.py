"""One small residual network, as an encoder of tiles and over whole images, and ways to train it without labels.

A position of its map sees 151 x 151 pixels, where there are so many: all of a tile, or more than 4 x 4 tiles of a whole
image. All ways have the same parameters: 185 232 of the encoder, and those of the head.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import tfbig
from recipes.experiments.end_to_end import images

WIDTHS, HIDDEN, TEMPERATURE = (24, 48, 64, 64), 64, 0.2
STRIDES, REDUCTION = (2, 2, 2, 1), 16
"""Strides of the blocks, and pixels of the image for each position of the map along a side."""
VIEWS, CROPS, SHIFT = 128, 128, 4
"""Tiles in a batch without labels, pieces in a batch of pictures, and pixels by which a view is shifted at most."""
PICTURES = ("astronaut", "camera", "cat", "coffee", "coins", "hubble_deep_field", "moon", "rocket")
"""Pictures packaged with scikit-image, of other things than the tasks."""

Array = np.ndarray[Any, np.dtype[Any]]
Clock = Callable[[], float]


# -------------------------------------------------------------------------------------- networks


def convolved(x: Any, width: int, strides: int, size: int = 3) -> Any:
    """Return a convolution and its BatchNormalization."""
    x = layers.Conv2D(width, size, strides, "same", use_bias=False)(x)
    return layers.BatchNormalization(momentum=0.9)(x)


def block(x: Any, width: int, strides: int) -> Any:
    """Return a residual block of two convolutions (He et al. 2016)."""
    shortcut = x if strides == 1 else convolved(x, width, strides, 1)
    y = layers.ReLU()(convolved(x, width, strides))
    return layers.ReLU()(layers.Add()([convolved(y, width, 1), shortcut]))


def trunk() -> keras.Model:
    """Return the network from images of any size, 0 to 255, to a map of 64 channels, a sixteenth of their side."""
    image = keras.Input((None, None, 3))
    x = layers.Rescaling(1 / 127.5, -1)(image)
    x = layers.ReLU()(convolved(x, 16, 2))
    for width, strides in zip(WIDTHS, STRIDES, strict=True):
        x = block(x, width, strides)
    return keras.Model(image, x, name="trunk")


def encoder() -> keras.Model:
    """Return the trunk with a mean over its map: tiles to features `[64]`."""
    network = trunk()
    features = layers.GlobalAveragePooling2D()(network.output)
    return keras.Model(network.input, features, name="encoder")


def aggregator(head: str) -> keras.Layer:
    """Return the head over the features of tiles, gated attention or the mean."""
    if head == "mean":
        return tfbig.mil.MeanPooling(classes=1)
    return tfbig.mil.ABMIL(classes=1, hidden=HIDDEN, gated=True)


def bag_head(head: str) -> keras.Model:
    """Return a model of the head alone, from features `[64, 64]` of the tiles of an image to a logit."""
    bag = keras.Input((images.TILES, WIDTHS[-1]))
    return keras.Model(bag, aggregator(head)(bag))


def tile_model(head: str) -> keras.Model:
    """Return encoder and head of all tiles of an image, trained end to end."""
    shape = (images.TILE, images.TILE, 3)
    return tfbig.mil.MIL(encoder(), aggregator(head), instance_shape=shape)


def whole_model(head: str) -> keras.Model:
    """Return the same over a whole image, streamed.

    Means of 2 x 2 positions are features, so that there are as many as tiles, but each is of more than a tile.
    """
    network = trunk()
    features = layers.AveragePooling2D(images.TILE // REDUCTION)(network.output)
    pool = (
        layers.GlobalAveragePooling2D() if head == "mean" else tfbig.layers.AttentionPooling(HIDDEN)
    )
    logit = layers.Dense(1)(pool(features))
    return tfbig.stream(keras.Model(network.input, logit, name="whole"))


# -------------------------------------------------------------------------- training without labels


def contrastive_loss(z: tf.Tensor) -> tf.Tensor:
    """Return NT-Xent of two views `[2 n, d]`, view i beside view i + n (Chen et al. 2020, equation 1)."""
    z = tf.math.l2_normalize(z, axis=1)
    number = tf.shape(z)[0]
    similar = tf.linalg.matmul(z, z, transpose_b=True) / TEMPERATURE
    similar = tf.linalg.set_diag(similar, tf.fill([number], np.float32(-1e9)))
    partner = (tf.range(number) + number // 2) % number
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(partner, similar))


def view(tiles: Array, mirrored: bool, rng: np.random.Generator) -> Array:
    """Return tiles `[n, 32, 32, 3]`, shifted by up to four pixels and stained at random, each by itself.

    With `mirrored`, they are also turned and mirrored, which changes no texture, but digits.
    """
    edges = ((0, 0), (SHIFT, SHIFT), (SHIFT, SHIFT), (0, 0))
    wide = np.pad(tiles, edges, mode="reflect")
    places = rng.integers(2 * SHIFT + 1, size=(len(tiles), 2))
    side = tiles.shape[1]
    cut = [each[y : y + side, x : x + side] for each, (y, x) in zip(wide, places, strict=True)]
    if mirrored:
        cut = [np.rot90(each, rng.integers(4))[:: rng.choice((1, -1))] for each in cut]
    return images.jittered(np.stack(cut), rng)


def trained_by_views(
    tiles: Array, mirrored: bool, seconds: float, seed: int, clock: Clock = time.process_time
) -> keras.Model:
    """Return an encoder that tells tiles apart, trained without labels (SimCLR, Chen et al. 2020).

    Args:
        tiles: uint8 `[n, 32, 32, 3]`.
        mirrored: As for `view`.
        seconds: Processor time of the training.
        seed: Of its weights and views.
        clock: Function that returns the time in seconds.
    """
    keras.utils.set_random_seed(seed)
    rng = np.random.default_rng(seed)
    network = encoder()
    projection = keras.Sequential([layers.Dense(128, "relu"), layers.Dense(64)])
    model = keras.Sequential([network, projection])

    def batch() -> tuple[Array, None]:
        chosen = tiles[rng.choice(len(tiles), VIEWS, replace=False)]
        return np.concatenate([view(chosen, mirrored, rng) for _ in range(2)]), None

    train_for(model, lambda _, z: contrastive_loss(z), batch, seconds, clock)
    return network


def trained_by_pictures(seconds: float, seed: int, clock: Clock = time.process_time) -> keras.Model:
    """Return an encoder that tells from which of `PICTURES` a piece is: trained with labels, but elsewhere.

    Args:
        seconds: Processor time of the training.
        seed: Of its weights and pieces.
        clock: Function that returns the time in seconds.
    """
    from skimage import color, data

    keras.utils.set_random_seed(seed)
    rng = np.random.default_rng(seed)
    found = [getattr(data, name)() for name in PICTURES]
    pictures = [each if each.ndim == 3 else color.gray2rgb(each) for each in found]
    network = encoder()
    model = keras.Sequential([network, layers.Dense(len(PICTURES))])

    def batch() -> tuple[Array, Array]:
        classes = rng.integers(len(PICTURES), size=CROPS)
        pieces = np.stack([images.piece(pictures[each], rng) for each in classes])
        return images.jittered(pieces, rng), classes

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    train_for(model, loss, batch, seconds, clock)
    return network


def trained_by_annotations(
    seconds: float, seed: int, clock: Clock = time.process_time
) -> keras.Model:
    """Return an encoder that tells what a tile of the training material has, trained with a label of each tile.

    It knows what the tasks ask for, which labels of images do not say: the most that fixed features can be.

    Args:
        seconds: Processor time of the training.
        seed: Of its weights and tiles.
        clock: Function that returns the time in seconds.
    """
    keras.utils.set_random_seed(seed)
    rng, of = np.random.default_rng(seed), images.material("train")
    network = encoder()
    model = keras.Sequential([network, layers.Dense(len(images.ANNOTATIONS))])

    def batch() -> tuple[Array, Array]:
        tiles, classes = images.annotated(of, CROPS, rng)
        return images.jittered(tiles, rng), classes

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    train_for(model, loss, batch, seconds, clock)
    return network


def train_for(
    model: keras.Model, loss: Any, batch: Callable[[], Any], seconds: float, clock: Clock
) -> None:
    """Train a model with `loss(y, model(x))` on batches `(x, y)`, until the time is over."""
    optimizer = keras.optimizers.Adam(1e-3)
    model(
        np.zeros((2, images.TILE, images.TILE, 3), "float32")
    )  # builds the layers after the encoder
    optimizer.build(model.trainable_variables)

    @tf.function(reduce_retracing=True)
    def step(x: tf.Tensor, y: tf.Tensor | None) -> None:
        with tf.GradientTape() as tape:
            value = loss(y, model(tf.cast(x, "float32"), training=True))
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    end = clock() + seconds
    while clock() < end:
        x, y = batch()
        step(tf.constant(x), None if y is None else tf.constant(y))

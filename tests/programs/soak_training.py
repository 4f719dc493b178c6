"""Train on images of many sizes, and print memory, open files and scratch files after each step as JSON.

Usage: soak_training.py STEPS SIZES SCRATCH CHECKPOINTS
"""

import json
import os
import sys

import keras
import numpy as np
import tensorflow as tf

import tfbig
from tfbig.results import run_folder
from tfbig.training import Checkpoints, Epochs, Loop


class Constant(tfbig.Source):
    """Image whose rows have one colour."""

    def _read(self, start, stop):
        return np.full((stop - start, *self.shape[1:]), start % 251, np.uint8)


class Watching(keras.callbacks.Callback):
    """Callback that records memory, open files and scratch files after each step."""

    def __init__(self, scratch):
        super().__init__()
        self.scratch, self.rows = scratch, []

    def on_train_batch_end(self, batch, logs=None):
        paths = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        links = [os.readlink(path) for path in paths if os.path.lexists(path)]
        files = len(list(os.scandir(self.scratch))) + sum(self.scratch in link for link in links)
        self.rows.append((run_folder.memory_bytes()[0], len(links), files))


def streamed_model(scratch):
    image = keras.Input((None, None, 3))
    x = image
    for width in (8, 16):
        x = keras.layers.Conv2D(width, 3, strides=2, padding="same", use_bias=False)(x)
        x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    model = keras.Model(image, keras.layers.Dense(2)(keras.layers.GlobalAveragePooling2D()(x)))
    budget = tfbig.Budget(device="6MB", host="95MB", disk="200MB", scratch=scratch)
    big = tfbig.stream(model, budget)
    big.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return big


def main(steps, sizes, scratch, checkpoints):
    model = streamed_model(scratch)
    random = np.random.default_rng(0)
    kinds = random.integers(200, 900, (sizes, 2))
    sides = kinds[random.integers(len(kinds), size=steps)]
    images = [Constant((int(a), int(b), 3), np.uint8, "constant") for a, b in sides]

    def batches(shard):
        handles = [image.handle for image in images]
        data = tf.data.Dataset.from_tensor_slices((handles, np.arange(steps) % 2))
        return data.batch(1)

    watching = Watching(scratch)
    Loop(
        model,
        Epochs(steps, batches),
        callbacks=[watching],
        every_seconds=5,
        checkpoints=Checkpoints(checkpoints, "soak"),
    ).run()
    print(json.dumps(watching.rows))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])

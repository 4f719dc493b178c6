"""Print the memory that two training steps take and the memory that their plan predicts, as one JSON line.

    python tests/programs/planned_memory.py KIND SIDE DEVICE FOLDER

KIND is `unet`, `chain`, `frozen` (a chain of which only the last block is trained) or `segmentation`, SIDE the rows
of the image, DEVICE the budget, FOLDER a writable folder.
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

import tfbig
from benchmarks import report
from benchmarks.networks import conv_chain
from tfbig.models.gigapixel_unet import gigapixel_unet
from tfbig.stores.page_pool import POOL

kind, side, device, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
layers, rng = keras.layers, np.random.default_rng(0)
if kind == "unet":
    shape = (side, 2 * side, 1)
    path = folder + "/image.npy"
    with tfbig.sources.write_npy(path, shape, np.dtype("uint8")) as file:
        for row in range(0, side, 256):
            file.write(row, rng.integers(0, 256, (256, 2 * side, 1), np.uint8))
    model, loss = gigapixel_unet(), "binary_crossentropy"
    x = y = tf.constant([tfbig.open(path).handle])
else:
    shape = (side, side, 3)
    x = tf.constant(rng.random((1, *shape), np.float32))
    model, loss, y = conv_chain(), "mse", tf.ones((1, 1))
    if kind == "frozen":
        for layer in model.layers[:-5]:
            layer.trainable = False
    if kind == "segmentation":
        image = z = keras.Input((None, None, 3))
        for _ in range(3):
            z = layers.Conv2D(16, 3, padding="same")(z)
            z = layers.ReLU()(layers.BatchNormalization()(z))
        model = keras.Model(image, layers.Conv2D(1, 1, activation="sigmoid")(z))
        loss, y = "binary_crossentropy", tf.cast(x[..., :1] > 0.5, tf.uint8)
big = tfbig.stream(model, tfbig.Budget(device=device))
big.compile("adam", loss)
base = report.memory_bytes()[0]
plan = big.plan((1, *shape))
for _ in range(2):
    big.train_on_batch(x, y)
figures = {
    "measured": report.memory_bytes()[1] - base,
    "planned": plan.peak_bytes,
    "stored": POOL.peak_bytes,
    "host": plan.projected.host,
}
print(json.dumps(figures))

"""Does streaming cost time, and how much memory does it save?

    python benchmarks/conv_chain.py [--side 3072 --steps 4 --rounds 3]

Five conv-BatchNorm-ReLU of 64 channels (the first with stride 2), global pooling and a Dense layer, one training
step on a float32 image; streamed and plain Keras in turn, each in a process of its own. Prints one JSON line.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), HERE]

import against_plain


def chain():
    """The network."""
    import keras

    image = x = keras.Input((None, None, 3))
    for depth in range(5):
        strides = 2 if depth == 0 else 1
        x = keras.layers.Conv2D(64, 3, strides=strides, padding="same", use_bias=False)(x)
        x = keras.layers.BatchNormalization()(x)
        x = keras.layers.ReLU()(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, keras.layers.Dense(1)(x))


if __name__ == "__main__":
    against_plain.main(__file__, "conv_chain", chain, 3072, {"streamed": {"device": "96MB"}})

"""What does a smaller budget cost? ResNet-50, one training step on a float32 image, against plain Keras.

    python benchmarks/resnet50.py [--side 2048 --steps 4 --rounds 3 --kinds float32 bfloat16]

Prints one JSON line per kind: stores of float32, of bfloat16, with less host memory than either would take, and what
Keras has itself to save memory, `keras.RematScope`.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), HERE]

import against_plain

KINDS = {
    "float32": {"device": "96MB"},
    "bfloat16": {"device": "96MB", "store": "bfloat16"},
    "host-3GB": {"device": "96MB", "host": "3GB"},
    "host-2GB-bfloat16": {"device": "96MB", "host": "2GB", "store": "bfloat16"},
    "remat": {"remat": "activations"},
}


def network():
    """ResNet-50 with one output, for images of any size."""
    import keras

    encoder = keras.applications.ResNet50(
        weights=None, include_top=False, pooling="avg", input_shape=(None, None, 3)
    )
    return keras.Model(encoder.input, keras.layers.Dense(1)(encoder.output))


if __name__ == "__main__":
    against_plain.main(__file__, "resnet50", network, 2048, KINDS)

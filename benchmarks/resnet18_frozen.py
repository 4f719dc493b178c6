"""What lightstream is made for: ResNet-18, all BatchNorm frozen, one training step, against plain Keras.

    python benchmarks/resnet18_frozen.py [--side 2240 --steps 4 --rounds 3]

Frozen statistics leave no barrier inside the network, so sweeps could run through many layers. Prints one JSON line for
each way: with all host memory, and with as little as asks for files and for making images again.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), HERE]

import against_plain

KINDS = {"free": {"device": "128MB"}, "host-1.1GB": {"device": "128MB", "host": "1.1GB"}}


def network():
    """ResNet-18 with one output; only convolutions and the last layer learn."""
    import keras

    from models.resnet import resnet18

    encoder = resnet18(include_top=False, pooling="avg")
    for layer in encoder.layers:
        layer.trainable = not isinstance(layer, keras.layers.BatchNormalization)
    return keras.Model(encoder.input, keras.layers.Dense(1)(encoder.output))


if __name__ == "__main__":
    against_plain.main(__file__, "resnet18_frozen", network, 2240, KINDS)

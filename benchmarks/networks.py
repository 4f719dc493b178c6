"""Networks that the benchmarks train, each with one output, for images of any size."""

from __future__ import annotations

from functools import partial
from typing import Any


def conv_chain() -> Any:
    """Return five blocks of convolution, BatchNormalization and ReLU with 64 channels, the first with stride 2."""
    import keras

    image = x = keras.Input((None, None, 3))
    for depth in range(5):
        strides = 2 if depth == 0 else 1
        x = keras.layers.Conv2D(64, 3, strides=strides, padding="same", use_bias=False)(x)
        x = keras.layers.BatchNormalization()(x)
        x = keras.layers.ReLU()(x)
    return _ended(image, keras.layers.GlobalAveragePooling2D()(x))


def resnet18() -> Any:
    """Return torchvision's ResNet-18."""
    from tfbig.models import resnet

    encoder = resnet.resnet18(include_top=False, pooling="avg")
    return _ended(encoder.input, encoder.output)


def resnet18_frozen() -> Any:
    """Return a ResNet-18 with frozen BatchNormalization, so without barriers, which lightstream is made for."""
    import keras

    model = resnet18()
    for layer in model.layers:
        layer.trainable = not isinstance(layer, keras.layers.BatchNormalization)
    return model


def resnet50() -> Any:
    """Return ResNet-50 of `keras.applications`."""
    import keras

    encoder = keras.applications.ResNet50(
        weights=None, include_top=False, pooling="avg", input_shape=(None, None, 3)
    )
    return _ended(encoder.input, encoder.output)


PATCH = 4
"""Rows and columns of a patch of `transformer` and `swin`."""


def transformer(width: int = 64, heads: int = 4, depth: int = 2) -> Any:
    """Return a transformer without positions, each of whose patches attends to all others."""
    import keras
    from keras import layers

    image = keras.Input((None, None, 3))
    x = layers.Conv2D(width, PATCH, PATCH)(image)
    x = layers.Reshape((-1, width))(x)
    for _ in range(depth):
        y = layers.LayerNormalization()(x)
        x += layers.MultiHeadAttention(heads, width // heads)(y, y)
        y = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x += layers.Dense(width)(y)
    return _ended(image, layers.GlobalAveragePooling1D()(x))


def swin(side: int) -> Any:
    """Return Swin-T for square images."""
    from tfbig.models.swin_transformer import Swin, swin_transformer

    encoder = swin_transformer((side, side, 3), Swin(patch=PATCH))
    return _ended(encoder.input, encoder.output)


def application(name: str) -> Any:
    """Return a network of `keras.applications` by name, for images of any size."""
    import keras

    build = getattr(keras.applications, name)
    encoder = build(weights=None, include_top=False, pooling="avg", input_shape=(None, None, 3))
    return _ended(encoder.input, encoder.output)


def _ended(image: Any, vector: Any) -> Any:
    import keras

    return keras.Model(image, keras.layers.Dense(1, dtype=keras.config.floatx())(vector))


APPLICATIONS = ("ConvNeXtTiny", "DenseNet121", "EfficientNetB0", "MobileNetV2")

NETWORKS = {
    **{
        build.__name__: build
        for build in (conv_chain, resnet18, resnet18_frozen, resnet50, transformer)
    },
    **{name: partial(application, name) for name in APPLICATIONS},
}

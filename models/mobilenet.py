"""MobileNetV2 as torchvision defines it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import keras

from tfbig.models.torch_layers import batch_norm, convolution, depthwise_convolution, pool, relu

STAGES = (
    *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
    *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
)
"""Expansion, channels, number of blocks, and stride of the first block of each stage."""

DEPTHWISE_FIRST = {"conv_dw": "0.0", "bn1": "0.1", "conv_pw": "1", "bn2": "2"}
EXPANDED = {
    "conv_pw": "0.0",
    "bn1": "0.1",
    "conv_dw": "1.0",
    "bn2": "1.1",
    "conv_pwl": "2",
    "bn3": "3",
}
"""Modules of a block by timm's name, and torchvision's: without and with expansion."""

A = TypeVar("A")


def mobilenetv2(
    input_shape: Sequence[int | None] = (None, None, 3),
    include_top: bool = True,
    classes: int = 1000,
    pooling: str | None = None,
    name: str = "mobilenetv2",
) -> keras.Model:
    """Build MobileNetV2 (Sandler et al., CVPR 2018) in torchvision's form, 3504872 parameters with its top.

    `keras.applications.MobileNetV2` is another network: it pads convolutions of stride 2 below and to the right, and
    its BatchNormalization has an epsilon of 1e-3 and moving averages of momentum 0.999.

    Args:
        input_shape: `(H, W, 3)`; `None` for any height or width.
        include_top: Whether to end in average pooling, dropout of 0.2 and a dense layer without activation.
        classes: Outputs of that layer.
        pooling: Without the top: `"avg"`, `"max"`, or None for the feature map `[N, H/32, W/32, 1280]`.
        name: Name of the model.

    Returns:
        A plain functional `keras.Model` with random weights. Its input `[N, H, W, 3]` is RGB,
        `(x / 255 - mean) / std`. Its output: logits `[N, classes]`; without the top features `[N, 1280]`, or the
        feature map if `pooling` is None.

    Raises:
        ValueError: `pooling` is none of these.
    """
    image = keras.Input(input_shape, name="image")
    x = _normalised(convolution(image, 32, 3, 2, "features.0.0"), "features.0")
    for number, (expansion, width, stride) in enumerate(_blocks(), 1):
        x = _inverted_residual(x, expansion, width, stride, f"features.{number}")
    x = _normalised(convolution(x, 1280, 1, 1, "features.18.0"), "features.18")
    if not include_top:
        return keras.Model(image, pool(x, pooling), name=name)
    x = keras.layers.Dropout(0.2, name="classifier.0")(pool(x, "avg"))
    normal = keras.initializers.RandomNormal(0.0, 0.01)
    x = keras.layers.Dense(classes, kernel_initializer=normal, name="classifier.1")(x)
    return keras.Model(image, x, name=name)


def _blocks() -> Iterator[tuple[int, int, int]]:
    """Yield expansion, channels and stride of each block."""
    for expansion, width, count, stride in STAGES:
        for i in range(count):
            yield expansion, width, 1 if i else stride


def _inverted_residual(
    x: keras.KerasTensor, expansion: int, width: int, stride: int, name: str
) -> keras.KerasTensor:
    """Add 1x1, depthwise 3x3 and 1x1 convolutions: `[N, H, W, C] -> [N, H / stride, W / stride, width]`."""
    y, inner = x, 0
    if expansion > 1:
        y = convolution(y, expansion * x.shape[-1], 1, 1, f"{name}.conv.0.0")
        y, inner = _normalised(y, f"{name}.conv.0"), 1
    y = depthwise_convolution(y, 3, stride, f"{name}.conv.{inner}.0")
    y = _normalised(y, f"{name}.conv.{inner}")
    y = convolution(y, width, 1, 1, f"{name}.conv.{inner + 1}")
    y = batch_norm(y, f"{name}.conv.{inner + 2}")
    if stride == 1 and x.shape[-1] == width:
        return keras.layers.Add(name=f"{name}.add")([x, y])
    return y


def _normalised(x: keras.KerasTensor, name: str) -> keras.KerasTensor:
    """Add BatchNormalization and ReLU6 after the convolution `name.0`."""
    return relu(batch_norm(x, f"{name}.1"), f"{name}.2", 6.0)


def from_timm(arrays: Mapping[str, A]) -> dict[str, A]:
    """Rename arrays of timm's `mobilenetv2_100` as torchvision does; unknown names are kept.

    Args:
        arrays: Arrays by timm's key, such as `blocks.1.0.conv_pw.weight`.
    """
    renamed = dict(_timm_names())

    def name(key: str) -> str:
        module, _, kind = key.rpartition(".")
        return f"{renamed.get(module, module)}.{kind}"

    return {name(key): array for key, array in arrays.items()}


def _timm_names() -> Iterator[tuple[str, str]]:
    """Yield timm's and torchvision's name of each module with weights."""
    yield from (("conv_stem", "features.0.0"), ("bn1", "features.0.1"))
    number = 0
    for stage, (expansion, _, count, _) in enumerate(STAGES):
        parts = DEPTHWISE_FIRST if expansion == 1 else EXPANDED
        for i in range(count):
            number += 1
            for part, place in parts.items():
                yield f"blocks.{stage}.{i}.{part}", f"features.{number}.conv.{place}"
    yield from (("conv_head", "features.18.0"), ("bn2", "features.18.1"))
    yield "classifier", "classifier.1"

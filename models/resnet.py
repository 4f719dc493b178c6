"""ResNets as torchvision and timm define them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import keras

from tfbig.models.torch_layers import NORMS, Norm, convolution, linear, pool, relu

WIDTHS = (64, 128, 256, 512)

Block: TypeAlias = Callable[[keras.KerasTensor, int, int, str, Norm], keras.KerasTensor]
"""Function `(x, width, stride, name, norm) -> x` that adds one residual block."""


def resnet18(
    input_shape: Sequence[int | None] = (None, None, 3),
    include_top: bool = True,
    classes: int = 1000,
    pooling: str | None = None,
    name: str = "resnet18",
    norm: str = "batch",
) -> keras.Model:
    """Build ResNet-18, 11689512 parameters with its top. See `resnet` for the arguments and the result."""
    return resnet(
        _basic_block, (2, 2, 2, 2), input_shape, include_top, classes, pooling, name, norm
    )


def resnet34(
    input_shape: Sequence[int | None] = (None, None, 3),
    include_top: bool = True,
    classes: int = 1000,
    pooling: str | None = None,
    name: str = "resnet34",
    norm: str = "batch",
) -> keras.Model:
    """Build ResNet-34, 21797672 parameters with its top. See `resnet` for the arguments and the result."""
    return resnet(
        _basic_block, (3, 4, 6, 3), input_shape, include_top, classes, pooling, name, norm
    )


def resnet50(
    input_shape: Sequence[int | None] = (None, None, 3),
    include_top: bool = True,
    classes: int = 1000,
    pooling: str | None = None,
    name: str = "resnet50",
    norm: str = "batch",
) -> keras.Model:
    """Build ResNet-50, 25557032 parameters with its top. See `resnet` for the arguments and the result.

    `keras.applications.ResNet50` is another network: it strides in the first 1x1 convolution of a
    block, where torchvision strides in the 3x3, and its convolutions have biases.
    """
    return resnet(_bottleneck, (3, 4, 6, 3), input_shape, include_top, classes, pooling, name, norm)


def resnet18_flat(
    input_shape: Sequence[int | None] = (256, 256, 3),
    include_top: bool = True,
    classes: int = 1000,
    pooling: str | None = None,
    name: str = "resnet18_flat",
) -> keras.Model:
    """Build ResNet-18 without padding in its stem, as the code of Big-Layers has it for PANDA.

    See `resnet` for the arguments and the result. With `pooling="flatten"` the features of a tile of 256 x 256 are the
    8 x 8 x 512 numbers of its last map.
    """
    return resnet(
        _basic_block,
        (2, 2, 2, 2),
        input_shape,
        include_top,
        classes,
        pooling,
        name,
        stem_padding=False,
    )


def resnet26(
    input_shape: Sequence[int | None] = (None, None, 3),
    include_top: bool = True,
    classes: int = 1000,
    pooling: str | None = None,
    name: str = "resnet26",
    norm: str = "batch",
) -> keras.Model:
    """Build ResNet-26 of timm, two bottleneck blocks a stage. See `resnet` for the arguments and the result.

    15995176 parameters with its top. The code of ABMIL-ACC has it as the encoder of QMNIST-bags.
    """
    return resnet(_bottleneck, (2, 2, 2, 2), input_shape, include_top, classes, pooling, name, norm)


def resnet(
    block: Block,
    depths: Sequence[int],
    input_shape: Sequence[int | None],
    include_top: bool,
    classes: int,
    pooling: str | None,
    name: str,
    norm: str = "batch",
    stem_padding: bool = True,
) -> keras.Model:
    """Build a residual network (He et al., "Deep residual learning", CVPR 2016) in torchvision's form.

    Layers have the names of torchvision's modules (`layer1.0.conv1`, `bn1`, `fc`). Padding is
    torch's, the same on all four sides: a convolution of stride 2 with Keras' padding="same" would
    pad images of even size only below and to the right, and see other pixels.

    Two things that torch does have no counterpart in a Keras layer: it keeps the unbiased variance
    of a batch (Keras the biased one), which differ by a factor of 1 + 1 / (pixels - 1), and
    torchvision's Linear draws its biases at random.

    Args:
        block: Function `(x, width, stride, name, norm) -> x` that adds one residual block.
        depths: Number of blocks of each of the four stages.
        input_shape: `(H, W, 3)`; `None` for any height or width.
        include_top: Whether to end in average pooling and a dense layer without activation.
        classes: Outputs of that layer.
        pooling: Without the top: `"avg"`, `"max"`, `"flatten"`, or None for the feature map `[N, H/32, W/32, C]`.
        name: Name of the model.
        norm: "batch" for BatchNormalization, or "group" for GroupNormalization with 32 groups (Wu and He, "Group
            normalization", ECCV 2018), which has as many trainable parameters.
        stem_padding: Whether the first convolution and the max pooling pad the image.

    Returns:
        A plain functional `keras.Model`. Its input `[N, H, W, 3]` is RGB as torchvision normalises it,
        `(x / 255 - mean) / std`, for example by `keras.layers.Rescaling` with a list for each. Its output: logits
        `[N, classes]`; without the top features `[N, C]`, or the feature map if `pooling` is None.

    Raises:
        ValueError: `pooling` or `norm` is none of these.
    """
    if norm not in NORMS:
        raise ValueError(f"norm={norm!r} of {name}: expected 'batch' or 'group'.")
    normalise = NORMS[norm]
    image = keras.Input(input_shape, name="image")
    x = convolution(image, 64, 7, 2, "conv1", stem_padding)  # [N, H/2, W/2, 64]
    x = relu(normalise(x, "bn1"), "relu")
    # Padding with zeros is safe: after ReLU no value is below them. If a whole window is zero the
    # padding ties with it, and takes a gradient that ReLU would have stopped anyway.
    x = keras.layers.ZeroPadding2D(1, name="maxpool.pad")(x) if stem_padding else x
    x = keras.layers.MaxPooling2D(3, 2, name="maxpool")(x)  # [N, H/4, W/4, 64]
    for stage, (width, depth) in enumerate(zip(WIDTHS, depths, strict=True), 1):
        for i in range(depth):
            stride = 2 if i == 0 and stage > 1 else 1
            x = block(x, width, stride, f"layer{stage}.{i}", normalise)
    x = linear(pool(x, "avg"), classes, "fc") if include_top else pool(x, pooling)
    return keras.Model(image, x, name=name)


def _basic_block(
    x: keras.KerasTensor, width: int, stride: int, name: str, norm: Norm
) -> keras.KerasTensor:
    """Add two 3x3 convolutions, `[N, H, W, C] -> [N, H / stride, W / stride, width]`."""
    y = convolution(x, width, 3, stride, f"{name}.conv1")
    y = relu(norm(y, f"{name}.bn1"), f"{name}.relu1")
    y = convolution(y, width, 3, 1, f"{name}.conv2")
    return _add_shortcut(x, norm(y, f"{name}.bn2"), stride, name, norm)


def _bottleneck(
    x: keras.KerasTensor, width: int, stride: int, name: str, norm: Norm
) -> keras.KerasTensor:
    """Add 1x1, 3x3 and 1x1 convolutions: `[N, H, W, C] -> [N, H / stride, W / stride, 4 * width]`."""
    y = convolution(x, width, 1, 1, f"{name}.conv1")
    y = relu(norm(y, f"{name}.bn1"), f"{name}.relu1")
    y = convolution(y, width, 3, stride, f"{name}.conv2")
    y = relu(norm(y, f"{name}.bn2"), f"{name}.relu2")
    y = convolution(y, 4 * width, 1, 1, f"{name}.conv3")
    return _add_shortcut(x, norm(y, f"{name}.bn3"), stride, name, norm)


def _add_shortcut(
    x: keras.KerasTensor, y: keras.KerasTensor, stride: int, name: str, norm: Norm
) -> keras.KerasTensor:
    """Add the shortcut x to y `[N, H, W, C]`, projected if its shape differs, then ReLU."""
    if stride > 1 or x.shape[-1] != y.shape[-1]:
        x = convolution(x, y.shape[-1], 1, stride, f"{name}.downsample.0")
        x = norm(x, f"{name}.downsample.1")
    return relu(keras.layers.Add(name=f"{name}.add")([y, x]), f"{name}.relu")

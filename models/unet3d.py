"""The three-dimensional U-Net of nnU-Net."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import keras
import numpy as np

from tfbig.models.torch_layers import EPSILON

FEATURES = (32, 64, 128, 256, 320, 320)
SLOPE = 0.01
"""Slope of LeakyReLU for negative numbers."""

Triple: TypeAlias = tuple[int, int, int]


def unet3d(
    num_classes: int,
    num_channels: int = 1,
    features: Sequence[int] = FEATURES,
    strides: int | Sequence[int | Sequence[int]] = 2,
    kernel_sizes: int | Sequence[int | Sequence[int]] = 3,
    num_convolutions: int = 2,
    deep_supervision: bool = False,
    sizes: Sequence[int | None] = (None, None, None),
    name: str = "unet3d",
) -> keras.Model:
    """Build the 3-D U-Net that nnU-Net plans for volumes, with instance normalisation, as a plain Keras model.

    Reproduces `PlainConvUNet` of the package dynamic-network-architectures 0.4.4, with the arguments that
    nnU-Net passes: convolutions with bias, InstanceNorm with scale and shift, LeakyReLU, strided convolutions
    instead of pooling, and transposed convolutions whose kernels are their strides. Weights are drawn as its
    `InitWeights_He` does. Isensee et al., "nnU-Net: a self-configuring method for deep learning-based biomedical
    image segmentation", Nature Methods 18, 2021. With deep supervision, two classes and all else by default the
    network has 31 195 594 parameters.

        encoder stage i   num_convolutions x (convolution, InstanceNorm, LeakyReLU); the first one has strides[i]
        decoder stage i   transposed convolution by strides[i + 1], encoder stage i behind it along the channels,
                          num_convolutions x (convolution, InstanceNorm, LeakyReLU); a 1 x 1 x 1 convolution to classes

    Args:
        num_classes: Number of classes, background included.
        num_channels: Channels of the volume.
        features: Channels of each encoder stage, the finest first.
        strides: Stride of each stage, for each axis or for all three. One number stands for all stages but the first,
            which has stride 1.
        kernel_sizes: Odd kernel sizes of each stage, for each axis or for all three; one number stands for all stages.
        num_convolutions: Convolutions of each stage of encoder and decoder.
        deep_supervision: Whether every decoder stage is an output, the finest first, as for training in nnU-Net;
            by default only the finest is. See `tfbig.losses.deep_supervision`.
        sizes: `(D, H, W)` of the volumes, None where it varies. A size that is known may be any number: zeros behind
            the volume fill it to a multiple of the total stride, and the outputs are cropped. Sizes that vary must
            be multiples of the total stride.
        name: Name of the model.

    Returns:
        A plain `keras.Model`. Input `[N, D, H, W, num_channels]`; output `[N, D, H, W, num_classes]`, logits. With deep
        supervision, a list of them, where output i has the size of the volume divided by the strides up to stage i,
        rounded up.

    Raises:
        ValueError: Lengths that do not agree, an even kernel, or fewer than two stages.
    """
    stages = len(features)
    if stages < 2:
        raise ValueError(f"features={tuple(features)} of unet3d: expected two stages or more.")
    steps = each_stage([1, *[strides] * (stages - 1)] if isinstance(strides, int) else strides)
    kernels = each_stage([kernel_sizes] * stages if isinstance(kernel_sizes, int) else kernel_sizes)
    _check(stages, steps, kernels)
    total = np.prod(steps, 0)
    volume = keras.Input((*sizes, num_channels), name="volume")
    x, skips = _filled(volume, total), []
    for i, (width, kernel, stride) in enumerate(zip(features, kernels, steps, strict=True)):
        for j in range(num_convolutions):
            x = _block(x, width, kernel, (1, 1, 1) if j else stride, f"encoder{i}.{j}")
        skips.append(x)
    outputs: list[keras.KerasTensor] = []
    for i in reversed(range(stages - 1)):
        x = _transposed(x, features[i], steps[i + 1], f"decoder{i}.up")
        x = keras.layers.Concatenate(name=f"decoder{i}.skip")([x, skips[i]])
        for j in range(num_convolutions):
            x = _block(x, features[i], kernels[i], (1, 1, 1), f"decoder{i}.{j}")
        if deep_supervision or i == 0:
            logits = _convolution(x, num_classes, (1, 1, 1), (1, 1, 1), f"logits{i}")
            stride = np.prod(steps[: i + 1], 0)
            outputs.insert(0, _cropped(logits, sizes, total, stride, f"logits{i}.crop"))
    return keras.Model(volume, outputs if deep_supervision else outputs[0], name=name)


def each_stage(sizes: Sequence[int | Sequence[int]]) -> tuple[Triple, ...]:
    """Write the sizes of stages with one number for each axis.

    Args:
        sizes: For each stage one number, or one for each axis.
    """
    triples = (np.broadcast_to(size, 3).tolist() for size in sizes)
    return tuple((d, h, w) for d, h, w in triples)


def _check(stages: int, steps: Sequence[Triple], kernels: Sequence[Triple]) -> None:
    for what, given in (("strides", steps), ("kernel_sizes", kernels)):
        if len(given) != stages:
            raise ValueError(
                f"{what} of unet3d are for {len(given)} stages, features for {stages}. Pass one for each stage."
            )
    if any(size % 2 == 0 for kernel in kernels for size in kernel):
        raise ValueError(f"kernel_sizes={tuple(kernels)} of unet3d: expected odd numbers.")


def _filled(volume: keras.KerasTensor, total: np.ndarray) -> keras.KerasTensor:
    """Fill a volume with zeros behind it, to multiples of the total stride along axes of known size."""
    missing = [
        0 if size is None else -size % int(t)
        for size, t in zip(volume.shape[1:4], total, strict=True)
    ]
    if not any(missing):
        return volume
    return keras.layers.ZeroPadding3D([(0, n) for n in missing], name="fill")(volume)


def _cropped(
    x: keras.KerasTensor,
    sizes: Sequence[int | None],
    total: np.ndarray,
    stride: np.ndarray,
    name: str,
) -> keras.KerasTensor:
    """Crop what lies behind the volume from an output."""
    excess = [
        0 if size is None else (-size % int(t)) // int(s)
        for size, t, s in zip(sizes, total, stride, strict=True)
    ]
    return keras.layers.Cropping3D([(0, n) for n in excess], name=name)(x) if any(excess) else x


def _block(
    x: keras.KerasTensor, width: int, kernel: Triple, stride: Triple, name: str
) -> keras.KerasTensor:
    """Add a convolution, InstanceNorm and LeakyReLU."""
    x = _convolution(x, width, kernel, stride, f"{name}.conv")
    x = keras.layers.GroupNormalization(-1, epsilon=EPSILON, name=f"{name}.norm")(x)
    return keras.layers.LeakyReLU(SLOPE, name=f"{name}.relu")(x)


def _convolution(
    x: keras.KerasTensor, width: int, kernel: Triple, stride: Triple, name: str
) -> keras.KerasTensor:
    """Add a convolution, padded by half of the kernel on all sides as in torch; "same" depends on the stride."""
    strided = any(s > 1 for s in stride)
    if strided and any(k > 1 for k in kernel):
        x = keras.layers.ZeroPadding3D([k // 2 for k in kernel], name=f"{name}.pad")(x)
    return keras.layers.Conv3D(
        width,
        kernel,
        strides=stride,
        padding="valid" if strided else "same",
        kernel_initializer=_he_normal(),
        name=name,
    )(x)


def _transposed(x: keras.KerasTensor, width: int, stride: Triple, name: str) -> keras.KerasTensor:
    return keras.layers.Conv3DTranspose(
        width, stride, strides=stride, kernel_initializer=_he_normal(), name=name
    )(x)


def _he_normal() -> keras.initializers.Initializer:
    return keras.initializers.VarianceScaling(2 / (1 + SLOPE**2), "fan_in", "untruncated_normal")

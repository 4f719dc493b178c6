"""The 3-D U-Net against torch's functions, and against the published number of parameters."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import torch_weights
from exactness import assert_same

from tfbig.models.unet3d import FEATURES, each_stage, unet3d

ANISOTROPIC = {"strides": [1, (1, 2, 2), (2, 2, 1)], "kernel_sizes": [(1, 3, 3), 3, (3, 3, 1)]}
FLOAT32_SLOPE = 1e-7
"""Error of the slope 0.01, which TensorFlow's LeakyReLU has in float32."""


def count(features: tuple[int, ...], kernel: int, stride: int, channels: int, classes: int) -> int:
    """Number of parameters of nnU-Net's network, by hand."""
    each, total, width = kernel**3, 0, channels
    for f in features:  # two convolutions with bias, each with scale and shift
        total += each * width * f + f + 2 * f + each * f * f + f + 2 * f
        width = f
    for fine, coarse in pairwise(features):
        total += stride**3 * coarse * fine + fine
        total += each * 2 * fine * fine + 3 * fine + each * fine * fine + 3 * fine
        total += fine * classes + classes
    return total


def test_number_of_parameters() -> None:
    """PlainConvUNet of dynamic-network-architectures 0.4.4 with nnU-Net's arguments has 31195594 parameters."""
    assert count(FEATURES, 3, 2, 1, 2) == 31195594
    assert unet3d(2, deep_supervision=True).count_params() == 31195594
    small = unet3d(3, 2, (4, 6, 8), 2, 1, deep_supervision=True)
    assert small.count_params() == count((4, 6, 8), 1, 2, 2, 3)
    of_second_output = 6 * 3 + 3
    assert unet3d(3, 2, (4, 6, 8), 2, 1).count_params() == small.count_params() - of_second_output


@pytest.mark.torch
@pytest.mark.parametrize(
    ("options", "size"), [({}, (8, 12, 4)), (ANISOTROPIC, (6, 8, 12))], ids=["cubes", "anisotropic"]
)
def test_equals_torch(options: Any, size: tuple[int, ...], tmp_path: Path, float64: None) -> None:
    model = unet3d(3, 2, (4, 6, 8), deep_supervision=True, **options)
    random = np.random.default_rng(0)
    model.set_weights([0.5 * random.normal(size=w.shape) for w in model.weights])
    x = random.normal(size=(2, *size, 2))
    strides = each_stage(options.get("strides", [1, 2, 2]))
    layers = [layer for layer in model.layers if layer.weights]
    weights = {f"{a.name}/{i}": w for a in layers for i, w in enumerate(a.get_weights())}
    np.savez(tmp_path / "unet.npz", x=x, strides=strides, **weights)
    expected = np.load(torch_weights.write_unet3d(tmp_path / "unet.npz"))
    outputs = [keras.ops.convert_to_numpy(y) for y in model(x)]
    assert_same(outputs, [expected["y0"], expected["y1"]], FLOAT32_SLOPE)


def test_sizes_that_the_stride_does_not_divide() -> None:
    """Equal to the volume with zeros behind it, whose outputs are cropped; here every second voxel, rounded up."""
    sizes = (5, 8, 6)
    model = unet3d(2, 1, (2, 3, 4), sizes=sizes, deep_supervision=True)
    free = unet3d(2, 1, (2, 3, 4), deep_supervision=True)
    free.set_weights(model.get_weights())
    x = np.random.default_rng(0).normal(size=(1, *sizes, 1)).astype("float32")
    fine, coarse = model(x)
    assert (fine.shape, coarse.shape) == ((1, *sizes, 2), (1, 3, 4, 3, 2))
    y = free(np.pad(x, [(0, 0), (0, 3), (0, 0), (0, 2), (0, 0)]))
    assert_same([fine, coarse], [y[0][:, :5, :, :6], y[1][:, :3, :, :3]])


def test_initial_weights() -> None:
    """He's standard deviation for LeakyReLU; biases are 0. For transposed kernels torch counts their outputs."""
    keras.utils.set_random_seed(0)
    model = unet3d(2, 1, (16, 64, 128))
    for name, inputs in (("encoder1.0.conv", 27 * 16), ("decoder0.up", 8 * 16)):
        kernel, bias = model.get_layer(name).get_weights()
        assert kernel.std() == pytest.approx((2 / (1 + 0.01**2) / inputs) ** 0.5, rel=0.02)
        assert not bias.any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"features": (8,)}, "expected two stages"),
        ({"strides": [1, 2]}, "strides of unet3d are for 2 stages, features for 3"),
        ({"kernel_sizes": [3, 3, 3, 3]}, "kernel_sizes of unet3d are for 4 stages"),
        ({"kernel_sizes": (3, 3, (1, 2, 3))}, "expected odd numbers"),
    ],
)
def test_wrong_arguments(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        unet3d(2, **{"features": (2, 3, 4), **arguments})


def test_each_stage() -> None:
    assert each_stage([1, (1, 2, 2)]) == ((1, 1, 1), (1, 2, 2))
    assert prod(each_stage([2])[0]) == 8

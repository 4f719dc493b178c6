"""Weights and labels of deep supervision, against nnU-Net's formulas in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfbig.losses import deep_supervision


def test_loss_weights() -> None:
    assert deep_supervision.loss_weights(1) == [1.0]
    expected = np.array([8, 4, 2, 1, 0]) / 15
    np.testing.assert_allclose(deep_supervision.loss_weights(5), expected, rtol=1e-15)
    with pytest.raises(ValueError, match="expected 1 or more"):
        deep_supervision.loss_weights(0)


def nearest(labels: np.ndarray, axis: int, size: int) -> np.ndarray:
    """Choose voxels as `torch.nn.functional.interpolate(mode="nearest-exact")`."""
    index = np.floor((np.arange(size) + 0.5) * labels.shape[axis] / size).astype(int)
    return labels.take(index, axis)


@pytest.mark.parametrize("convert", [np.asarray, tf.constant], ids=["numpy", "tensor"])
def test_labels_are_those_of_the_nearest_voxels(convert: Any) -> None:
    labels = np.random.default_rng(0).integers(0, 9, (2, 4, 12, 6, 1), np.uint8)
    strides = [(1, 1, 1), (1, 2, 3), (2, 2, 1)]
    first, *others = deep_supervision.labels_of_outputs(convert(labels), 3, strides)
    np.testing.assert_array_equal(first, labels)
    for output, sizes in zip(others, ((4, 6, 2), (2, 3, 2)), strict=True):
        expected = labels
        for axis, size in enumerate(sizes, 1):
            expected = nearest(expected, axis, size)
        np.testing.assert_array_equal(output, expected, strict=True)


@pytest.mark.parametrize("convert", [np.asarray, tf.constant], ids=["numpy", "tensor"])
def test_sizes_are_rounded_up(convert: Any) -> None:
    labels = convert(np.arange(5 * 4 * 6).reshape(1, 5, 4, 6))
    *_, coarse = deep_supervision.labels_of_outputs(labels, 3)
    assert coarse.shape == (1, 2, 1, 2)
    np.testing.assert_array_equal(np.asarray(coarse)[0, :, 0, :] // 24, [[2, 2], [4, 4]])


def test_too_few_strides() -> None:
    with pytest.raises(ValueError, match="for 2 stages, expected one for each of 3 outputs"):
        deep_supervision.labels_of_outputs(np.zeros((1, 4, 4, 4)), 3, [1, 2])

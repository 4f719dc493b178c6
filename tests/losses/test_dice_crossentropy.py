"""Dice and cross-entropy against NumPy, voxel by voxel."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from exactness import FLOAT64, assert_same

from tfbig.losses import DiceCrossentropy

CLASSES = 3


def case(n: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Labels and logits; class 2 does not occur in the first image."""
    random = np.random.default_rng(0)
    labels = random.integers(0, CLASSES, (n, 2, 3, 4, 1))
    labels[0] = np.minimum(labels[0], 1)
    return labels, random.normal(size=(n, 2, 3, 4, CLASSES))


def overlap(labels: np.ndarray, p: np.ndarray, kind: int, smooth: float) -> float:
    """Soft Dice coefficient of one class over all voxels."""
    y = (labels == kind).astype(float)
    return (2 * (p[..., kind] * y).sum() + smooth) / (p[..., kind].sum() + y.sum() + smooth)


def expected(labels: np.ndarray, logits: np.ndarray, batch: bool, smooth: float) -> float:
    """Cross-entropy minus Dice."""
    labels = labels[..., 0]
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    entropy = -np.log(np.take_along_axis(p, labels[..., None], -1)).mean()
    images = [slice(None)] if batch else range(len(labels))
    dice = [overlap(labels[i], p[i], k, smooth) for i in images for k in range(1, CLASSES)]
    return float(entropy - np.mean(dice))


@pytest.mark.parametrize("smooth", [1e-5, 1.0])
@pytest.mark.parametrize("batch", [False, True])
def test_value(batch: bool, smooth: float, float64: None) -> None:
    labels, logits = case()
    loss = DiceCrossentropy(smooth, batch)
    assert_same(np.float64(loss(labels, logits)), expected(labels, logits, batch, smooth), FLOAT64)
    assert float(loss(labels[..., 0], logits)) == float(loss(labels, logits))


def test_weights(float64: None) -> None:
    labels, logits = case()
    entropy = np.float64(DiceCrossentropy(dice_weight=0.0)(labels, logits))
    sparse = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    assert_same(entropy, np.float64(sparse(labels, logits)), FLOAT64)
    dice = np.float64(DiceCrossentropy(crossentropy_weight=0.0)(labels, logits))
    both = np.float64(DiceCrossentropy(dice_weight=2.0, crossentropy_weight=3.0)(labels, logits))
    assert_same(both, 2 * dice + 3 * entropy, FLOAT64)


def test_lowest_value() -> None:
    """Perfect predictions; a class that neither occurs nor is predicted has Dice 1."""
    labels, _ = case()
    logits = 1e4 * np.eye(CLASSES, dtype="float32")[labels[..., 0]]
    assert float(DiceCrossentropy()(labels, logits)) == pytest.approx(-1, abs=1e-6)


def test_configuration() -> None:
    loss = DiceCrossentropy(0.5, True, 2.0, 3.0, "sum", "mine")
    copy = keras.losses.deserialize(keras.losses.serialize(loss))
    assert copy.get_config() == loss.get_config()
    assert (copy.smooth, copy.batch_dice, copy.name) == (0.5, True, "mine")


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda: DiceCrossentropy(-1.0), "smooth is -1.0, expected 0 or more"),
        (
            lambda: DiceCrossentropy()(np.zeros((1, 2, 1)), np.zeros((1, 2, 1))),
            "expected logits of two classes or more",
        ),
    ],
)
def test_errors(run: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run()

"""Matches of instances, against counts by hand and an exhaustive loop."""

from __future__ import annotations

import numpy as np
import pytest

from tfbig.metrics import match_instances


def by_loop(labels: np.ndarray, predicted: np.ndarray, overlap: float) -> tuple[int, int, int]:
    real, found = set(np.unique(labels)) - {0}, set(np.unique(predicted)) - {0}
    pairs = 0
    for one in real:
        for other in found:
            a, b = labels == one, predicted == other
            pairs += (a & b).sum() / (a | b).sum() > overlap
    return pairs, len(real) - pairs, len(found) - pairs


def test_random_instances() -> None:
    rng = np.random.default_rng(0)
    blocks = np.kron(rng.integers(0, 6, (6, 5)), np.ones((4, 4), int))
    moved = np.roll(blocks, 1, axis=1) * (rng.random(blocks.shape) < 0.95)
    found = match_instances(blocks, moved, (0.5, 0.6, 0.9))
    assert [tuple(each) for each in found] == [by_loop(blocks, moved, t) for t in (0.5, 0.6, 0.9)]


def test_extremes() -> None:
    labels = np.array([[1, 1, 0, 7, 7]])
    (same,) = match_instances(labels, labels * 3)
    assert tuple(same) == (2, 0, 0) and same.average_precision == 1.0
    (none,) = match_instances(labels, np.zeros_like(labels))
    assert tuple(none) == (0, 2, 0) and none.average_precision == 0.0
    (empty,) = match_instances(np.zeros((2, 2), int), np.zeros((2, 2), int))
    assert empty.average_precision == 1.0
    half = np.array([[1, 0, 0, 7, 7]])  # an overlap of exactly one half does not count
    assert tuple(match_instances(labels, half)[0]) == (1, 1, 1)
    with pytest.raises(ValueError, match=r"overlaps \[0\.4\]; expected equal shapes"):
        match_instances(labels, labels, [0.4])
    with pytest.raises(ValueError, match="expected equal shapes"):
        match_instances(labels, labels[:, 1:])

"""Sets of patches: every patch in one set of a turn, unbiased draws, sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfbig.patchgd import patch_sampling


def chooser(
    sampling: Any, sampler: str = "shuffle", count: Any = 10, scale: str = "unbiased"
) -> Any:
    return patch_sampling.Chooser(sampling, sampler, scale, 3, count, tf.constant([2, 9]))


@pytest.mark.parametrize("sampling", [0.25, 0.3, 3, 1, 1.0, 0.01])
@pytest.mark.parametrize("static", [True, False])
def test_shuffled_sets(sampling: Any, static: bool) -> None:
    choose = chooser(sampling, count=10 if static else tf.constant(10))
    num_sets = int(choose.num_sets)
    turns = []
    for turn in range(3):
        sets = [choose(tf.constant(turn * num_sets + k), lambda: None) for k in range(num_sets)]
        assert all((np.diff(s) > 0).all() for s, _ in sets)  # ascending, no patch twice
        sizes = [s.shape[1] for s, _ in sets]
        assert max(sizes) <= int(choose.size)
        assert max(sizes) - min(sizes) <= 1
        turns.append(np.concatenate([s for s, _ in sets], 1))
        np.testing.assert_array_equal(np.sort(turns[-1]), [list(range(10))] * 3)
        assert all((w.numpy() == num_sets).all() for _, w in sets)
    if num_sets > 1:
        assert (turns[0] != turns[1]).any()
        assert (turns[0][0] != turns[0][1]).any()  # images have different sets


@pytest.mark.parametrize(
    ("sampling", "count", "size"),
    [(0.1, 30, 3), (0.125, 256, 32), (0.25, 121, 31), (0.3, 10, 3), (40, 30, 30), (1.0, 7, 7)],
)
def test_set_size(sampling: Any, count: int, size: int) -> None:
    assert patch_sampling.set_size(sampling, count) == size
    assert int(patch_sampling.set_size(sampling, tf.constant(count))) == size


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["replacement", "attention"])
def test_weighted_draws(sampler: str) -> None:
    """The mean of the weighted sums is the sum over all patches, within five standard errors."""
    values = np.random.default_rng(3).normal(size=10)
    attention = tf.constant([np.arange(1.0, 11)] * 3)
    choose, sums, counts = chooser(4, sampler), [], np.zeros(10)
    for k in range(400):
        indices, weights = choose(tf.constant(k), lambda: attention)
        assert indices.shape == (3, 4)
        sums += list((values[indices.numpy()] * weights.numpy()).sum(1))
        counts += np.bincount(indices.numpy().ravel(), minlength=10)
    assert abs(np.mean(sums) - values.sum()) < 5 * np.std(sums) / len(sums) ** 0.5
    expected = (np.arange(1, 11) / 55 + 0.1) / 2 if sampler == "attention" else np.full(10, 0.1)
    total = counts.sum()
    assert (abs(counts / total - expected) < 5 * np.sqrt(expected / total)).all()


def test_published_weights() -> None:
    for sampler in patch_sampling.SAMPLERS:
        _, weights = chooser(4, sampler, scale="published")(
            tf.constant(1), lambda: tf.ones([3, 10])
        )
        assert (weights.numpy() == 1).all()

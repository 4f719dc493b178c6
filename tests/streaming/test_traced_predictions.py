"""Predictions: one trace for images of all sizes, eagerly, and functions that are made once."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same
from streamed_pairs import both, data, map_and_vector, segmenter


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 2])
def test_predicts_batches_of_all_sizes(steps: int, float64: None) -> None:
    pair = both(map_and_vector)
    x, _ = data(map_and_vector, 5)
    for model in pair:
        model.compile(steps_per_execution=steps)
    actual, expected = (m.predict(x, batch_size=2, verbose=0) for m in pair)
    assert_same(actual, expected, FLOAT64)


def test_one_trace_predicts_images_of_all_sizes(float64: None) -> None:
    big, twin = both(segmenter)
    big.make_predict_function()
    step = big.traced(big.predict_step)
    for size in ((2, 7, 6, 2), (1, 9, 5, 2)):
        x = np.random.default_rng(0).normal(size=size)
        assert_same(step.one((tf.constant(x),)).numpy(), twin.predict(x, verbose=0), FLOAT64)
    assert len(step._traced) == 1


def test_predicts_eagerly(float64: None) -> None:
    big, twin = both(segmenter)
    big.compile(run_eagerly=True)
    x, _ = data(segmenter, 2)
    assert_same(big.predict(x, verbose=0), twin.predict(x, verbose=0), FLOAT64)


def test_predict_function_is_made_once() -> None:
    big, _ = both(segmenter)
    first = big.make_predict_function()
    assert big.make_predict_function() is first
    assert big.make_predict_function(force=True) is not first

"""Scores of predicted classes, and their columns."""

import numpy as np
import pytest

from tfbig.cli.tasks import class_scores


def test_scores():
    probabilities = np.array([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3], [0.2, 0.8]])
    scores = class_scores.scores(np.array([0, 0, 1, 1]), probabilities, 2)
    np.testing.assert_array_equal(scores["confusion"], [[1, 1], [1, 1]])
    assert scores["accuracy"] == 0.5
    assert scores["qwk"] == pytest.approx(0, abs=1e-6)
    assert scores["auc"] == 0.75


def test_softmax():
    probabilities = class_scores.softmax([[1000.0, 1000.0], [0.0, np.log(3)]])
    np.testing.assert_allclose(probabilities, [[0.5, 0.5], [0.25, 0.75]])


def test_columns():
    assert class_scores.columns(("no", "yes"), np.array([0.75, 0.25])) == {
        "predicted": "no",
        "probability_no": 0.75,
        "probability_yes": 0.25,
    }

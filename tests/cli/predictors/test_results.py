"""Inputs, classes and probabilities that all predictors share."""

from argparse import Namespace

import keras
import numpy as np
import pytest

from tfbig import SourceError
from tfbig.cli.predictors import results
from tfbig.sources import ArraySource


def test_class_probabilities():
    logits, sigmoid = keras.layers.Dense(1), keras.layers.Dense(1, activation="sigmoid")
    np.testing.assert_allclose(results.class_probabilities([0.0], logits), [0.5, 0.5])
    np.testing.assert_allclose(results.class_probabilities([0.25], sigmoid), [0.75, 0.25])
    np.testing.assert_allclose(results.class_probabilities([0.0, np.log(3)], logits), [0.25, 0.75])
    softmax = keras.layers.Softmax()
    np.testing.assert_allclose(results.class_probabilities([0.25, 0.75], softmax), [0.25, 0.75])


def test_network_input():
    image = ArraySource(np.full((4, 4, 3), 200, np.uint8))
    gray = results.network_input(image, Namespace(input="inverted-gray"))
    np.testing.assert_array_equal(gray.read(0, 4), np.full((4, 4, 1), 55, np.uint8))
    rgb = results.network_input(gray, Namespace(input="rgb"))
    np.testing.assert_array_equal(rgb.read(0, 4), np.full((4, 4, 3), 55, np.uint8))
    two = ArraySource(np.zeros((4, 4, 2), np.uint8))
    with pytest.raises(SourceError, match="has 2 channels; the network expects rgb"):
        results.network_input(two, Namespace(input="rgb"))


def test_rows_are_replaced(tmp_path):
    for share in (0.25, 0.75):
        results.write_row(tmp_path, {"slide": "a.tif", "share": share})
    assert (tmp_path / "predictions.csv").read_text().split() == ["slide,share", "a.tif,0.75"]

"""Overlap of a prediction with the labels."""

import numpy as np
import pytest

from tfbig.cli.tasks import segmentation_results
from tfbig.sources import ArraySource


def test_overlaps():
    labels = np.zeros((1100, 10, 1), np.uint8)
    labels[:600] = 1
    prediction = np.zeros((1100, 10, 1), np.float32)
    prediction[400:900] = 0.9
    overlaps = segmentation_results.overlaps(ArraySource(labels), ArraySource(prediction))
    expected = {"dice": 400 / 1100, "iou": 200 / 900, "precision": 0.4, "sensitivity": 1 / 3}
    assert overlaps == pytest.approx(expected)
    nothing = segmentation_results.overlaps(ArraySource(labels * 0), ArraySource(prediction * 0))
    assert set(nothing.values()) == {None}

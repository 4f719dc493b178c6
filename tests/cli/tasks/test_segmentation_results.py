"""Overlap of a prediction with the labels."""

import numpy as np
import pytest

import train
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


@pytest.mark.parametrize(
    ("flags", "dice", "expected"),
    [
        (
            [],
            0.0,
            "no tissue was found: training may have been too short. Raise --epochs or --crops.",
        ),
        (
            ["--crop", "whole"],
            0.0,
            "no tissue was found: training may have been too short. Raise --epochs.",
        ),
        ([], 0.1, ""),
        (["--test-only", "run"], 0.0, ""),
    ],
)
def test_advice_if_nothing_was_found(flags, dice, expected):
    settings = train.settings_of(["--task", "segmentation", *flags])
    assert segmentation_results.advice({"test_dice": dice}, settings) == expected

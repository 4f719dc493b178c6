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


def test_over_slides():
    """Slides on which an overlap is undefined do not count."""
    rows = [dict.fromkeys(segmentation_results.OVERLAPS, value) for value in (0.9, 0.7)]
    rows.append({"dice": None, "iou": None, "precision": 0.5, "sensitivity": None})
    results = segmentation_results.over_slides(rows)
    assert results["test_dice"] == pytest.approx(0.8)
    assert results["test_dice_std"] == pytest.approx(0.1)
    assert results["test_precision"] == pytest.approx(0.7)
    assert "test_dice_std" not in segmentation_results.over_slides(rows[:1])


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

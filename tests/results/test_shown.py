"""What is said about the results of a run."""

from __future__ import annotations

from typing import Any

import pytest

from tfbig.results import shown


@pytest.mark.parametrize(
    ("metrics", "tested", "sentence"),
    [
        ({"tested_on": "val", "test_dice": 1}, False, "no test images: <t> is of the validation"),
        ({"tested_on": "test", "test_dice": 1}, True, "begin with <t> are of images that neither"),
        ({"test_auc": 1, "val_loss": 1}, True, "begin with <t> are of images that neither"),
        ({"val_loss": 1}, False, "no test images: <v> is of images by which an epoch may"),
    ],
)
def test_which_images_results_are_of(metrics: dict[str, Any], tested: bool, sentence: str) -> None:
    assert shown.is_tested(metrics) == tested
    assert sentence in shown.about_results(metrics, "<t>", "<v>")

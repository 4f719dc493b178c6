"""What reports and model cards say about the results of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfbig.results import run_folder


def is_tested(metrics: Mapping[str, Any]) -> bool:
    """Return whether there are results of items that were held back.

    Args:
        metrics: Metrics of a training run.
    """
    return metrics.get(run_folder.TESTED_ON) != "val" and any(
        name.startswith("test_") for name in metrics
    )


def about_results(metrics: Mapping[str, Any], test: str = "`test_`", val: str = "`val_`") -> str:
    """Return a sentence on the images that the metrics of a training run are of.

    Args:
        metrics: Metrics of the run.
        test: Start of the names of test metrics, as it is shown.
        val: Start of the names of validation metrics, as it is shown.
    """
    if metrics.get(run_folder.TESTED_ON) == "val":
        return f"There were no test images: {test} is of the validation images, by which an epoch may have been chosen."
    if is_tested(metrics):
        return f"Names that begin with {test} are of images that neither training nor the choice of an epoch saw."
    return f"There were no test images: {val} is of images by which an epoch may have been chosen."

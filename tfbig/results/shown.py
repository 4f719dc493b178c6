"""What reports and model cards say about the settings and the results of a run."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tfbig.results import run_folder
from tfbig.tasks import declared

_SPLITS: Final = {"train": "for training", "val": "for validation", "test": "for testing"}
"""Splits, and what each is for."""


def is_tested(metrics: Mapping[str, Any]) -> bool:
    """Tell whether a training run has metrics of items that were held back."""
    return metrics.get(run_folder.TESTED_ON) != "val" and any(
        name.startswith("test_") for name in metrics
    )


def about_results(metrics: Mapping[str, Any], test: str = "`test_`", val: str = "`val_`") -> str:
    """Say which images the metrics of a training run are of.

    `test` and `val` are the starts of the names of metrics, as they are shown.
    """
    if metrics.get(run_folder.TESTED_ON) == "val":
        return f"There were no test images: {test} is of the validation images, by which an epoch may have been chosen."
    if is_tested(metrics):
        return f"Names that begin with {test} are of images that neither training nor the choice of an epoch saw."
    return f"There were no test images: {val} is of images by which an epoch may have been chosen."


def results(metrics: Mapping[str, Any], classes: Sequence[str]) -> dict[str, Any]:
    """The metrics without the quadratic weighted kappa (`qwk`) of classes without an order.

    `metrics` may also be anything else by the name of a metric; `classes` are empty if they are not known.

    This kappa counts how many classes a prediction is away from the true one, which says something of grades, but
    nothing of tumour types. Classes have an order if there are at most two, or if each name is or contains a number,
    and these numbers increase: 0, 1, 2, or ISUP 0, ISUP 1. `metrics.json` of a run has it in any case.
    """
    if _is_ordered(classes):
        return dict(metrics)
    return {name: value for name, value in metrics.items() if "qwk" not in name.split("_")}


def _is_ordered(classes: Sequence[str]) -> bool:
    numbers = [int(found[0]) for name in classes if (found := re.search("[0-9]{1,9}", name))]
    is_rising = all(low < high for low, high in itertools.pairwise(numbers))
    return len(classes) <= 2 or (len(numbers) == len(classes) and is_rising)


def class_names(predictions: Sequence[Mapping[str, str]]) -> list[str]:
    """The names of the classes or labels that have a probability in `predictions.csv`."""
    columns = predictions[0] if predictions else {}
    start = "probability_"
    return [name.removeprefix(start) for name in columns if name.startswith(start)]


def settings(values: Mapping[str, Any], folder: str | Path) -> dict[str, Any]:
    """The settings that play a part in a run, as a report shows them.

    The shares of the splits are left out where `slides.csv` of the run has the splits, and of a folder of slides, whose
    last one is for validation.
    """
    used = dict(values)
    if "shares" in used:
        shares = used.pop("shares")
        is_drawn = values.get("task") != "segmentation" and not slides(folder)
        if is_drawn and isinstance(shares, list):
            used["shares"] = f"{', '.join(map(str, shares))}, if the data has no splits of its own"
    if not values.get("test_only"):
        used.pop("eval_split", None)  # used by evaluations only
    return used


def items(settings: Mapping[str, Any]) -> str:
    """Return what the items of a run are: slides, images, scenes or volumes."""
    if settings.get("task") == "images" and settings.get("images") == "slides":
        return "slides"
    return declared(settings.get("task")).items


def items_of(predictions: Sequence[Mapping[str, str]]) -> str:
    """Return what the items of a prediction are, by the first column of its table: slides, scenes or volumes."""
    first = next(iter(predictions[0])) if predictions else ""
    return f"{first}s" if first in ("scene", "volume") else "slides"


def slides(folder: str | Path) -> str:
    """Count the slides of a run by split, as "70 train, 10 val, 20 test"; "" if the run has no table of them."""
    rows = run_folder.read_rows(Path(folder) / run_folder.SLIDES)
    splits = [row.get("split") for row in rows]
    return ", ".join(f"{splits.count(n)} {use}" for n, use in _SPLITS.items() if n in splits)

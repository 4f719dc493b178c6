"""The metrics of a finished run, its report, and what is printed at the end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfbig.cli.data.run_data import Data
from tfbig.cli.settings import training
from tfbig.cli.settings.tasks import TrainSettings
from tfbig.results import model_card, report, run_folder, shown
from tfbig.system import unified_memory

_COMPARED = (
    *("mode", "loss", "val_loss", "seconds_per_step"),
    *("planned_bytes", "peak_bytes", "device_peak_bytes"),
)
"""Metrics that are compared with those of the run that `--beside` names."""


def write_metrics(folder: Path, settings: TrainSettings, metrics: Mapping[str, Any]) -> None:
    """Write the metrics, with those of the run that `--beside` names."""
    values, device = dict(metrics), unified_memory.peak_bytes()
    if device is not None:
        values["device_peak_bytes"] = device
    if settings.beside:
        values["beside"] = _compared(values, Path(settings.beside))
    run_folder.write_json(folder / run_folder.METRICS, values)


def tested_on(settings: TrainSettings, data: Data) -> dict[str, str]:
    """The entry of the metrics that says on which split the metrics `test_` of a training run were computed.

    Where there are no items for testing, those for validation are tested; evaluations do not say it.
    """
    return (
        {}
        if settings.test_only
        else {run_folder.TESTED_ON: "test" if data.judged is data.test else "val"}
    )


def say_untested(data: Data, items: str) -> None:
    """Print a line if a training has nothing to test on; `items` are what the data are, in the plural."""
    if data.judged is not data.test:
        print(f"no {items} to test on: results will be those of the validation {items}", flush=True)


def _compared(metrics: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """Read the metrics of another run, and compare the losses."""
    other = run_folder.read_json(run / run_folder.METRICS)
    compared = {key: other[key] for key in _COMPARED if key in other}
    if "loss" in metrics and "loss" in other:
        compared["loss_difference"] = abs(metrics["loss"] - other["loss"])
    return {"run": str(run.resolve()), **compared}


def print_results(numbers: Mapping[str, float], folder: Path) -> None:
    """Write the report and the model card of a finished run, and print the results and the path."""
    page = report.write_report(folder, used=training.in_use)
    if (folder / run_folder.MODEL).exists():  # an evaluation has no model of its own
        model_card.write_card(folder, training.in_use)
    text = "  ".join(f"{key} {value:.4f}" for key, value in numbers.items())
    print(f"{text}\n{_about(folder)}run folder: {folder}\nreport: {page}")


def _about(folder: Path) -> str:
    """Say so in a line if the results are of validation images, for lack of test images; else empty."""
    metrics = run_folder.read_json(folder / run_folder.METRICS)
    is_val = metrics.get(run_folder.TESTED_ON) == "val"
    line = shown.about_results(metrics, "test_")
    return f"{line}\n" if is_val else ""

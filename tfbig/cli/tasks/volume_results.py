"""Results of `--task volume-segmentation`: masks of whole volumes, Dice of each class, and pictures."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfbig.cli import failure_log, volume_masks
from tfbig.cli.data.volume_cases import LabelledVolume, VolumeSplits
from tfbig.cli.settings.volume_segmentation_settings import VolumeSegmentationSettings
from tfbig.cli.tasks import run_results
from tfbig.cli.tasks.task import Models
from tfbig.results import run_folder, volume_figures, volume_montage
from tfbig.system.output_folder import file_in, part_prefix

PICTURES = 12
"""Largest number of volumes that are drawn."""


def write(
    models: Models,
    settings: VolumeSegmentationSettings,
    data: VolumeSplits,
    folder: Path,
    measured: Mapping[str, Any],
) -> None:
    """Write pictures of the first volumes, a table, and last the metrics, with means over the volumes.

    Args:
        models: Models of the run.
        settings: Settings of the run.
        data: Data of the run.
        folder: Run folder.
        measured: Numbers to save with the metrics.
    """
    rows = [
        row
        for _, row in failure_log.results_of(
            enumerate(data.unseen),
            lambda item: evaluate(models.model, item[1], data, folder, item[0] < PICTURES),
            folder,
            settings.strict,
        )
    ]
    run_folder.write_csv(folder / run_folder.PREDICTIONS, rows)
    results = over_volumes(rows)
    peak = {} if "peak_bytes" in measured else {"peak_bytes": run_folder.memory_bytes()[1]}
    run_results.write_metrics(
        folder, settings, {**measured, **results, "volumes": len(rows), **peak}
    )
    curve = {key: measured[key] for key in ("loss", "val_loss") if key in measured}
    run_results.print_results(curve | results, folder)


def over_volumes(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean and the standard deviation of each Dice over the volumes in which it is defined.

    Args:
        rows: Rows of the volumes.
    """
    names = [name for name in rows[0] if name == "dice" or name.startswith("dice_")]
    values = {key: [row[key] for row in rows if row[key] is not None] for key in names}
    defined = {key: numbers for key, numbers in values.items() if numbers}
    means = {f"test_{key}": float(np.mean(numbers)) for key, numbers in defined.items()}
    if len(rows) == 1:
        return means
    return means | {f"test_{key}_std": float(np.std(n)) for key, n in defined.items()}


def evaluate(
    model: Any, volume: LabelledVolume, data: VolumeSplits, folder: Path, drawn: bool
) -> dict[str, Any]:
    """Predict a volume, draw it, and return a row with Dice of each class, on the grid of the file.

    Args:
        model: Model of the run, streamed or plain.
        volume: The volume.
        data: Data of the run.
        folder: Run folder.
        drawn: Whether to draw it.
    """
    with tempfile.TemporaryDirectory(prefix=part_prefix(), dir=folder) as scratch:
        mask = volume_masks.predict(
            model, volume.stored, data.preparation, Path(scratch) / "mask.npy"
        )
        shares = volume_masks.compared(volume.stored_labels, mask, len(data.classes)).dice()
        known = [share for share in shares[1:] if share is not None]
        mean = float(np.mean(known)) if known else None
        if drawn:
            result = "nothing labelled or found" if mean is None else f"Dice {mean:.4f}"
            title = f"{volume.name}: {result}"
            masks = {"labels": volume.stored_labels, "prediction": mask}
            shown = volume.stored, masks, data.classes, title
            volume_figures.planes(file_in(folder, f"{volume.name}.png"), *shown)
            volume_montage.write_view(folder, volume.name, *shown)
    named = zip(data.classes[1:], shares[1:], strict=True)
    return {"volume": volume.name, "dice": mean, **{f"dice_{name}": s for name, s in named}}

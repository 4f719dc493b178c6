"""Results of `--task segmentation`: predictions of whole slides, their overlap with the labels, and pictures."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tfbig
from tfbig.cli import failure_log
from tfbig.cli.data import background
from tfbig.cli.data.slides_and_masks import LabelledSlide
from tfbig.cli.settings.choices import WHOLE
from tfbig.cli.settings.tasks import SegmentationSettings
from tfbig.cli.tasks import run_results
from tfbig.cli.tasks.task import Models
from tfbig.metrics.confusion import OVERLAPS, Confusion
from tfbig.results import figures, run_folder, slide_viewer
from tfbig.sources import Source
from tfbig.sources.names import title_of
from tfbig.system.output_folder import file_in

STRIP_ROWS = 512
SHARES = ("foreground", "computed")
"""Columns that say how much of a slide is computed."""


def write(
    models: Models,
    settings: SegmentationSettings,
    slides: Sequence[LabelledSlide],
    folder: Path,
    measured: Mapping[str, Any],
) -> None:
    """Write a picture of each slide, a table, and last the metrics, with means and deviations over the slides.

    Args:
        models: Models of the run.
        settings: Settings of the run.
        slides: Slides for testing, or for validation.
        folder: Run folder.
        measured: Numbers to save with the metrics.
    """
    skips = settings.background == "skip"
    rows = [
        row
        for _, row in failure_log.results_of(
            slides,
            lambda slide: evaluate_slide(models, slide, folder, settings.class_names, skips),
            folder,
            settings.strict,
        )
    ]
    run_folder.write_csv(folder / run_folder.PREDICTIONS, rows)
    results = over_slides(rows) | _mean_shares(rows)
    peak = {} if "peak_bytes" in measured else {"peak_bytes": run_folder.memory_bytes()[1]}
    metrics = {**measured, **results, "slides": len(rows), **peak}
    run_results.write_metrics(folder, settings, metrics)
    curve = {key: measured[key] for key in ("loss", "val_loss") if key in measured}
    run_results.print_results(curve | results, folder)
    if line := advice(results, settings):
        print(line)


def advice(results: Mapping[str, float], settings: SegmentationSettings) -> str:
    """Return what to do if a trained network has found nothing, in one line; otherwise nothing.

    Args:
        results: Results of the run.
        settings: Settings of the run.
    """
    if settings.test_only or results.get("test_dice") != 0:
        return ""
    more = "--epochs" if settings.crop == WHOLE else "--epochs or --crops"
    return (
        f"no {settings.class_names[1]} was found: training may have been too short. Raise {more}."
    )


def over_slides(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean and the standard deviation of each overlap over the slides on which it is defined.

    Args:
        rows: Rows of the slides.
    """
    values = {key: [row[key] for row in rows if row[key] is not None] for key in OVERLAPS}
    defined = {key: numbers for key, numbers in values.items() if numbers}
    means = {f"test_{key}": float(np.mean(numbers)) for key, numbers in defined.items()}
    if len(rows) == 1:
        return means
    return means | {f"test_{key}_std": float(np.std(n)) for key, n in defined.items()}


def _mean_shares(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the means of the shares of the slides that are foreground and computed, if background was skipped."""
    names = [name for name in SHARES if name in rows[0]]
    return {f"test_{name}": float(np.mean([row[name] for row in rows])) for name in names}


def evaluate_slide(
    models: Models,
    slide: LabelledSlide,
    folder: Path,
    names: tuple[str, str],
    skips: bool = False,
) -> dict[str, Any]:
    """Draw the prediction of a slide, and return a row with its overlap with the labels.

    Args:
        models: Models of the run.
        slide: The slide.
        folder: Run folder.
        names: Names of background and object.
        skips: Whether background is skipped; the row then says how much of the slide is computed.
    """
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        prediction = _whole(models, slide, Path(scratch))
        row: dict[str, Any] = {"slide": slide.name, **overlaps(slide.labels, prediction)}
        if skips:
            row |= _shares(models, slide)
        result = f"no {names[1]}" if row["dice"] is None else f"Dice {row['dice']:.4f}"
        shown = background.overlays(slide.image) if skips else []
        title = f"{slide.name}: {result}"
        draw(folder, title_of(slide.name), slide, prediction, title, names, shown)
    return row


def _shares(models: Models, slide: LabelledSlide) -> dict[str, float]:
    """Return the shares of a slide that are foreground, and that a prediction computes."""
    streamed, image = models.model is not models.twin, slide.padded().image
    plan = models.model.plan(image, training=False) if streamed else None
    return background.shares(slide.image, plan)


def _whole(models: Models, slide: LabelledSlide, scratch: Path) -> Source:
    """Return the prediction of a slide, without its padding."""
    rows, columns = slide.image.shape[:2]
    prediction = predict(models, slide.padded().image, scratch / "tissue.npy")
    return prediction.crop((0, rows), (0, columns))


def overlaps(labels: Source, prediction: Source) -> dict[str, float | None]:
    """Return Dice, IoU, precision and sensitivity of a probability and labels 0 and 1; None if undefined."""
    seen = Confusion.empty(2)
    for start in range(0, labels.shape[0], STRIP_ROWS):
        strip = start, min(start + STRIP_ROWS, labels.shape[0])
        seen.add(labels.read(*strip) > 0, prediction.read(*strip) > 0.5)
    return seen.of_class(1)


def draw(
    folder: Path,
    name: str,
    slide: LabelledSlide,
    prediction: Source,
    title: str,
    names: tuple[str, str],
    others: Sequence[slide_viewer.Overlay] = (),
) -> None:
    """Draw the prediction and the labels of a slide, as a picture and for the zoomable view of the report.

    Args:
        folder: Run folder.
        name: Name of the files.
        slide: The slide.
        prediction: Probability of the object.
        title: Title of the picture.
        names: Names of background and object.
        others: More overlays of the view.
    """
    figures.overlay(file_in(folder, f"{name}.png"), slide.image, slide.labels, prediction, title)
    gray, labels, probabilities = (
        figures.thumbnail(source, slide_viewer.MAX_SIDE)
        for source in (slide.image, slide.labels, prediction)
    )
    found, labelled = probabilities[..., 0] > 0.5, labels[..., 0] > 0
    compared = found * np.where(labelled, 1, 2) + 3 * (labelled & ~found)
    overlays = [
        slide_viewer.class_overlay(
            "prediction and labels", compared, (names[0], "correct", "false", "missed")
        ),
        slide_viewer.class_overlay("prediction", found, names, opacity=0.0),
        *others,
    ]
    slide_viewer.write_view(folder, name, 255 - gray, overlays, title=title)


def predict(models: Models, image: Source, path: Path) -> Source:
    """Return the probability of tissue as a source, streamed to a file or predicted at once."""
    if models.model is not models.twin:
        predicted: Source = models.model.predict_to(image, path)
        return predicted
    whole = image.read(0, image.shape[0])[None]  # [1, H, W, 1]
    np.save(path, models.twin.predict_on_batch(whole)[0].astype(np.float32))
    return tfbig.open(path)

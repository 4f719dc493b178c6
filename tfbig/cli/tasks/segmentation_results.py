"""Results of `--task segmentation`: predictions of whole slides, their overlap with the labels, and pictures."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tfbig
from tfbig.cli.data import background
from tfbig.cli.data.slides_and_masks import LabelledSlide
from tfbig.cli.settings.choices import WHOLE
from tfbig.cli.settings.tasks import SegmentationSettings
from tfbig.cli.tasks.task import Models
from tfbig.metrics.confusion import Confusion
from tfbig.results import figures, slide_viewer
from tfbig.sources import Source
from tfbig.sources.names import title_of
from tfbig.system.output_folder import file_in

STRIP_ROWS = 512
SHARES = ("foreground", "computed")
"""Columns that say how much of a slide is computed."""


def advice(results: Mapping[str, float], settings: SegmentationSettings) -> str:
    """Say in one line what to do if a trained network has found nothing; empty otherwise."""
    if settings.test_only or results.get("test_dice") != 0:
        return ""
    more = "--epochs" if settings.crop == WHOLE else "--epochs or --crops"
    return (
        f"no {settings.class_names[1]} was found: training may have been too short. Raise {more}."
    )


def mean_shares(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Average the shares of the slides that are foreground and computed, if background was skipped.

    `rows` are those of `predictions.csv`.
    """
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

    `names` are those of background and object. With `skips`, the row also says how much of the slide is computed.
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
    """The shares of a slide that are foreground, and that a prediction computes."""
    streamed, image = models.model is not models.twin, slide.padded().image
    plan = models.model.plan(image, training=False) if streamed else None
    return background.shares(slide.image, plan)


def _whole(models: Models, slide: LabelledSlide, scratch: Path) -> Source:
    """Predict a slide, without its padding."""
    rows, columns = slide.image.shape[:2]
    prediction = predict(models, slide.padded().image, scratch / "tissue.npy")
    return prediction.crop((0, rows), (0, columns))


def overlaps(labels: Source, prediction: Source) -> dict[str, float | None]:
    """Compute Dice, IoU, precision and sensitivity of a probability and labels 0 and 1; None if undefined."""
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

    `prediction` is the probability of the object, `names` are those of background and object. `others` are more
    overlays of the view.
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
    """Predict the probability of tissue as a source, streamed to a file or at once."""
    if models.model is not models.twin:
        predicted: Source = models.model.predict_to(image, path)
        return predicted
    whole = image.read(0, image.shape[0])[None]  # [1, H, W, 1]
    np.save(path, models.twin.predict_on_batch(whole)[0].astype(np.float32))
    return tfbig.open(path)

"""Predict masks or classes of slides of any size: files for QuPath, pictures and a table."""

from __future__ import annotations

from tfbig.cli import predictors, slide_batch
from tfbig.cli.settings.slide_settings import PredictSettings


def run(settings: PredictSettings) -> int:
    """Predict every slide and return the exit code."""
    return slide_batch.run(settings, work)


def work(settings: PredictSettings) -> slide_batch.Work[PredictSettings]:
    """Return the work on slides.

    Args:
        settings: Settings of the command.
    """
    predictor = predictors.make(settings)
    return slide_batch.Work("predict", predictor.settings, predictor.predict, predictor.finished)

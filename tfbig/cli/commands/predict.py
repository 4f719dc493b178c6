"""Predict masks, classes, risks or values of slides of any size: files for QuPath, pictures and a table."""

from __future__ import annotations

from tfbig.cli import predictors, slide_batch
from tfbig.cli.input_kinds import VOLUMES
from tfbig.cli.paths import FlagError
from tfbig.cli.settings.slide_settings import PredictSettings
from tfbig.results import pixel_sizes


def run(settings: PredictSettings) -> int:
    """Predict every slide and return the exit code."""
    return slide_batch.run(settings, work)


def work(settings: PredictSettings) -> slide_batch.Work[PredictSettings]:
    """Set up the work on slides.

    Raises:
        FlagError: A flag is for what the run does not predict.
    """
    predictor = predictors.make(settings)
    inputs = predictor.inputs
    if settings.orientation is not None and inputs is not VOLUMES:
        raise FlagError(
            f"--orientation {settings.orientation}: is for volumes, and {settings.model} predicts {inputs.name}. "
            "Remove it."
        )
    return slide_batch.Work(
        "predict",
        predictor.settings,
        predictor.predict,
        predictor.finished,
        inputs,
        pixels=predictor.pixels,
        trained=pixel_sizes.trained_pixels(settings.model),
    )

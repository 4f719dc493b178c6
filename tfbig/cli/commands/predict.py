"""Predict masks, classes, risks or values of slides of any size: files for QuPath, pictures and a table."""

from __future__ import annotations

from tfbig.cli import predictors, slide_batch
from tfbig.cli.data import scales
from tfbig.cli.paths import FlagError
from tfbig.cli.predictors.features import Features
from tfbig.cli.predictors.scenes import Scenes
from tfbig.cli.predictors.volumes import Volumes
from tfbig.cli.settings.slide_settings import PredictSettings

_READS = {Features: "bags", Scenes: "scenes", Volumes: "volumes"}
"""What predictors read that do not read slides."""


def run(settings: PredictSettings) -> int:
    """Predict every slide and return the exit code."""
    return slide_batch.run(settings, work)


def work(settings: PredictSettings) -> slide_batch.Work[PredictSettings]:
    """Return the work on slides.

    Args:
        settings: Settings of the command.

    Raises:
        FlagError: A flag is for what the run does not predict.
    """
    predictor = predictors.make(settings)
    reads = next((what for kind, what in _READS.items() if isinstance(predictor, kind)), "slides")
    if settings.orientation is not None and reads != "volumes":
        raise FlagError(
            f"--orientation {settings.orientation}: is for volumes, and {settings.model} predicts {reads}. Remove it."
        )
    return slide_batch.Work(
        "predict",
        predictor.settings,
        predictor.predict,
        predictor.finished,
        reads,
        pixels=getattr(predictor, "pixels", {}),
        trained=scales.trained_pixels(settings.model),
    )

"""Predictors, one module for each kind of network, and the choice of the one for a model."""

from __future__ import annotations

from typing import Any

from tfbig import PatchGD, SourceError
from tfbig.cli.predictors.bags import Bags
from tfbig.cli.predictors.features import Features
from tfbig.cli.predictors.images import Images
from tfbig.cli.predictors.instances import Instances
from tfbig.cli.predictors.masks import Masks
from tfbig.cli.predictors.predictor import Predictor
from tfbig.cli.predictors.results import load_run
from tfbig.cli.predictors.scenes import Scenes
from tfbig.cli.predictors.volumes import Volumes
from tfbig.cli.settings.slide_settings import PredictSettings
from tfbig.patchgd import PatchGDSegmentation


def make(settings: PredictSettings) -> Predictor:
    """Choose the predictor for `settings.model`, and load the model.

    Raises:
        SourceError: There is no such model, or its inputs and outputs are of another kind.
    """
    plain, config = load_run(settings.model, settings.custom)
    if isinstance(plain, PatchGD):
        return Images(settings, plain, config)
    if isinstance(plain, PatchGDSegmentation):
        return Masks(settings, plain, config)
    (image, *_), (output, *_) = plain.inputs, plain.outputs
    kinds: dict[tuple[int, int], Any] = {
        (5, 5): Volumes,
        (4, 4): Masks,
        (4, 2): Images,
        (5, 2): Bags,
        (3, 2): Features,
    }
    kind = kinds.get((len(image.shape), len(output.shape)))
    if kind is Masks and (settings.instances or config.get("task") == "instances"):
        kind = Instances
    elif Scenes.reads(settings, plain, config):
        kind = Scenes
    if kind is None:
        raise SourceError(
            f"{settings.model}: maps {image.shape} to {output.shape}; expected images [N, H, W, C] to masks "
            "[N, H, W, K] or to classes [N, K], volumes [N, D, H, W, C] to masks [N, D, H, W, K], or bags of tiles "
            "[N, n, H, W, C] or of features [N, n, d] to classes."
        )
    predictor: Predictor = kind(settings, plain, config)
    return predictor

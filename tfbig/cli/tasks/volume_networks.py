"""Network and losses of `--task volume-segmentation`."""

from __future__ import annotations

from typing import Any, TypeAlias

import keras

from tfbig import losses
from tfbig.cli import paths
from tfbig.cli.settings.value_types import box_size
from tfbig.cli.settings.volume_segmentation_settings import VolumeSegmentationSettings
from tfbig.models.unet3d import unet3d

Stride: TypeAlias = tuple[int, int, int]


def make(settings: VolumeSegmentationSettings, classes: int, channels: int) -> keras.Model:
    """Return a new network from volumes `[N, D, H, W, channels]` to logits `[N, D, H, W, classes]`.

    Args:
        settings: Settings of the run.
        classes: Number of classes, background included.
        channels: Channels of the volumes.
    """
    return unet3d(classes, channels, features=settings.stage_filters, strides=strides_of(settings))


def strides_of(settings: VolumeSegmentationSettings) -> tuple[Stride, ...]:
    """Return the strides of all stages, along planes, rows and columns.

    Args:
        settings: Settings of the run.

    Raises:
        FlagError: There are strides for another number of stages, or fewer than two stages.
    """
    stages = len(settings.stage_filters)
    if stages < 2:
        raise paths.FlagError(f"--stage-filters: {stages} stage; expected two or more.")
    strides = settings.strides or ("2x2x2",) * (stages - 1)
    if len(strides) != stages - 1:
        raise paths.FlagError(
            f"--strides: {len(strides)} strides; expected {stages - 1}, one for each of --stage-filters but the first."
        )
    return ((1, 1, 1), *(box_size(stride) for stride in strides))


def loss(settings: VolumeSegmentationSettings) -> Any:
    """A new loss of logits and class indices."""
    if settings.loss == "crossentropy":
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return losses.DiceCrossentropy()

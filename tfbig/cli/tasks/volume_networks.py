"""Network and losses of `--task volume-segmentation`."""

from __future__ import annotations

from typing import Any

import keras

from tfbig import losses
from tfbig.cli.data import prepared_volumes
from tfbig.cli.settings.volume_segmentation_settings import VolumeSegmentationSettings
from tfbig.models.unet3d import unet3d


def make(settings: VolumeSegmentationSettings, classes: int, channels: int) -> keras.Model:
    """Build a network from volumes `[N, D, H, W, channels]` to logits `[N, D, H, W, classes]`, background included."""
    strides = prepared_volumes.strides_of(vars(settings))
    return unet3d(classes, channels, features=settings.stage_filters, strides=strides)


def loss(settings: VolumeSegmentationSettings) -> Any:
    """A new loss of logits and class indices."""
    if settings.loss == "crossentropy":
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return losses.DiceCrossentropy()

"""Losses that train a segmentation of volumes and images as nnU-Net does, and can be streamed."""

from tfbig.losses import deep_supervision
from tfbig.losses.dice_crossentropy import DiceCrossentropy
from tfbig.losses.sums import LossOfSums

__all__ = ["DiceCrossentropy", "LossOfSums", "deep_supervision"]

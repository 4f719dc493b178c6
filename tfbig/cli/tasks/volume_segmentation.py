"""Train a 3-D U-Net on volumes, on crops or whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras

import tfbig
from tfbig.cli import machine, paths
from tfbig.cli.data import dense_items, prepared_volumes, volume_cases
from tfbig.cli.data.run_data import Data
from tfbig.cli.data.volume_cases import LabelledVolume
from tfbig.cli.settings.choices import WHOLE
from tfbig.cli.settings.value_types import box_size
from tfbig.cli.settings.volume_segmentation_settings import VolumeSegmentationSettings
from tfbig.cli.tasks import volume_networks, volume_results
from tfbig.cli.tasks.dense_task import DenseTask, Judged
from tfbig.cli.tasks.task import Curve, Models
from tfbig.metrics import ClassDice
from tfbig.training import Epochs
from tfbig.units import counted


class VolumeSegmentation(DenseTask[VolumeSegmentationSettings]):
    """Training and evaluation with `--task volume-segmentation`."""

    means = ("dice", "dice_*")

    def opened(self, settings: VolumeSegmentationSettings) -> Data:
        """Open the volumes, and print what they are."""
        _check_crop(settings, prepared_volumes.of_config(vars(settings)).stride)
        data = volume_cases.load(settings)
        settings = replace(settings, **data.decided)
        if not settings.test_only and _size(settings) is None:
            whole = [self.padded(settings, data, volume) for volume in data.train.items]
            dense_items.check_batch(whole, settings.batch_size, "volumes")
        print(f"{counted(_channels(data), 'channel')}, classes {', '.join(data.classes)}")
        _print_voxels(settings)
        dense_items.print_splits(settings, data)
        return data

    def classes(self, settings: VolumeSegmentationSettings, data: Data) -> Sequence[str]:
        """The names of the classes."""
        return data.classes

    def network(self, settings: VolumeSegmentationSettings, data: Data) -> keras.Model:
        """Build a new 3-D U-Net."""
        return volume_networks.make(settings, len(data.classes), _channels(data))

    def streamed(self, settings: VolumeSegmentationSettings, twin: keras.Model) -> Any:
        """Stream the network."""
        return tfbig.stream(
            twin,
            machine.budget(settings),
            devices=settings.devices,
            source_dtype="float32",
            plain_if_small=settings.crop != WHOLE,
        )

    def loss(self, settings: VolumeSegmentationSettings) -> Any:
        """The loss that `--loss` names."""
        return volume_networks.loss(settings)

    def metrics(
        self, settings: VolumeSegmentationSettings, data: Data
    ) -> list[keras.metrics.Metric]:
        """The mean Dice of the classes."""
        return [ClassDice(len(data.classes))]

    def crop(self, settings: VolumeSegmentationSettings) -> tuple[int, int, int] | None:
        """The planes, rows and columns of a crop, or None for whole volumes."""
        return _size(settings)

    def training(self, settings: VolumeSegmentationSettings, data: Data) -> Epochs:
        """Epochs of crops at random places, a share of them centred on a label."""
        size, count = _size(settings), self.count(settings, data)
        preparation = prepared_volumes.of_config(vars(settings))
        share, mirror = settings.foreground, settings.augment == "mirror"

        def draw(seed: Sequence[int]) -> Sequence[LabelledVolume]:
            return volume_cases.draw(
                data.train.items, size, count, seed, preparation, share, mirror
            )

        return self.epochs_of(settings, data, draw)

    def padded(
        self, settings: VolumeSegmentationSettings, data: Data, item: LabelledVolume
    ) -> LabelledVolume:
        """Pad a whole volume so that the strides of the network divide it."""
        return volume_cases.whole(item, prepared_volumes.of_config(vars(settings)))

    def curve(self, settings: VolumeSegmentationSettings) -> Curve:
        """Return what the learning curve shows."""
        return Curve(
            {"loss": settings.loss.replace("_", " "), "dice": "Dice"}, "validation volumes"
        )

    def judge(
        self,
        models: Models,
        settings: VolumeSegmentationSettings,
        data: Data,
        item: LabelledVolume,
        folder: Path,
        draws: bool,
    ) -> Judged:
        """Predict a volume, draw it, and return Dice of each class on the grid of the file."""
        preparation = prepared_volumes.of_config(vars(settings))
        row = volume_results.evaluate(models.model, item, preparation, data.classes, folder, draws)
        return Judged(row)


def _size(settings: VolumeSegmentationSettings) -> tuple[int, int, int] | None:
    """The planes, rows and columns of a crop, or None for whole volumes."""
    return None if settings.crop == WHOLE else box_size(settings.crop)


def _check_crop(settings: VolumeSegmentationSettings, stride: tuple[int, int, int]) -> None:
    """Check that crops fit the network.

    Raises:
        FlagError: They do not.
    """
    size = _size(settings)
    if size is None:
        return
    if any(n % step for n, step in zip(size, stride, strict=True)):
        fits = "x".join(
            str(max(round(n / step), 1) * step) for n, step in zip(size, stride, strict=True)
        )
        raise paths.FlagError(
            f"--crop {settings.crop}: must be multiples of {'x'.join(map(str, stride))}, the total stride of the "
            f"network. Use --crop {fits}, or fewer --stage-filters."
        )


def _channels(data: Data) -> int:
    """Return the number of channels of the volumes."""
    channels: int = data.train.items[0].image.shape[3]
    return channels


def _print_voxels(settings: VolumeSegmentationSettings) -> None:
    """Print how the network reads the volumes."""
    spacing, window = settings.spacing, settings.intensity_window
    voxels = "as stored" if spacing is None else " x ".join(f"{n:g}" for n in spacing) + " mm"
    values = "mean 0 and deviation 1"
    if window is not None:
        values = "{:g} to {:g} mapped to -1 to 1".format(*window)
    print(f"voxels {voxels}, orientation {settings.orientation}, values {values}")

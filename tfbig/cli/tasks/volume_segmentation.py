"""Train a 3-D U-Net on volumes, on crops or whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

import tfbig
from tfbig.cli import machine, paths
from tfbig.cli.data import dense_items, prepared_volumes, volume_cases
from tfbig.cli.data.volume_cases import LabelledVolume, VolumeSplits
from tfbig.cli.settings.choices import WHOLE
from tfbig.cli.settings.value_types import box_size
from tfbig.cli.settings.volume_segmentation_settings import VolumeSegmentationSettings
from tfbig.cli.tasks import volume_networks, volume_results
from tfbig.cli.tasks.dense_task import DenseTask, Judged
from tfbig.cli.tasks.task import Curve, Models
from tfbig.metrics import ClassDice
from tfbig.training import Epochs
from tfbig.units import counted


class VolumeSegmentation(DenseTask[VolumeSegmentationSettings, VolumeSplits]):
    """Training and evaluation with `--task volume-segmentation`."""

    means = ("dice", "dice_*")

    def opened(self, settings: VolumeSegmentationSettings) -> VolumeSplits:
        """Return the volumes, and print what they are."""
        stride = prepared_volumes.total_stride(volume_networks.strides_of(settings))
        _check_crop(settings, stride)
        data = volume_cases.load(settings, stride)
        if not settings.test_only and _size(settings) is None:
            whole = [volume_cases.whole(volume, data.preparation) for volume in data.train]
            dense_items.check_batch(whole, settings.batch_size, "volumes")
        print(f"{counted(data.channels, 'channel')}, classes {', '.join(data.classes)}")
        _print_voxels(data)
        dense_items.print_splits(settings, data)
        return data

    def classes(self, settings: VolumeSegmentationSettings, data: VolumeSplits) -> Sequence[str]:
        """Return the names of the classes."""
        return data.classes

    def network(self, settings: VolumeSegmentationSettings, data: VolumeSplits) -> keras.Model:
        """Return a new 3-D U-Net."""
        return volume_networks.make(settings, len(data.classes), data.channels)

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
        self, settings: VolumeSegmentationSettings, data: VolumeSplits
    ) -> list[keras.metrics.Metric]:
        """Return the mean Dice of the classes."""
        return [ClassDice(len(data.classes))]

    def crop(self, settings: VolumeSegmentationSettings) -> tuple[int, int, int] | None:
        """The planes, rows and columns of a crop, or None for whole volumes."""
        return _size(settings)

    def training(self, settings: VolumeSegmentationSettings, data: VolumeSplits) -> Epochs:
        """Return epochs of crops at random places, a share of them centred on a label."""
        size, count = _size(settings), self.count(settings, data)
        mirror = settings.augment == "mirror"

        def draw(seed: Sequence[int]) -> Sequence[LabelledVolume]:
            return volume_cases.draw(
                data.train, size, count, seed, data.preparation, settings.foreground, mirror
            )

        return self.epochs_of(settings, data, draw)

    def padded(
        self, settings: VolumeSegmentationSettings, data: VolumeSplits, item: LabelledVolume
    ) -> LabelledVolume:
        """Return a whole volume that the strides of the network divide."""
        return volume_cases.whole(item, data.preparation)

    def curve(self, settings: VolumeSegmentationSettings) -> Curve:
        """What the learning curve shows."""
        return Curve(
            {"loss": settings.loss.replace("_", " "), "dice": "Dice"}, "validation volumes"
        )

    def judge(
        self,
        models: Models,
        settings: VolumeSegmentationSettings,
        data: VolumeSplits,
        item: LabelledVolume,
        folder: Path,
        draws: bool,
    ) -> Judged:
        """Predict a volume, draw it, and return Dice of each class on the grid of the file."""
        return Judged(volume_results.evaluate(models.model, item, data, folder, draws))


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


def _print_voxels(data: VolumeSplits) -> None:
    """Print how the network reads the volumes."""
    preparation = data.preparation
    spacing = preparation.spacing
    voxels = "as stored" if spacing is None else " x ".join(f"{n:g}" for n in spacing) + " mm"
    values = "mean 0 and deviation 1"
    if preparation.window is not None:
        values = "{:g} to {:g} mapped to -1 to 1".format(*preparation.window)
    print(f"voxels {voxels}, orientation {preparation.orientation}, values {values}")

"""Train a 3-D U-Net on volumes, on crops or whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import keras

import tfbig
from tfbig import sources
from tfbig.cli import machine, paths
from tfbig.cli.data import prepared_volumes, volume_cases
from tfbig.cli.data.volume_cases import LabelledVolume, VolumeSplits
from tfbig.cli.settings.choices import WHOLE
from tfbig.cli.settings.value_types import box_size
from tfbig.cli.settings.volume_segmentation_settings import VolumeSegmentationSettings
from tfbig.cli.tasks import fitting, run_results, volume_networks, volume_results
from tfbig.cli.tasks.task import Curve, History, Models, Plans, Task
from tfbig.data.worker_shards import Shard
from tfbig.metrics import ClassDice
from tfbig.training import Epochs
from tfbig.units import counted


class VolumeSegmentation(Task[VolumeSegmentationSettings, VolumeSplits]):
    """Training and evaluation with `--task volume-segmentation`."""

    measured = ("loss", "val_loss", "dice", "val_dice", "seconds_per_step")

    def load(self, settings: VolumeSegmentationSettings) -> VolumeSplits:
        """Return the volumes, and print what they are."""
        stride = prepared_volumes.total_stride(volume_networks.strides_of(settings))
        _check_crop(settings, stride)
        data = volume_cases.load(settings, stride)
        print(f"{counted(data.channels, 'channel')}, classes {', '.join(data.classes)}")
        _print_voxels(data)
        if settings.test_only:
            print(f"evaluating {settings.test_only} on {_names(data.test)}", flush=True)
        else:
            _print_volumes(settings, data)
        return data

    def models(self, settings: VolumeSegmentationSettings, data: VolumeSplits) -> Models:
        """Return new models; the plain one is compiled without metrics, so that any Keras can load it."""
        keras.config.set_dtype_policy(settings.precision)
        keras.utils.set_random_seed(settings.seed)
        twin = volume_networks.make(settings, len(data.classes), data.channels)
        twin = machine.synchronize_norm(settings, twin)
        model = twin if machine.is_plain(settings) else _stream(twin, settings)
        optimizer = fitting.make_optimizer(settings, _steps(settings, data))
        weights = [fitting.loss_weight(settings)]
        loss = volume_networks.loss(settings)
        twin.compile(optimizer, loss, loss_weights=weights)
        metrics = [ClassDice(len(data.classes))]
        model.compile(optimizer, loss, loss_weights=weights, metrics=metrics)
        return Models(model, twin)

    def plans(
        self, models: Models, settings: VolumeSegmentationSettings, data: VolumeSplits
    ) -> Plans | None:
        """Return the plans of a step; plain Keras has none."""
        if settings.test_only or models.model is models.twin:
            return None
        size = _size(settings)
        batch = (settings.batch_size, *size, data.channels) if size else _largest(data, data.train)
        return Plans(
            models.model.plan(batch), models.model.plan(_largest(data, data.val), training=False)
        )

    def fit(
        self,
        models: Models,
        settings: VolumeSegmentationSettings,
        data: VolumeSplits,
        folder: Path,
    ) -> History:
        """Train from the last checkpoint, and return the history of all epochs."""
        epochs, validation = _epochs(settings, data)
        monitor = f"val_{settings.monitor}"
        return fitting.fit_and_keep(models, settings, folder, epochs, validation, monitor)

    def curve(self, settings: VolumeSegmentationSettings) -> Curve:
        """Return what the learning curve shows."""
        return Curve(
            {"loss": settings.loss.replace("_", " "), "dice": "Dice"}, "validation volumes"
        )

    def write_results(
        self,
        models: Models,
        settings: VolumeSegmentationSettings,
        data: VolumeSplits,
        folder: Path,
        measured: Mapping[str, Any],
    ) -> None:
        """Write pictures and a table, and last the metrics."""
        measured = {**measured, **run_results.tested_on(settings, data.test)}
        volume_results.write(models, settings, data, folder, measured)


def _size(settings: VolumeSegmentationSettings) -> tuple[int, int, int] | None:
    """Return planes, rows and columns of a crop, or None for whole volumes."""
    return None if settings.crop == WHOLE else box_size(settings.crop)


def _check_crop(settings: VolumeSegmentationSettings, stride: tuple[int, int, int]) -> None:
    """Check that crops fit the network, and that whole volumes are not batched.

    Raises:
        FlagError: They do not, or are.
    """
    size = _size(settings)
    if size is None:
        if settings.batch_size > 1:
            raise paths.FlagError(
                f"--batch-size {settings.batch_size}: whole volumes differ in size. Use --batch-size 1, and "
                "--accumulate "
                "to average gradients."
            )
        return
    if any(n % step for n, step in zip(size, stride, strict=True)):
        fits = "x".join(
            str(max(round(n / step), 1) * step) for n, step in zip(size, stride, strict=True)
        )
        raise paths.FlagError(
            f"--crop {settings.crop}: must be multiples of {'x'.join(map(str, stride))}, the total stride of the "
            "network. "
            f"Use --crop {fits}, or fewer --stage-filters."
        )


def _names(volumes: Sequence[LabelledVolume]) -> str:
    """Return the names of volumes, or the first and their number."""
    names = [volume.name for volume in volumes]
    return ", ".join(names) if len(names) <= 10 else f"{names[0]} and {len(names) - 1} others"


def _print_voxels(data: VolumeSplits) -> None:
    """Print how the network reads the volumes."""
    preparation = data.preparation
    spacing = preparation.spacing
    voxels = "as stored" if spacing is None else " x ".join(f"{n:g}" for n in spacing) + " mm"
    values = "mean 0 and deviation 1"
    if preparation.window is not None:
        values = "{:g} to {:g} mapped to -1 to 1".format(*preparation.window)
    print(f"voxels {voxels}, orientation {preparation.orientation}, values {values}")


def _print_volumes(settings: VolumeSegmentationSettings, data: VolumeSplits) -> None:
    """Print what is trained, validated and tested on."""
    print(f"mode {settings.mode}, precision {settings.precision}, seed {settings.seed}")
    crops = f"{settings.crops} crops of {settings.crop} from " if _size(settings) else "all of "
    print(f"training on {crops}{_names(data.train)}")
    print(f"validating on all of {_names(data.val)}, not trained on")
    if data.test:
        print(f"testing on all of {_names(data.test)}, not trained on", flush=True)


def _items(settings: VolumeSegmentationSettings, data: VolumeSplits) -> int:
    """Return the number of crops or whole volumes of an epoch."""
    return settings.crops if _size(settings) else len(data.train)


def _steps(settings: VolumeSegmentationSettings, data: VolumeSplits) -> int:
    """Return the number of batches of an epoch; the last may be smaller."""
    return -(-_items(settings, data) // settings.batch_size)


def _largest(data: VolumeSplits, volumes: Sequence[LabelledVolume]) -> sources.Volume:
    """Return the image of the volume with the most voxels, with its padding."""
    padded = [volume_cases.whole(volume, data.preparation).image for volume in volumes]
    return max(padded, key=lambda image: image.nbytes)


def _stream(twin: Any, settings: VolumeSegmentationSettings) -> Any:
    """Return the model streamed strip by strip, with the same variables."""
    return tfbig.stream(
        twin,
        machine.budget(settings),
        devices=settings.devices,
        source_dtype="float32",
        plain_if_small=settings.crop != WHOLE,
    )


def _epochs(settings: VolumeSegmentationSettings, data: VolumeSplits) -> tuple[Epochs, Epochs]:
    """Return the crops to train on, drawn again in every epoch, and the volumes for validation."""
    dense = machine.is_plain(settings)
    whole = [volume_cases.whole(volume, data.preparation) for volume in data.val]
    count, size = _items(settings, data), _size(settings)
    mirror = settings.augment == "mirror"

    @lru_cache(maxsize=2)  # a dataset does not hold its crops
    def drawn(epoch: int) -> list[LabelledVolume]:
        seed = [settings.seed, epoch]
        return volume_cases.draw(
            data.train, size, count, seed, data.preparation, settings.foreground, mirror
        )

    def batches(shard: Shard) -> Any:
        items = shard.items(count, settings.batch_size)
        chosen = [drawn(shard.epoch)[i] for i in items]
        return volume_cases.dataset(chosen, settings.batch_size, dense)

    def validation(shard: Shard) -> Any:
        chosen = [whole[i] for i in shard.items(len(whole), 1)]
        return volume_cases.dataset(chosen, 1, dense)

    names = [f"{v.name} {v.image.shape}" for v in data.train]
    return Epochs(_steps(settings, data), batches, names), Epochs(len(whole), validation)

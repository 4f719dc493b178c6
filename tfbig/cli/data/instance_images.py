"""Images with instances for `--task instances`: crops of them, and the maps that a network learns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from scipy import ndimage

from tfbig import sources
from tfbig.cli.data import dense_items, masked_images
from tfbig.cli.data.run_data import Data, Opened
from tfbig.cli.settings.instance_settings import InstanceSettings
from tfbig.cli.settings.value_types import crop_size
from tfbig.data import epochs
from tfbig.data.worker_shards import ALL_BATCHES, Shard
from tfbig.errors import SourceError
from tfbig.sources.table import Row
from tfbig.units import counted

Pixels = npt.NDArray[np.uint8]
MAPS = 2
"""Foreground and distance."""


@dataclass(frozen=True)
class InstanceImage:
    """An image and the numbers of its instances.

    Attributes:
        name: Path of the file, relative to the folder of the data.
        image: `[H, W, C]`, uint8.
        labels: `[H, W, 1]`, integers: 0 is background.
    """

    name: str
    image: sources.Source
    labels: sources.Source

    @cached_property
    def maps(self) -> Pixels:
        """Compute the maps of all pixels; they stay in memory."""
        return maps_of(self.labels.read(0, self.labels.shape[0])[..., 0])


def maps_of(labels: npt.NDArray[Any]) -> Pixels:
    """Compute what a network learns of instances: foreground, and distance from the border of the instance.

    `labels` are instances `[H, W]`, integers from 1; 0 is background. The maps are `[H, W, 2]` in units of 1/255.

    The distance is that to the nearest pixel outside of the instance, divided by the largest one of the instance.
    """
    maps = np.zeros((*labels.shape, MAPS), np.uint8)
    maps[..., 0] = np.where(labels > 0, 255, 0)
    numbers, dense = np.unique(labels, return_inverse=True)
    dense = dense.reshape(labels.shape) + (numbers[0] > 0)
    for number, box in enumerate(ndimage.find_objects(dense), 1):
        inside = np.pad(dense[box] == number, 1)
        distance = ndimage.distance_transform_edt(inside)[1:-1, 1:-1]
        scaled = np.rint(distance * (255 / distance.max())).astype(np.uint8)
        maps[box][..., 1] = np.maximum(maps[box][..., 1], scaled)
    return maps


def load(settings: InstanceSettings) -> Data:
    """Open the images of `--data` by split; in an evaluation those for testing alone.

    Raises:
        SourceError: There is no folder, the table is wrong, a split has no image that can be used, or the images differ
            in their number of channels.
        FlagError: An image is smaller than a crop.
    """
    data = masked_images.load(settings, _open)
    counts = sorted({each.image.shape[2] for each in data.every})
    if len(counts) > 1:
        raise SourceError(
            f"--data {settings.data}: has images of {' and '.join(map(str, counts))} channels; expected one number. "
            "Use --channels, or convert some."
        )
    if not settings.test_only:
        sizes = ((each.name, each.image.shape) for each in data.train.items)
        dense_items.check_crop(sizes, crop_size(settings.crop), 2**settings.depth)
    return data


def crops(part: Opened, settings: InstanceSettings) -> int:
    """Count the crops of an epoch of the images of a split."""
    pixels = sum(math.prod(each.image.shape[:2]) for each in part.items)
    return settings.crops or max(len(part.items), pixels // math.prod(crop_size(settings.crop)))


def drawn(part: Opened, settings: InstanceSettings, shard: Shard = ALL_BATCHES) -> tf.data.Dataset:
    """The batches of an epoch of random crops: images uint8 `[N, h, w, C]`, maps float32 `[N, h, w, 2]`.

    The images must exist as long as the dataset. `shard` has the batches of this worker, and the epoch to start
    with.
    """
    size = crop_size(settings.crop)
    count = crops(part, settings)
    return epochs.dataset(
        partial(_crop, part.items, size, settings.augment),
        count,
        settings.batch_size,
        _spec(size, part.items[0].image.shape[2]),
        seed=settings.seed,
        shuffle=True,
        shard=shard,
    ).batch(settings.batch_size)


def whole(part: Opened, stride: int, shard: Shard = ALL_BATCHES) -> tf.data.Dataset:
    """Whole images and their maps, padded to multiples of a stride, one at a time.

    The images must exist as long as the dataset. `shard` has the batches of this worker.
    """

    def item(number: int, _: int) -> tuple[Pixels, npt.NDArray[np.float32]]:
        each = part.items[number]
        pad = [(0, -n % stride) for n in each.image.shape[:2]] + [(0, 0)]
        image = np.pad(each.image.read(0, each.image.shape[0]), pad)
        return image, _scaled(np.pad(each.maps, pad))

    spec = _spec((None, None), part.items[0].image.shape[2])
    return epochs.dataset(item, len(part.items), 1, spec, shard=shard).batch(1)


def _spec(size: tuple[int | None, int | None], channels: int) -> tuple[tf.TensorSpec, ...]:
    return tf.TensorSpec([*size, channels], tf.uint8), tf.TensorSpec([*size, MAPS], tf.float32)


def _crop(
    images: Sequence[InstanceImage],
    size: tuple[int, int],
    augment: str,
    number: int,
    seed: int,
) -> tuple[Pixels, npt.NDArray[np.float32]]:
    """Crop an image, and its maps, at a random place."""
    each, rng = images[number % len(images)], np.random.default_rng(seed)
    firsts = [int(rng.integers(n - m + 1)) for n, m in zip(each.image.shape, size, strict=False)]
    rows, columns = ((first, first + n) for first, n in zip(firsts, size, strict=True))
    both = [each.image.read_window(rows, columns), each.maps[slice(*rows), slice(*columns)]]
    if augment != "none":
        turns = int(rng.integers(4)) if size[0] == size[1] else 0
        flips = tuple(axis for axis in (0, 1) if rng.integers(2))
        both = [np.rot90(np.flip(pixels, flips), turns) for pixels in both]
    image = both[0]
    if augment == "intensities":
        factor, middle, shift = (rng.uniform(*limits, image.shape[2]) for limits in _CHANGES)
        changed = (image.astype(np.float64) - 255 * middle) * factor + 255 * (middle + shift)
        image = np.rint(np.clip(changed, 0, 255)).astype(np.uint8)
    return np.ascontiguousarray(image), _scaled(both[1])


_CHANGES = ((0.7, 1.4), (0.3, 0.7), (-0.15, 0.15))
"""Contrast, the intensity that it leaves unchanged, and brightness."""


def _scaled(maps: Pixels) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(maps, np.float32) / np.float32(255)


def _open(row: Row, settings: InstanceSettings) -> InstanceImage:
    """Open an image and its instances.

    Raises:
        SourceError: One cannot be opened, they differ in size, the image has not 8 bits, or instances have no numbers
            of their own.
    """
    (image_file, mask_file), low_high = row["files"], settings.percentiles
    image = sources.OnDisk(
        image_file,
        channels=settings.channels,
        z=settings.z,
        percentiles=None if low_high is None else (low_high[0], low_high[1]),
    )
    if image.dtype != np.uint8:
        raise SourceError(
            f"{image.name}: has samples of {image.dtype}; expected 8 bits (uint8). Use --percentiles 1 99.8."
        )
    labels = sources.OnDisk(mask_file, reader=sources.LABELS)
    if labels.shape != (*image.shape[:2], 1) or labels.dtype.kind not in "ui":
        raise SourceError(
            f"{labels.name}: is {labels.shape[0]} x {labels.shape[1]} pixels of {counted(labels.shape[2], 'channel')} "
            f"of {labels.dtype}; expected {image.shape[0]} x {image.shape[1]} of 1, the size of {image.name}, in "
            "integers: a number for each instance."
        )
    numbers = labels.read(0, labels.shape[0])[..., 0]
    if len(np.unique(numbers[numbers > 0])) == 1 and ndimage.label(numbers)[1] > 1:
        raise SourceError(
            f"{labels.name}: has the same number, {numbers.max()}, in {ndimage.label(numbers)[1]} separate regions; "
            "expected a number for each instance. Number them, for example with skimage.measure.label."
        )
    return InstanceImage(row["image"], image, labels)

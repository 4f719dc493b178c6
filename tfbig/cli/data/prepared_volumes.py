"""Volumes as a network reads them: values, orientation, spacing, normalised; and masks back on the grid of the file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import numpy.typing as npt

from tfbig import sources
from tfbig.cli.paths import FlagError
from tfbig.cli.settings.choices import STORED
from tfbig.cli.settings.value_types import box_size
from tfbig.errors import SourceError
from tfbig.sources import Volume
from tfbig.sources.volumes.grid import turn_to
from tfbig.sources.volumes.views import PaddedVolume, Stacked
from tfbig.sources.volumes.volume import MappedVolume
from tfbig.units import counted


@dataclass(frozen=True)
class Preparation:
    """Orientation, spacing, intensities and size in which a network reads volumes.

    Attributes:
        orientation: Such as `'SAR'`, or `'stored'`.
        spacing: Millimetres from plane to plane, row to row and column to column; None for those of the files.
        window: Values that become -1 and 1; None to subtract the mean and divide by the deviation.
        stride: Planes, rows and columns that the network reads are multiples of these.
    """

    orientation: str = STORED
    spacing: tuple[float, float, float] | None = None
    window: tuple[float, float] | None = None
    stride: tuple[int, int, int] = (1, 1, 1)

    def image(self, volume: Volume) -> Volume:
        """Prepare an image, as stored or with its channels stacked, as the network reads it: float32, not padded.

        Raises:
            SourceError: Its orientation or spacing is needed and unknown.
        """
        values: Volume = Normalised(volume.values(), self.window)
        return self._on_grid(values, nearest=False)

    def labels(self, volume: Volume, classes: int) -> Volume:
        """Prepare labels as the loss reads them, float32, not padded.

        Raises:
            SourceError: They have several channels, or their orientation or spacing is needed and unknown.
        """
        if volume.shape[3] != 1:
            raise SourceError(
                f"{volume.name}: holds {counted(volume.shape[3], 'channel')}; expected labels of one, [D, H, W]. Take "
                "the maximum of one-hot labels, or one time of a series."
            )
        return self._on_grid(KnownLabels(volume, classes), nearest=True)

    def padded(self, volume: Volume, fill: float = 0) -> Volume:
        """Add voxels of the value `fill` behind a volume, up to multiples of the stride."""
        return PaddedVolume(volume, self.stride, fill)

    @property
    def fill(self) -> float:
        """Value of voxels outside of an image: the low end of the window, else the mean."""
        return 0.0 if self.window is None else -1.0

    def restored(self, prediction: Volume, volume: Volume) -> Volume:
        """Bring a mask `[D, H, W, 1]`, predicted for the padded image, back to the grid of the file.

        `volume` is the image as stored.
        """
        image = self._on_grid(volume, nearest=True)
        mask: Volume = prediction.crop(*((0, n) for n in image.shape[:3]))
        turned = self._turned(volume)
        if mask.shape[:3] != turned.shape[:3]:
            mask = sources.Resampled(mask, turned.shape[:3], nearest=True)
        if turned is volume:
            return mask
        order, flipped = turn_to(volume.orientation, self.orientation, volume.name)
        back = [order.index(axis) for axis in range(3)]
        return sources.Turned(mask, back, [flipped[axis] for axis in back])

    def _turned(self, volume: Volume) -> Volume:
        return volume if self.orientation == STORED else volume.turned(self.orientation)

    def _on_grid(self, volume: Volume, nearest: bool) -> Volume:
        """Bring a volume to the orientation and the spacing of the network."""
        turned = self._turned(volume)
        return turned if self.spacing is None else sources.at_spacing(turned, self.spacing, nearest)


@final
class Normalised(MappedVolume):
    """An image with values of about 1: of a window, or with mean 0 and deviation 1 in each channel.

    The volume has real values, float32. The ends of the window become -1 and 1, and values outside are clipped;
    without a window, mean and deviation count.

    Voxels that are NaN or infinite become 0. The mean and the deviation of all others are computed plane by plane when
    the volume is first read.
    """

    def __init__(self, volume: Volume, window: tuple[float, float] | None) -> None:
        super().__init__(volume, np.float32, volume.name)
        self._range = window

    def _convert(self, samples: npt.NDArray[Any]) -> npt.NDArray[Any]:
        centre, scale = self._centre_and_scale
        values: npt.NDArray[Any] = (samples.astype(np.float64) - centre) / scale
        values = values if self._range is None else np.clip(values, -1, 1)
        values[~np.isfinite(samples)] = 0
        return values.astype(np.float32)

    @cached_property
    def _centre_and_scale(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """What is subtracted, and then divided by, for each channel."""
        if self._range is not None:
            low, high = self._range
            return np.array([(low + high) / 2]), np.array([(high - low) / 2])
        return mean_and_deviation(self._inner)


def mean_and_deviation(volume: Volume) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Measure mean and standard deviation of each channel, 1 if it is 0; voxels that are no number do not count.

    Planes are added by the algorithm of Chan et al., "Updating formulae and a pairwise algorithm" (1979).
    """
    count = np.zeros(volume.shape[3])
    mean, squares = np.zeros(volume.shape[3]), np.zeros(volume.shape[3])
    for plane in range(volume.shape[0]):
        values = volume.read(plane, plane + 1).reshape(-1, volume.shape[3]).astype(np.float64)
        known = np.isfinite(values)
        number = known.sum(0)
        own = np.where(known, values, 0).sum(0) / np.maximum(number, 1)
        spread = np.where(known, (values - own) ** 2, 0).sum(0)
        total = np.maximum(count + number, 1)
        squares += spread + (own - mean) ** 2 * count * number / total
        mean += (own - mean) * number / total
        count += number
    deviation = np.sqrt(squares / np.maximum(count, 1))
    return mean, np.where(deviation > 0, deviation, 1)


ROUNDING = 1e-6
"""Largest error of a scaled label: a slope such as 1 / 255 is stored in float32."""


@final
class KnownLabels(MappedVolume):
    """Labels as float32, of which each is checked to be a class."""

    def __init__(self, volume: Volume, classes: int) -> None:
        super().__init__(volume, np.float32, volume.name)
        self._classes = classes

    def _convert(self, samples: npt.NDArray[Any]) -> npt.NDArray[Any]:
        slope, intercept = self._inner.scaling
        values = samples if (slope, intercept) == (1.0, 0.0) else samples * slope + intercept
        labels = np.rint(values)
        near = np.abs(labels - values) <= ROUNDING * (np.abs(labels) + 1)
        known = near & (labels >= 0) & (labels < self._classes)
        if not known.all():
            wrong = np.unique(np.asarray(values)[~known])
            stored = (
                ""
                if values is samples
                else f", stored with slope {slope:g} and intercept {intercept:g}"
            )
            raise SourceError(
                f"{self.name}: has the label {wrong[0]:.6g}{stored}; expected 0 to {self._classes - 1}, one for each "
                f"of {self._classes} classes. Export labels as whole numbers without a scale, or name all classes."
            )
        return labels.astype(np.float32)


def stacked(paths: Sequence[Any], name: str, channels: int | None = None) -> Volume:
    """Stack the image of a case from one file or several, which are opened when they are read.

    `channels` is the number that the network reads; None for any. `name` is for errors.

    Raises:
        SourceError: A file cannot be opened, channels are on different grids, or there is another number of them.
    """
    opened: list[Volume] = [sources.VolumeOnDisk(path) for path in paths]
    volume = opened[0]
    if len(opened) > 1:
        header = volume.header
        volume = Stacked([each.values() for each in opened])
        volume.header = header
    if channels is not None and volume.shape[3] != channels:
        several = (
            "one volume"
            if channels == 1
            else f"{counted(channels, 'channel')}, [D, H, W, {channels}] or a file for each"
        )
        raise SourceError(
            f"{name}: holds {counted(volume.shape[3], 'channel')}; expected {several}. Take one time of a series, or "
            "use the images that the network was trained on."
        )
    return volume


def of_config(config: Mapping[str, Any]) -> Preparation:
    """Return how the network of a run reads volumes.

    Args:
        config: Settings of the run, as by `vars` or of its file.

    Raises:
        FlagError: There are strides for another number of stages, or fewer than two stages.
    """
    planes, rows, columns = (math.prod(axis) for axis in zip(*strides_of(config), strict=True))
    spacing, window = config["spacing"], config["intensity_window"]
    return Preparation(
        config["orientation"] or STORED,
        None if spacing is None else (spacing[0], spacing[1], spacing[2]),
        None if window is None else (window[0], window[1]),
        (planes, rows, columns),
    )


def strides_of(config: Mapping[str, Any]) -> tuple[tuple[int, int, int], ...]:
    """Return the strides of all stages of the network of a run, along planes, rows and columns.

    Args:
        config: As in `of_config`.

    Raises:
        FlagError: There are strides for another number of stages, or fewer than two stages.
    """
    stages = len(config["stage_filters"])
    if stages < 2:
        raise FlagError(f"--stage-filters: {stages} stage; expected two or more.")
    strides = config["strides"] or ("2x2x2",) * (stages - 1)
    if len(strides) != stages - 1:
        raise FlagError(
            f"--strides: {len(strides)} strides; expected {stages - 1}, one for each of --stage-filters but the first."
        )
    return ((1, 1, 1), *(box_size(stride) for stride in strides))

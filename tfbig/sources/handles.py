"""Sources found by the handle or path that a dataset carries."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple, final

from tfbig.errors import SourceError
from tfbig.geometry.background import Background
from tfbig.sources.augmentation import Augmentation, Augmented, AugmentedEach, AugmentedImage
from tfbig.sources.bags.bag import Bag
from tfbig.sources.files import PathLike, cannot_open
from tfbig.sources.open_files import OpenFiles
from tfbig.sources.slides.opening import LABELS, Header, header_of_file, open, open_slide
from tfbig.sources.slides.stacks import Plane
from tfbig.sources.source import Readable, RowArray, Source, registered
from tfbig.sources.volumes.opening import describe_volume
from tfbig.sources.volumes.volume import Box, Turned, Volume

TURNED: Final = "?axes="
"""Text between the handle of a volume and its axes in another order: `tfbig:7?axes=102`."""
_IMAGES: Final = OpenFiles()
_VOLUMES: Final = OpenFiles(128, lambda: shutil.disk_usage(tempfile.gettempdir()).free)
"""Open volumes: decoded samples of compressed ones take space in the temporary folder, at most what is free there."""


def resolve(handle: str) -> Readable:
    """Find the source or bag of a handle, or open the source of a path.

    The 16 files used last stay open. A file that leaves them is closed as soon as nobody reads
    from it, and a file that was replaced is opened again.

    Args:
        handle: `Source.handle`, `Source.changed_handle`, `Bag.handle`, `Bag.drawn_handle`, or a
            path that `open` accepts. The engine appends the order of the axes to that of a volume.

    Returns:
        The source or bag.

    Raises:
        SourceError: The handle is not registered in this process, or the file cannot be opened.

    Example:
        >>> source = tfbig.open(np.ones((4, 5), "uint8"))
        >>> with source.lent() as handle:
        ...     tfbig.sources.resolve(handle) is source
        True
        >>> np.save("slide.npy", np.full((4, 5), 7, "uint8"))
        >>> int(tfbig.sources.resolve("slide.npy").read(3, 4).max())
        7
    """
    plain, _, order = handle.partition(TURNED)
    readable = _resolve_registered(plain) if plain.startswith("tfbig:") else _resolve_file(plain)
    if not order:
        return readable
    assert isinstance(readable, Volume)  # only volumes are turned
    return Turned(readable, [int(axis) for axis in order])


class _Selection(NamedTuple):
    """Resolution and reader of a slide; hashable, as part of the key of an open file."""

    level: int | None = 0
    mpp: float | None = None
    magnification: float | None = None
    step: float | None = None
    pixel: float | None = None
    reader: str | None = None
    channels: tuple[int | str, ...] | None = None
    z: Plane = None
    percentiles: tuple[float, float] | None = None

    def open(self, path: str) -> Source:
        """Open a file at this resolution."""
        if self == _Selection(self.level):
            return open(path, self.level or 0)
        slide = open_slide(
            path,
            mpp=self.pixel,
            reader=self.reader,
            channels=self.channels,
            z=self.z,
            percentiles=self.percentiles,
        )
        if self.step is not None:
            return slide.scaled(self.step)
        return slide.at(mpp=self.mpp, magnification=self.magnification, level=self.level)


_FINEST: Final = _Selection()


@final
class OnDisk(Source):
    """An image on disk whose file is opened when it is read.

    Of all such images, the 16 files read last stay open. Use it for data sets of more files than
    may be open at once, or than fit in memory decoded.

    Args:
        path: The file, as in `open_slide`.
        level: Pyramid level. If no other resolution is set either, it is 0, the finest.
        mpp: Micrometres per pixel to read the slide at, as in `Slide.at`.
        magnification: Magnification to read the slide at, as in `Slide.at`.
        step: Factor by which the slide is smaller than level 0, as in `Slide.scaled`.
        pixel: Micrometres per pixel at level 0, for files that do not specify it.
        reader: Reader, as in `open_slide`.
        channels: Channels, as in `open_slide`.
        z: Plane of a stack, as in `open_slide`.
        percentiles: Percentiles that become 0 and 255, as in `open_slide`.

    Raises:
        SourceError: The file cannot be opened, or not at this resolution; when it is read, the
            file was replaced by an image of another shape or dtype.
        ValueError: More than one of `level`, `mpp`, `magnification` and `step` is set.

    Example:
        >>> np.save("slide.npy", np.arange(64, dtype="uint8").reshape(8, 8))
        >>> tfbig.sources.OnDisk("slide.npy").read(7, 8)[0, :3, 0].tolist()
        [56, 57, 58]
        >>> tfbig.sources.OnDisk("slide.npy", mpp=1.0, pixel=0.5).shape
        (4, 4, 1)
    """

    def __init__(
        self,
        path: PathLike,
        level: int | None = None,
        *,
        mpp: float | None = None,
        magnification: float | None = None,
        step: float | None = None,
        pixel: float | None = None,
        reader: str | None = None,
        channels: Sequence[int | str] | None = None,
        z: Plane = None,
        percentiles: tuple[float, float] | None = None,
    ) -> None:
        resolutions = {"level": level, "mpp": mpp, "magnification": magnification, "step": step}
        resolutions = {key: value for key, value in resolutions.items() if value is not None}
        if len(resolutions) > 1:
            raise ValueError(
                f"{path}: received {resolutions}; expected at most one of level, mpp, magnification and step."
            )
        name = os.fspath(path)
        level = level if resolutions else 0
        numbers = None if channels is None else tuple(channels)
        selection = _Selection(
            level, mpp, magnification, step, pixel, reader, numbers, z, percentiles
        )
        labels = reader == LABELS
        if selection == _Selection(level, reader=LABELS if labels else None):
            header: Header | Source = header_of_file(path, level or 0, labels)
        else:
            header = _resolve_file(name, selection)
        super().__init__(header.shape, header.dtype, name)
        self.mpp = header.mpp
        self._selection = selection

    @property
    def background(self) -> Background | None:
        """The part of the image that has one colour; the file is opened to find it."""
        return self._opened().background

    def _read_window(self, start: int, stop: int, left: int, right: int) -> RowArray:
        return self._opened().read_window((start, stop), (left, right))

    def _colour(self, start: int, stop: int, left: int, right: int) -> RowArray | None:
        return self._opened().colour((start, stop), (left, right))

    def _opened(self) -> Source:
        """Get the open file, which may have been replaced."""
        source = _resolve_file(self.name, self._selection)
        if (source.shape, source.dtype) != (self.shape, self.dtype):
            raise SourceError(
                f"{self.name}: was replaced: it is {source.shape} {source.dtype} now, and was {self.shape} "
                f"{self.dtype} when it was opened. Open it again."
            )
        return source


@final
class VolumeOnDisk(Volume):
    """A volume on disk whose file is opened when it is read.

    Of all volumes on disk, the 128 read last stay open, but no more than 16 if all together are larger than what is
    free in the temporary folder, where compressed ones have decoded samples.

    Args:
        path: The file or folder, as in `open`.

    Raises:
        SourceError: The file cannot be opened; when it is read, it is damaged, or was replaced by another volume.

    Example:
        >>> volume = tfbig.sources.VolumeOnDisk("x.nii.gz")  # doctest: +SKIP
        >>> volume.spacing  # doctest: +SKIP
        (3.0, 0.8, 0.8)
    """

    def __init__(self, path: PathLike) -> None:
        found = describe_volume(path)
        samples = found.samples
        super().__init__(samples.shape, samples.dtype, os.fspath(path), found.grid, found.scaling)
        self.header = found.header

    def _read_box(self, box: Box) -> RowArray:
        volume = _resolve_file(self.name, files=_VOLUMES)
        if not isinstance(volume, Volume) or volume.shape != self.shape:
            raise SourceError(
                f"{self.name}: was replaced: it is {volume.shape} now, and was {self.shape} when it was opened. "
                "Open it again."
            )
        return volume.read_box(*box)


def _resolve_file(path: str, selection: _Selection = _FINEST, files: OpenFiles = _IMAGES) -> Source:
    """Get the open file, or open it."""
    return files.get((*_file_key(path), selection), partial(selection.open, path))


def _resolve_registered(handle: str) -> Readable:
    """Find the registered source or bag, sampled or augmented as the query of the handle specifies."""
    name, _, query = handle.partition("?")
    readable = registered(name)
    if not query:
        return readable
    *numbers, jitter = (part.partition("=")[2] for part in query.split("&"))
    if isinstance(readable, Source):
        seed, augmented = map(int, numbers)
        return AugmentedImage(readable, _change(seed, bool(augmented), float(jitter)))
    count, seed, augmented, each = map(int, numbers)
    assert isinstance(readable, Bag)  # only bags return such handles
    sample = readable.sample(count, seed)
    change = _change(seed, bool(augmented) and not each, float(jitter))
    sample = sample if change == Augmentation() else Augmented(sample, change)
    return AugmentedEach(sample, seed) if each else sample


def _change(seed: int, augmented: bool, jitter: float) -> Augmentation:
    """Draw the augmentation of a seed, with HED jitter."""
    change = Augmentation.draw(seed) if augmented else Augmentation()
    return change.with_jitter(jitter, seed)


def _file_key(path: str) -> tuple[str, int, int, int]:
    try:
        status = os.stat(path)
    except OSError as error:
        raise cannot_open(path, error) from error
    return os.path.abspath(path), status.st_ino, status.st_mtime_ns, status.st_size

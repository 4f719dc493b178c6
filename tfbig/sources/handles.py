"""From the handle or the path that a dataset carries to the source."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import Any, Final, NamedTuple, final

from tfbig.errors import SourceError
from tfbig.sources.bags.augmentation import Augmentation, Augmented, AugmentedImage
from tfbig.sources.bags.bag import Bag
from tfbig.sources.files import PathLike, cannot_open
from tfbig.sources.slides.opening import open, open_slide, shape_of_file
from tfbig.sources.source import Readable, Rows, Source, registered

_MAX_OPEN_FILES: Final = 16

_lock = threading.Lock()
_opened: OrderedDict[tuple[Any, ...], Source] = OrderedDict()


def resolve(handle: str) -> Readable:
    """The source or bag behind a handle, or the source behind a path.

    A path is opened once and kept with the 16 paths used last; an older one is closed as soon as
    nobody reads from it. A file that was replaced in the meantime is opened anew.

    Args:
        handle: `Source.handle`, `Bag.handle`, `Bag.drawn_handle`, or whatever path `open` takes.

    Returns:
        The source.

    Raises:
        SourceError: No such handle in this process, or the file cannot be opened.
    """
    if handle.startswith("tfbig:"):
        return _registered(handle)
    return _resolve_file(handle)


class _Look(NamedTuple):
    """How a slide is seen; hashable, as a key of what is open."""

    level: int | None = 0
    mpp: float | None = None
    magnification: float | None = None
    step: float | None = None
    pixel: float | None = None
    reader: str | None = None

    def open(self, path: str) -> Source:
        if self == _Look(self.level):
            return open(path, self.level or 0)
        slide = open_slide(path, mpp=self.pixel, reader=self.reader)
        if self.step is not None:
            return slide.scaled(self.step)
        return slide.at(mpp=self.mpp, magnification=self.magnification, level=self.level)


_FINEST: Final = _Look()


@final
class OnDisk(Source):
    """The image of a file that is open only while it is read, or among the 16 that were read last.

    For data sets of more files than may be open, or than memory holds decoded.

    Args:
        path: As `open_slide` takes it.
        level: Of the pyramid; 0, the finest, where nothing else is given.
        mpp: The slide is seen at so many micrometres per pixel, see `Slide.at`.
        magnification: The slide is seen at it, see `Slide.at`.
        step: The slide is seen so many times smaller than level 0.
        pixel: Micrometres per pixel at level 0, where the file does not say it.
        reader: As `open_slide` takes it.

    Raises:
        SourceError: As `open_slide` and `Slide.at`.
        ValueError: More than one of `level`, `mpp`, `magnification` and `step` is given.
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
    ) -> None:
        given = [n for n in (level, mpp, magnification, step) if n is not None]
        if len(given) > 1:
            raise ValueError(f"{path}: level, mpp, magnification, step: one of them, not {given}.")
        name = os.fspath(path)
        look = _Look(level if given else 0, mpp, magnification, step, pixel, reader)
        if look == _Look(look.level):
            shape, dtype = shape_of_file(path, look.level or 0)
            super().__init__(shape, dtype, name)
        else:
            source = _resolve_file(name, look)
            super().__init__(source.shape, source.dtype, name)
            self.mpp = source.mpp
        self._look = look

    def _read(self, start: int, stop: int) -> Rows:
        return self._read_window(start, stop, 0, self.shape[1])

    def _read_window(self, start: int, stop: int, left: int, right: int) -> Rows:
        source = _resolve_file(self.name, self._look)
        if (source.shape, source.dtype) != (self.shape, self.dtype):
            raise SourceError(
                f"{self.name}: is {source.shape} {source.dtype} now and was {self.shape} {self.dtype}; it was "
                "replaced. Open it again."
            )
        return source.read_window((start, stop), (left, right))


def _resolve_file(path: str, look: _Look = _FINEST) -> Source:
    with _lock:
        key = (*_file_key(path), look)
        source = _opened.pop(key, None) or look.open(path)
        _opened[key] = source
        if len(_opened) > _MAX_OPEN_FILES:
            _opened.popitem(last=False)  # closes with the last reference, so never under a reader
        return source


def _registered(handle: str) -> Readable:
    """What is registered, a sample of it, or it changed."""
    name, _, query = handle.partition("?")
    found = registered(name)
    if not query:
        return found
    numbers = [int(part.partition("=")[2]) for part in query.split("&")]
    if isinstance(found, Source):
        return AugmentedImage(found, Augmentation.draw(*numbers))
    count, seed, augmented = numbers
    assert isinstance(found, Bag)  # others give no such handle
    drawn = found.sample(count, seed)
    return Augmented(drawn, Augmentation.draw(seed)) if augmented else drawn


def _file_key(path: str) -> tuple[str, int, int, int]:
    try:
        status = os.stat(path)
    except OSError as error:
        raise cannot_open(path, error) from error
    return os.path.abspath(path), status.st_ino, status.st_mtime_ns, status.st_size

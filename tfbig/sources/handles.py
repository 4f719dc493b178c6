"""From the handle or the path that a dataset carries to the source."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import Final, final

from tfbig.errors import SourceError
from tfbig.sources.augmented import Augmentation, Augmented
from tfbig.sources.bags import Bag
from tfbig.sources.files import PathLike, cannot_open
from tfbig.sources.opening import open, shape_of_file
from tfbig.sources.source import Readable, Rows, Source, registered

_MAX_OPEN_FILES: Final = 16
_FileKey = tuple[str, int, int, int, int]  # path, inode, modification time, size, level

_lock = threading.Lock()
_opened: OrderedDict[_FileKey, Source] = OrderedDict()


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
    return _resolve_file(handle, 0)


@final
class OnDisk(Source):
    """The image of a file that is open only while it is read, or among the 16 that were read last.

    For data sets of more files than may be open, or than memory holds decoded.

    Args:
        path: As `open` takes it.
        level: Of the pyramid of a TIFF file.

    Raises:
        SourceError: As `open`.
    """

    def __init__(self, path: PathLike, level: int = 0) -> None:
        shape, dtype = shape_of_file(path, level)
        super().__init__(shape, dtype, os.fspath(path))
        self._level = level

    def _read(self, start: int, stop: int) -> Rows:
        return self._read_window(start, stop, 0, self.shape[1])

    def _read_window(self, start: int, stop: int, left: int, right: int) -> Rows:
        source = _resolve_file(self.name, self._level)
        if (source.shape, source.dtype) != (self.shape, self.dtype):
            raise SourceError(
                f"{self.name}: is {source.shape} {source.dtype} now and was {self.shape} {self.dtype}; it was "
                "replaced. Open it again."
            )
        return source.read_window((start, stop), (left, right))


def _resolve_file(path: str, level: int) -> Source:
    with _lock:
        key = (*_file_key(path), level)
        source = _opened.pop(key, None) or open(path, level)
        _opened[key] = source
        if len(_opened) > _MAX_OPEN_FILES:
            _opened.popitem(last=False)  # closes with the last reference, so never under a reader
        return source


def _registered(handle: str) -> Readable:
    """What is registered, or a sample of it."""
    name, _, query = handle.partition("?")
    found = registered(name)
    if not query:
        return found
    count, seed, augmented = (int(part.partition("=")[2]) for part in query.split("&"))
    assert isinstance(found, Bag)  # others give no such handle
    drawn = found.sample(count, seed)
    return Augmented(drawn, Augmentation.draw(seed)) if augmented else drawn


def _file_key(path: str) -> tuple[str, int, int, int]:
    try:
        status = os.stat(path)
    except OSError as error:
        raise cannot_open(path, error) from error
    return os.path.abspath(path), status.st_ino, status.st_mtime_ns, status.st_size

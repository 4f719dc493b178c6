"""From the handle or the path that a dataset carries to the source."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import Final

from tfbig.sources.augmented import Augmentation, Augmented
from tfbig.sources.bags import Bag
from tfbig.sources.files import cannot_open
from tfbig.sources.opening import open
from tfbig.sources.source import Readable, Source, registered

_MAX_OPEN_FILES: Final = 16
_FileKey = tuple[str, int, int, int]  # path, inode, modification time, size

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
    with _lock:
        key = _file_key(handle)
        source = _opened.pop(key, None) or open(handle)
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


def _file_key(path: str) -> _FileKey:
    try:
        status = os.stat(path)
    except OSError as error:
        raise cannot_open(path, error) from error
    return os.path.abspath(path), status.st_ino, status.st_mtime_ns, status.st_size

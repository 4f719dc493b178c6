"""Files that stay open while they are among those read last."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Final

from tfbig.sources.source import Source

LEAST: Final = 16
"""Files that stay open whatever their size."""


class OpenFiles:
    """The files read last, which stay open; a file that leaves them is closed as soon as nobody reads from it.

    Threads that ask for a file at the same time wait until one of them has opened it.

    Args:
        most: Largest number of open files.
        room: Function that returns the largest number of bytes of all open images together, if they are more than
            `LEAST`; it is called when a file was opened.
    """

    def __init__(self, most: int = LEAST, room: Callable[[], float] = lambda: math.inf) -> None:
        self.most, self.room = most, room
        self._lock = threading.Lock()
        self._opened: OrderedDict[Hashable, Future[Source]] = OrderedDict()

    def get(self, key: Hashable, open_file: Callable[[], Source]) -> Source:
        """Get an open file, or open it; only the table is locked, since opening a file can take long.

        `key` tells the file from others, and from another that replaces it.
        """
        with self._lock:
            opening = self._opened.pop(key, None)
            is_first = opening is None
            opening = Future() if opening is None else opening
            self._opened[key] = opening
            self._close_old(math.inf)
        if is_first:
            self._open(key, opening, open_file)
        return opening.result()

    def _open(
        self, key: Hashable, opening: Future[Source], open_file: Callable[[], Source]
    ) -> None:
        """Open a file for all threads that wait for it."""
        try:
            opening.set_result(open_file())
        except BaseException as error:
            with self._lock:
                if self._opened.get(key) is opening:
                    del self._opened[key]
            opening.set_exception(error)
            return
        room = self.room()
        with self._lock:
            self._close_old(room)

    def _close_old(self, room: float) -> None:
        """Forget the files read least recently, which closes each with its last reference, so never during a read."""
        while len(self._opened) > self.most or (len(self._opened) > LEAST and self._bytes() > room):
            self._opened.popitem(last=False)

    def _bytes(self) -> int:
        """Sum the bytes of the images that are open."""
        done = (each for each in self._opened.values() if each.done() and not each.exception())
        return sum(each.result().nbytes for each in done)

"""Copies to stores in a background thread, counted by sweep: a sweep waits for its own, and gets their errors alone.

Sweeps of several models and replicas run at the same time, and the strips of one sweep on several devices.
"""

from __future__ import annotations

import threading
import traceback
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import final

MAX_PENDING = 1
"""Most strips of a sweep that wait to be copied to stores; their memory is in use until then."""

MAX_ERRORS = 64
"""Most errors that wait for their sweeps, which may have ended by another error; then the oldest are dropped."""

KEYS = 2**31
"""Keys are int32."""


@final
class PendingCopies:
    """Copies that were requested and are not made, and errors of those that failed, by the key of their sweep."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "tfbig-copies")
        self._changed = threading.Condition()
        self._counts: Counter[int] = Counter()
        self._errors: OrderedDict[int, BaseException] = OrderedDict()
        self._keys = count(1)

    def __len__(self) -> int:
        """Return the number of sweeps with copies that are not made, or with an error."""
        with self._changed:
            return len(self._counts.keys() | self._errors.keys())

    def begin(self) -> int:
        """Return the key of a new sweep."""
        return next(self._keys) % KEYS

    def submit(self, key: int, copy: Callable[[], None]) -> None:
        """Make a copy after all earlier ones, in the background; wait if the sweep has too many that are not made.

        Args:
            key: Key of the sweep.
            copy: Function that copies.

        Raises:
            BaseException: The error of an earlier copy of this sweep; `copy` is not called then.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._counts[key] < MAX_PENDING or key in self._errors)
            self._raise_error(key)
            self._counts[key] += 1
        self._thread.submit(self._run, key, copy)

    def finish(self, key: int) -> None:
        """Wait for all copies of a sweep.

        Args:
            key: Key of the sweep.

        Raises:
            BaseException: The error of one of them.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._counts[key])
            self._raise_error(key)

    def _raise_error(self, key: int) -> None:
        error = self._errors.pop(key, None)
        if error is not None:
            raise error

    def _run(self, key: int, copy: Callable[[], None]) -> None:
        error: BaseException | None = None
        try:
            copy()
        except BaseException as raised:
            error = raised
            traceback.clear_frames(error.__traceback__)  # they hold strips and stores
        with self._changed:
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]
            if error is not None:
                self._errors.setdefault(key, error)
                while len(self._errors) > MAX_ERRORS:
                    self._errors.popitem(last=False)
            self._changed.notify_all()

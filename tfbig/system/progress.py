"""Says how far a long step is: which sweep, which strip.

A step that ends within `QUIET_SECONDS` prints nothing. Set `tfbig.system.progress.show(False)` to print never.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfbig.system import signals

QUIET_SECONDS = 4.0
EVERY_SECONDS = 0.5

_shown: bool | None = None


def show(shown: bool | None) -> None:
    """True prints always, False never, None (the default) where standard error is a terminal."""
    global _shown
    _shown = shown


class Meter:
    """Prints one line that overwrites itself."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.began = self.printed = clock()
        self.open = False

    def tick(self, what: str, index: int, count: int, unit: str = "strip") -> None:
        """Strip `index` of `count` is done.

        Raises:
            Stopped: the work was asked to end.
        """
        signals.check()
        now = self.clock()
        if now - self.began > QUIET_SECONDS and now - self.printed > EVERY_SECONDS:
            self.printed, self.open = now, True
            self._print(f"\r{what}, {unit} {index + 1}/{count}, {now - self.began:.0f} s ")

    def begin(self) -> None:
        """A step starts."""
        self.began = self.clock()

    def end(self) -> None:
        """A step has ended: clears the line."""
        if self.open:
            self._print("\r" + " " * 60 + "\r")
        self.open = False

    def _print(self, text: str) -> None:
        wanted = sys.stderr.isatty() if _shown is None else _shown
        if wanted:
            sys.stderr.write(text)
            sys.stderr.flush()


METER = Meter()


@contextmanager
def telling(what: str, unit: str = "strip") -> Iterator[Callable[[int, int], None]]:
    """Says how far something lasting is: gives what is called with how many parts are done, and of how many."""
    METER.begin()
    try:
        yield lambda done, count: METER.tick(what, done - 1, count, unit)
    finally:
        METER.end()


def _call(function: Callable[..., Any], *arguments: Any) -> tf.Operation:
    return tf.numpy_function(function, list(arguments), [])


def begin(after: tf.Tensor) -> None:
    """Marks, in a graph, the start of a step, once `after` is known."""
    _call(lambda _: METER.begin(), after)


def end(after: tf.Tensor) -> None:
    """Marks, in a graph, the end of a step, once `after` is known."""
    _call(lambda _: METER.end(), after)

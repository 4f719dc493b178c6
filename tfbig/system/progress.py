"""Progress of long work on standard error: what is planned or traced, or the current sweep and strip.

Work that ends within `QUIET_SECONDS` prints nothing. `tfbig.system.progress.show(False)` turns printing off.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tfbig.system import signals

QUIET_SECONDS = 4.0
EVERY_SECONDS = 0.5

_shown: bool | None = None


def show(shown: bool | None) -> None:
    """Turn progress output on or off.

    Args:
        shown: True prints always, False never, None (the default) if standard error is a terminal or a notebook.
    """
    global _shown
    _shown = shown


class Meter:
    """Progress line that overwrites itself.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.began = self.printed = clock()
        self.open = False

    def tick(
        self, what: str, index: int, count: int, unit: str = "strip", rate: bool = False
    ) -> None:
        """Report that a unit of work is done.

        Args:
            what: Name of the work.
            index: Number of the unit, from 0.
            count: Number of units.
            unit: Name of a unit.
            rate: Whether to print how many units are done in a second.

        Raises:
            Stopped: The work was requested to stop.
        """
        seconds = self.clock() - self.began if rate else 0
        speed = f", {(index + 1) / seconds:.3g} {unit}s/s" if seconds > 0 else ""
        self.report(f"{what}, {unit} {index + 1}/{count}{speed}")

    def report(self, what: str) -> None:
        """Report the work in progress.

        Args:
            what: Name of the work.

        Raises:
            Stopped: The work was requested to stop.
        """
        signals.check()
        now = self.clock()
        if now - self.began > QUIET_SECONDS and now - self.printed > EVERY_SECONDS:
            self.printed, self.open = now, True
            self._print(f"\r{what}, {now - self.began:.0f} s ")

    def begin(self) -> None:
        """Start timing the work."""
        self.began = self.clock()

    def end(self) -> None:
        """Clear the line at the end of the work."""
        if self.open:
            self._print("\r" + " " * 60 + "\r")
        self.open = False

    def _print(self, text: str) -> None:
        if _is_seen() if _shown is None else _shown:
            sys.stderr.write(text)
            sys.stderr.flush()


def _is_seen() -> bool:
    """Return whether standard error is a terminal or the output of a notebook, where a line can overwrite itself."""
    return sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel.")


METER = Meter()


@contextmanager
def reporting(
    what: str, unit: str = "strip", rate: bool = False
) -> Iterator[Callable[[int, int], None]]:
    """Report the progress of the work done in this context.

    Args:
        what: Name of the work.
        unit: Name of a unit of work.
        rate: Whether to print how many units are done in a second.

    Yields:
        A function to call with the number of units done and the total number.
    """
    METER.begin()
    try:
        yield lambda done, count: METER.tick(what, done - 1, count, unit, rate)
    finally:
        METER.end()

"""The seconds of each sweep of a training step."""

from __future__ import annotations

import sys
import time
from typing import Any


class SweepTimes:
    """Follows the sweeps of this process, and prints how far they are."""

    def __init__(self) -> None:
        from tfbig.system.progress import METER

        self._ends: dict[str, float] = {}
        tick = METER.tick

        def record(what: str, index: int, count: int, *unit: Any) -> None:
            self._ends[what] = time.perf_counter()
            if index % max(count // 4, 1) == 0:
                print(f"{what} {index + 1}/{count}", file=sys.stderr, flush=True)
            tick(what, index, count, *unit)

        METER.tick = record  # type: ignore[method-assign]
        self.begin()

    def begin(self) -> None:
        """Begin a step."""
        self._ends.clear()
        self._began = time.perf_counter(), time.process_time()

    def end(self) -> dict[str, Any]:
        """Return the seconds of the step until now, those that its cores worked, and those of each sweep."""
        began, used = self._began
        seconds, processor = time.perf_counter() - began, time.process_time() - used
        starts, sweeps = began, {}
        for name, stop in sorted(self._ends.items(), key=lambda item: item[1]):
            sweeps[name], starts = round(stop - starts, 1), stop
        return {
            "seconds": round(seconds, 1),
            "processor_seconds": round(processor, 1),
            "sweeps": sweeps,
        }

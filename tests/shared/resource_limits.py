"""Limits on the time and memory of a block of code."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def cheap() -> Iterator[None]:
    """Check that the block takes less than 2 s of CPU time and 50 MB of memory."""
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    yield
    assert time.process_time() - began < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB

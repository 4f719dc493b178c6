"""Copies into host memory by several threads: one thread copies a third of what a bus to an accelerator does."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

LEAST_BYTES = 2**22
"""Fewest bytes that a thread copies."""

THREADS = (
    min(8, max(1, len(os.sched_getaffinity(0)) // 2)) if hasattr(os, "sched_getaffinity") else 1
)
"""Threads of a copy: eight copy as much as the bus of an H100 (`benchmarks/gpu.py copies`)."""

_POOL = ThreadPoolExecutor(THREADS, "tfbig-parts")


def assign(target: np.ndarray, source: np.ndarray) -> None:
    """Copy `source` to `target`.

    Args:
        target: `[N, rows, ...]`, changed in place.
        source: Array of the same shape.
    """
    _in_parts(np.copyto, target, source)


def add(target: np.ndarray, source: np.ndarray) -> None:
    """Add `source` to `target`.

    Args:
        target: `[N, rows, ...]`, changed in place.
        source: Array of the same shape.
    """
    _in_parts(_add, target, source)


def _add(target: np.ndarray, source: np.ndarray) -> None:
    """Add an array in place. Infinity is a result like any other: the scaling of losses in float16 relies on it."""
    with np.errstate(over="ignore", invalid="ignore"):
        target += source


def _in_parts(
    work: Callable[[np.ndarray, np.ndarray], None], target: np.ndarray, source: np.ndarray
) -> None:
    """Run `work` on rows of both arrays at a time, in several threads if there are many bytes."""
    rows = source.shape[1]
    count = min(THREADS, source.nbytes // LEAST_BYTES, rows)
    if count < 2:
        work(target, source)
        return
    ends = [rows * part // count for part in range(count + 1)]
    places = [slice(*pair) for pair in pairwise(ends)]
    for _ in _POOL.map(lambda place: work(target[:, place], source[:, place]), places):
        pass

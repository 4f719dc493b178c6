"""Files that stay open: how many, how large, and opened once for all threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tfbig.errors import SourceError
from tfbig.sources import ArraySource, Source
from tfbig.sources.open_files import LEAST, OpenFiles


class Opener:
    """A function that opens an image of some bytes, and counts how often it does."""

    def __init__(self, num_bytes: int = 10) -> None:
        self.num_bytes, self.count = num_bytes, 0

    def __call__(self) -> Source:
        self.count += 1
        return ArraySource(np.zeros((1, self.num_bytes), np.uint8))


def test_files_read_last_stay_open() -> None:
    files, openers = OpenFiles(3), [Opener() for _ in range(4)]
    for number in (0, 1, 2, 0, 3, 0, 2, 1):
        files.get(number, openers[number])
    assert [opener.count for opener in openers] == [1, 2, 1, 1]


def test_large_files_are_closed() -> None:
    """Above the least number, files stay open while all together fit."""
    files, openers = OpenFiles(100, lambda: 10 * (LEAST + 4)), [Opener() for _ in range(40)]
    for _ in range(2):
        for number in range(LEAST + 4):
            files.get(number, openers[number])
    assert {opener.count for opener in openers[: LEAST + 4]} == {1}
    for number, opener in enumerate(openers):
        files.get(number, opener)
    files.get(39, openers[39])
    files.get(20, openers[20])
    assert [openers[number].count for number in (39, 20, 19)] == [1, 1, 1]
    files.get(19, openers[19])
    assert openers[19].count == 2


def test_least_files_stay_open_whatever_their_size() -> None:
    files, openers = OpenFiles(100, lambda: 0), [Opener() for _ in range(LEAST)]
    for _ in range(2):
        for number, opener in enumerate(openers):
            files.get(number, opener)
    assert {opener.count for opener in openers} == {1}


def test_threads_open_a_file_once() -> None:
    files, opener, barrier = OpenFiles(), Opener(), threading.Barrier(8)

    def get(_: int) -> Source:
        barrier.wait()
        return files.get("a", opener)

    with ThreadPoolExecutor(8) as pool:
        assert len({id(source) for source in pool.map(get, range(8))}) == 1
    assert opener.count == 1


def test_failed_file_is_opened_again() -> None:
    files, opener = OpenFiles(), Opener()

    def fail() -> Source:
        raise SourceError("damaged")

    with pytest.raises(SourceError, match="damaged"):
        files.get("a", fail)
    assert files.get("a", opener).nbytes == 10

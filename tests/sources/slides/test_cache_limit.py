"""Caches together stay below a limit: the least recently used are emptied, those in use are not."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import tifffile

from tfbig.sources import TiffSource
from tfbig.sources.slides import tiff
from tfbig.sources.slides.cache_limit import CacheLimit


class Counted:
    """A cache that counts how often it was emptied, and may be in use."""

    def __init__(self, in_use: bool = False) -> None:
        self.emptied, self.in_use = 0, in_use

    def empty(self) -> bool:
        self.emptied += not self.in_use
        return not self.in_use


def test_least_recently_used_is_emptied() -> None:
    limit, caches = CacheLimit(100), [Counted() for _ in range(3)]
    limit.used(caches[0], 40)
    limit.used(caches[1], 40)
    limit.used(caches[0], 50)
    assert [cache.emptied for cache in caches] == [0, 0, 0]
    limit.used(caches[2], 30)
    assert [cache.emptied for cache in caches] == [0, 1, 0]
    assert limit.num_bytes == 80


def test_one_may_be_larger_than_the_limit() -> None:
    limit, first, second = CacheLimit(100), Counted(), Counted()
    limit.used(first, 60)
    limit.used(second, 500)
    assert (first.emptied, second.emptied, limit.num_bytes) == (1, 0, 500)


def test_cache_in_use_is_kept() -> None:
    limit, used, idle = CacheLimit(100), Counted(in_use=True), Counted()
    limit.used(used, 60)
    limit.used(idle, 30)
    limit.used(Counted(), 90)
    assert (used.emptied, idle.emptied) == (0, 1)


def test_closed_and_deleted_caches_do_not_count() -> None:
    limit, closed, deleted, kept = CacheLimit(100), Counted(), Counted(), Counted()
    limit.used(closed, 60)
    limit.used(closed, 0)
    limit.used(deleted, 60)
    del deleted
    limit.used(kept, 90)
    assert limit.num_bytes == 90
    assert closed.emptied == 0


@pytest.fixture
def slides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Eight slides of which three fit the limit."""
    monkeypatch.setattr(tiff, "CACHES", CacheLimit(3 * 64 * 64))
    paths = [tmp_path / f"{number}.tif" for number in range(8)]
    for number, path in enumerate(paths):
        pixels = np.full((64, 64), number, np.uint8)
        tifffile.imwrite(path, pixels, tile=(16, 16), compression="deflate")
    return paths


def test_many_open_slides_take_the_memory_of_few(slides: list[Path]) -> None:
    sources = [TiffSource(path) for path in slides]
    for _ in range(2):
        for number, source in enumerate(sources):
            assert (source.read(0, 64) == number).all()
            cached = [sum(t.nbytes for t in each._cached.values()) for each in sources]
            assert sum(cached) == tiff.CACHES.num_bytes <= tiff.CACHES.max_bytes
            assert cached[number] == 64 * 64
    for source in sources:
        source.close()
    assert tiff.CACHES.num_bytes == 0


def test_threads_read_what_is_stored(slides: list[Path]) -> None:
    """Caches that other threads empty meanwhile do not change what is read."""
    sources, wrong = [TiffSource(path, num_threads=1) for path in slides], []

    def read(seed: int) -> None:
        for number in np.random.default_rng(seed).integers(0, len(sources), 60):
            if not (sources[number].read(8, 40) == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)
    assert tiff.CACHES.num_bytes <= tiff.CACHES.max_bytes

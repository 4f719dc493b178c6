"""Compressed streams are read in chunks, from any place, and checked to the end."""

from __future__ import annotations

import bz2
import gzip
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from volume_files import samples

from tfbig.errors import SourceError
from tfbig.sources import untrusted
from tfbig.sources.volumes import compressed

DATA = bytes(range(256)) * 50
LIBRARIES: Any = {"gzip": gzip, "bzip2": bz2}


@pytest.mark.parametrize("kind", LIBRARIES)
def test_chunks(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"header" + LIBRARIES[kind].compress(DATA))
    monkeypatch.setattr(compressed, "CHUNK", 100)
    parts = [*compressed.chunks(path, 1000, kind, start=6, skip=70)]
    assert b"".join(parts) == DATA[70:1070] and max(map(len, parts)) == 100
    assert compressed.beginning(path, 5, kind, 6) == DATA[:5]
    assert compressed.length(path, kind, 6) == len(DATA)
    path.write_bytes(path.read_bytes()[:-5])
    for count in (10, len(DATA)):
        with pytest.raises(SourceError, match=f"truncated: its {kind} data cannot be decompressed"):
            [*compressed.chunks(path, count, kind, start=6)]


@pytest.mark.parametrize("kind", LIBRARIES)
def test_no_flipped_bit_changes_what_is_read(kind: str, tmp_path: Path) -> None:
    """Damage may lengthen the stream, so that its check sum is far behind the bytes that are wanted."""
    path, data = tmp_path / "x", samples("int16", (4, 9, 9)).tobytes()
    stored = LIBRARIES[kind].compress(data[:300]) + LIBRARIES[kind].compress(data[300:])
    rng, refused = np.random.default_rng(0), 0
    for place in range(0, len(stored), 2):
        changed = bytearray(stored)
        changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        try:
            assert b"".join(compressed.chunks(path, len(data), kind)) == data
        except SourceError:
            refused += 1
    assert refused > 0.45 * len(stored)


@pytest.mark.parametrize("kind", LIBRARIES)
def test_bombs_are_refused_by_their_size(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gigabytes that the header asks for, that follow the voxels, or that are skipped."""
    monkeypatch.setattr(untrusted, "ALWAYS_ALLOWED", 2**20)
    path = tmp_path / "x"
    path.write_bytes(LIBRARIES[kind].compress(bytes(2**24)))
    message = r"x: its decompressed data would take .*, but .* are stored"
    for count, skip in ((2**24, 0), (100, 0), (100, 2**60), (2**62, 0), (0, 0)):
        begin = time.perf_counter()
        with pytest.raises(SourceError, match=message):
            [*compressed.chunks(path, count, kind, skip=skip)]
        assert time.perf_counter() - begin < 5
    with pytest.raises(SourceError, match=message):
        compressed.length(path, kind)
    assert compressed.beginning(path, 5, kind) == bytes(5)

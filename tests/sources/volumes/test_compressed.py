"""Compressed streams are read in chunks, from any place, and checked to the end."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path

import pytest

from tfbig.errors import SourceError
from tfbig.sources.volumes import compressed

DATA = bytes(range(256)) * 50


@pytest.mark.parametrize(("kind", "library"), [("gzip", gzip), ("bzip2", bz2)])
def test_chunks(
    kind: str, library: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"header" + library.compress(DATA))  # type: ignore[attr-defined]
    monkeypatch.setattr(compressed, "CHUNK", 100)
    parts = [*compressed.chunks(path, 1000, kind, start=6, skip=70)]
    assert b"".join(parts) == DATA[70:1070] and len(parts) == 10
    assert compressed.beginning(path, 5, kind, 6) == DATA[:5]
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(
        SourceError, match=f"its {kind} data cannot be decompressed after 12800 bytes"
    ):
        [*compressed.chunks(path, len(DATA), kind, start=6)]

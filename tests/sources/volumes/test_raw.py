"""Volumes of plain samples: memory maps, and files that became shorter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from volume_files import SIZE, samples

import tfbig
from tfbig import sources
from tfbig.errors import SourceError
from tfbig.sources.volumes import raw


def test_npy_files_and_memory_maps_are_read_in_place(tmp_path: Path) -> None:
    array = samples("float32", (*SIZE, 2))
    np.save(tmp_path / "x.npy", array)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for volume in (tfbig.open(tmp_path / "x.npy"), tfbig.open(mapped), tfbig.open(mapped[1:])):
        assert isinstance(volume, sources.RawVolume)
        expected = array[-volume.shape[0] :]
        np.testing.assert_array_equal(volume.read(0, volume.shape[0]), expected)
    with pytest.raises(SourceError, match="is not stored plane after plane; expected C order"):
        tfbig.open(mapped[:, ::2])


def test_a_file_that_becomes_shorter(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", samples("float32", (*SIZE, 2)))
    volume = tfbig.open(tmp_path / "x.npy")
    with (tmp_path / "x.npy").open("r+b") as file:
        file.truncate(500)
    with pytest.raises(SourceError, match="it became shorter after it was opened"):
        volume.read(0, 5)


def test_scratch_of_too_few_bytes() -> None:
    with pytest.raises(SourceError, match="is truncated: it holds 3 bytes of samples, its header"):
        raw.scratch([b"abc"], 4, "x")
    assert bytes(raw.scratch([b"ab", b"cd"], 4, "x").read(1, 3)) == b"bcd"

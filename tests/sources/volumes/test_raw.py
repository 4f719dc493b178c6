"""Volumes of plain samples: memory maps, and files that became shorter."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from volume_files import SIZE, samples, write_nifti

import tfbig
from tfbig.errors import SourceError
from tfbig.sources.volumes import compressed, raw


def test_npy_files_and_memory_maps_are_read_in_place(tmp_path: Path) -> None:
    array = samples("float32", (*SIZE, 2))
    np.save(tmp_path / "x.npy", array)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for volume in (tfbig.open(tmp_path / "x.npy"), tfbig.open(mapped), tfbig.open(mapped[1:])):
        assert isinstance(volume, raw.RawVolume)
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


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_memory_is_that_of_what_is_read(suffix: str, tmp_path: Path) -> None:
    """To open and to read a volume of 64 planes takes the memory of a few planes, along any axis."""
    shape = 64, 128, 128
    path = write_nifti(tmp_path / f"x{suffix}", np.zeros(shape, "float32"))
    plane = 4 * 128 * 128
    chunk = compressed.CHUNK if suffix == ".nii.gz" else 0
    boxes = [
        ((3, 4), (0, 128), (0, 128)),
        ((0, 64), (5, 6), (0, 128)),
        ((0, 64), (0, 128), (7, 8)),
    ]
    tracemalloc.start()
    try:
        volume = tfbig.open(path)
        assert tracemalloc.get_traced_memory()[1] < 2.5 * chunk + 4 * plane
        for box in boxes:
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            read = volume.read_box(*box)
            assert tracemalloc.get_traced_memory()[1] - before < 2 * read.nbytes + 2 * plane
    finally:
        tracemalloc.stop()


def test_scratch_of_too_few_bytes() -> None:
    with pytest.raises(SourceError, match="is truncated: it holds 3 bytes of samples, its header"):
        raw.scratch([b"abc"], 4, "x")
    assert bytes(raw.scratch([b"ab", b"cd"], 4, "x").read(1, 3)) == b"bcd"

"""Images in memory, in `.npy` files, in raw files and behind memory maps."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from slide_files import image, read_all

from tfbig import sources
from tfbig.errors import SourceError
from tfbig.sources import ArraySource, RawSource


@pytest.mark.parametrize("columns", [1, 7, 8, 37])
def test_packed_mask(columns: int) -> None:
    """Every window equals that of the mask, in an eighth of its memory."""
    mask = np.random.default_rng(0).uniform(size=(5, columns)) < 0.5
    packed = sources.PackedMask(mask)
    expected = mask.astype(np.uint8)[..., None]
    np.testing.assert_array_equal(read_all(packed), expected)
    for left in range(columns):
        for right in range(left + 1, columns + 1):
            window = packed.read_window((1, 4), (left, right))
            np.testing.assert_array_equal(window, expected[1:4, left:right])
            assert window.flags.c_contiguous
    with pytest.raises(SourceError, match="expected \\[H, W\\]"):
        sources.PackedMask(mask[..., None])


def test_memory_of_a_packed_mask() -> None:
    mask = np.ones((800, 800), bool)
    tracemalloc.start()
    try:
        packed = [sources.PackedMask(mask) for _ in range(8)]
        assert tracemalloc.get_traced_memory()[0] < 1.1 * len(packed) * mask.size / 8
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("shape", [(9, 7), (9, 7, 1), (9, 7, 5)])
@pytest.mark.parametrize("dtype", ["uint8", ">u2", "float32", "bool"])
def test_arrays(shape: tuple[int, ...], dtype: str) -> None:
    array = image(*shape).astype(dtype)
    for variant in (array, np.asfortranarray(array)):
        source = ArraySource(variant)
        rows = source.read(2, 8)
        assert rows.flags.c_contiguous
        assert rows.dtype == source.dtype
        assert rows.dtype.isnative
        np.testing.assert_array_equal(rows, array.reshape(9, 7, -1)[2:8])
        with pytest.raises(ValueError, match="read-only"):
            rows[0] = 0


@pytest.mark.parametrize("shape", [(9, 7), (9, 7, 5)])
@pytest.mark.parametrize("dtype", ["uint8", ">u2", "<f4", "bool"])
@pytest.mark.parametrize(("start", "stop"), [(0, 9), (3, 4), (8, 9), (5, 5)])
def test_npy(tmp_path: Path, shape: tuple[int, ...], dtype: str, start: int, stop: int) -> None:
    array = image(*shape).astype(dtype)
    np.save(tmp_path / "a.npy", array)
    for given_as in (tmp_path / "a.npy", str(tmp_path / "a.npy"), np.load(tmp_path / "a.npy", "r")):
        source = sources.open(given_as)
        assert isinstance(source, RawSource)
        assert source.dtype.isnative
        rows = source.read(start, stop)
        assert rows.flags.c_contiguous
        assert rows.dtype == source.dtype
        np.testing.assert_array_equal(rows, array.reshape(9, 7, -1)[start:stop])


def test_rows_of_memory_map(tmp_path: Path) -> None:
    array = image(300, 70)
    np.save(tmp_path / "a.npy", array)
    mapped = np.load(tmp_path / "a.npy", "r")
    np.testing.assert_array_equal(read_all(sources.open(mapped[131:200]))[..., 0], array[131:200])
    raw = np.memmap(tmp_path / "a.npy", np.uint8, "r", offset=128 + 70 * 100, shape=(200, 70))
    np.testing.assert_array_equal(read_all(sources.open(raw[7:]))[..., 0], array[107:])
    assert isinstance(sources.open(mapped + 1), ArraySource)  # arithmetic leaves the file


def test_unsuitable_memory_maps(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", image(30, 7))
    np.save(tmp_path / "f.npy", np.asfortranarray(image(30, 7)))
    mapped = np.load(tmp_path / "a.npy", "r")
    with pytest.raises(SourceError, match=r"f\.npy: .*not stored row after row .* Source\.crop"):
        sources.open(tmp_path / "f.npy")
    with pytest.raises(SourceError, match=r"a\.npy: .*not stored row after row"):
        sources.open(mapped[:, :3])
    with pytest.raises(SourceError, match=r"a\.npy: .*copy-on-write \(mode 'c'\)"):
        sources.open(np.load(tmp_path / "a.npy", "c"))
    with pytest.raises(SourceError, match=r"is a memory map; .*sources\.open"):
        ArraySource(mapped)


def test_damaged_npy(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, image(30, 7))
    os.truncate(path, 200)
    with pytest.raises(SourceError, match=r"a\.npy: is not a readable \.npy file .*200 bytes"):
        sources.open(path)
    path.write_bytes(b"not numpy")
    with pytest.raises(SourceError, match=r"a\.npy: is not a readable \.npy file"):
        sources.open(path)
    np.save(path, np.zeros(4))
    with pytest.raises(SourceError, match=r"has shape \(4,\); expected \[rows, columns\]"):
        sources.open(path)
    with pytest.raises(SourceError, match=r"a\.npy: is truncated: .* ends at byte 10100, the file"):
        RawSource(path, 100, np.uint8, (100, 100))


def test_raw(tmp_path: Path) -> None:
    array = image(11, 6, 3, dtype="uint16")
    (tmp_path / "a.raw").write_bytes(b"header" + array.astype(">u2").tobytes())
    source = RawSource(tmp_path / "a.raw", 6, ">u2", (11, 6, 3))
    np.testing.assert_array_equal(source.read(4, 11), array[4:])

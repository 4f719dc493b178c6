"""Chunks of zarr arrays that decode to more than they declare, and codecs that are refused."""

from __future__ import annotations

import bz2
import gzip
import itertools
import json
import lzma
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import imagecodecs
import numcodecs
import numpy as np
import pytest
import zarr
from resource_limits import cheap
from slide_files import noise

from tfbig import SourceError
from tfbig.sources import open_slide

COMPRESSORS: dict[str, tuple[int, Any]] = {
    "blosc": (2, numcodecs.Blosc()),
    "bz2": (2, numcodecs.BZ2()),
    "gzip": (2, numcodecs.GZip()),
    "lz4": (2, numcodecs.LZ4()),
    "lzma": (2, numcodecs.LZMA()),
    "zlib": (2, numcodecs.Zlib()),
    "zstd": (2, numcodecs.Zstd()),
    "blosc 3": (3, zarr.codecs.BloscCodec()),
    "gzip 3": (3, zarr.codecs.GzipCodec()),
    "zstd 3": (3, zarr.codecs.ZstdCodec()),
    "gzip and checksum": (3, [zarr.codecs.GzipCodec(), zarr.codecs.Crc32cCodec()]),
    "none": (2, None),
}


def written(path: Path, name: str, array: np.ndarray, **options: Any) -> Path:
    """Write an array in chunks of 32 x 32 pixels."""
    version, compressors = COMPRESSORS[name]
    options = {"zarr_format": version, "compressors": compressors, "chunks": (32, 32, 3)} | options
    zarr.create_array(path, shape=array.shape, dtype=array.dtype, **options)[:] = array
    return path


def zero_chunks(path: Path, data: bytes) -> None:
    """Overwrite the first chunk, of either version."""
    (chunk,) = [p for p in (path / "0.0.0", path / "c/0/0/0") if p.exists()]
    chunk.write_bytes(data)


@pytest.mark.parametrize("name", COMPRESSORS)
def test_arrays_of_every_codec(tmp_path: Path, name: str) -> None:
    array = noise(70, 50, 3)
    slide = open_slide(written(tmp_path / "a.zarr", name, array))
    np.testing.assert_array_equal(slide.read((3, 60), (7, 50)), array[3:60, 7:50])


@pytest.mark.parametrize("at", ["start", "end"])
@pytest.mark.parametrize("name", ["gzip 3", "zstd 3", "gzip and checksum"])
def test_shards(tmp_path: Path, name: str, at: str) -> None:
    array = noise(200, 150, 3)
    compressors = COMPRESSORS[name][1]
    codec = zarr.codecs.ShardingCodec(
        chunk_shape=(32, 32, 3),
        codecs=[zarr.codecs.BytesCodec(), *np.atleast_1d(compressors)],
        index_location=at,
    )
    path = tmp_path / "a.zarr"
    zarr.create_array(
        path,
        shape=array.shape,
        dtype=array.dtype,
        chunks=(64, 64, 3),
        serializer=codec,
        compressors=None,
        zarr_format=3,
    )[:] = array
    slide = open_slide(path)
    np.testing.assert_array_equal(slide.read((3, 160), (7, 50)), array[3:160, 7:50])


BOMB_BYTES = 150_000_000
"""Three times the memory that `cheap` allows."""

BOMBS: dict[str, Callable[[bytes], bytes]] = {
    "bz2": bz2.compress,
    "gzip": gzip.compress,
    "lzma": lzma.compress,
    "zlib": zlib.compress,
    "zstd": imagecodecs.zstd_encode,
    "blosc": numcodecs.Blosc("zstd").encode,
    "lz4": numcodecs.LZ4().encode,
    "gzip 3": gzip.compress,
    "zstd 3": imagecodecs.zstd_encode,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_chunk_that_decodes_to_more_than_it_declares(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / "a.zarr", name, noise(70, 50, 3))
    zero_chunks(path, BOMBS[name](bytes(BOMB_BYTES)))
    slide = open_slide(path)
    with cheap(), pytest.raises(SourceError, match=r"a\.zarr: the chunk .* decodes to more than 3"):
        slide.read((0, 40), (0, 40))


def test_frames_of_zstd_that_follow_a_small_one(tmp_path: Path) -> None:
    """The first says how large it is, or does not: its bytes are counted then."""
    small = imagecodecs.zstd_encode(bytes(3072))
    unsized = (
        b"\x28\xb5\x2f\xfd" + b"\x00\x58" + (3072 << 3 | 2 | 1).to_bytes(3, "little") + b"\x00"
    )
    for name, first in itertools.product(("zstd", "zstd 3"), (small, unsized)):
        path = written(tmp_path / f"{name}-{len(first)}.zarr", name, noise(70, 50, 3))
        zero_chunks(path, first)
        assert not open_slide(path).read((0, 32), (0, 32)).any()
        zero_chunks(path, first + imagecodecs.zstd_encode(bytes(BOMB_BYTES)))
        with cheap(), pytest.raises(SourceError, match=rf"{name}-.*\.zarr: "):
            open_slide(path).read((0, 40), (0, 40))


def test_chunks_of_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "a.zarr", "zlib", noise(70, 50, 3))
    metadata = json.loads((path / ".zarray").read_text())
    (path / ".zarray").write_text(json.dumps(metadata | {"chunks": [32, 0, 3]}))
    with pytest.raises(SourceError, match=r"a\.zarr: "):
        open_slide(path)


def test_chunk_of_a_shard_that_decodes_to_more_than_it_declares(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    options: dict[str, Any] = {"shape": (64, 64, 3), "chunks": (32, 32, 3), "shards": (64, 64, 3)}
    compressors = zarr.codecs.GzipCodec()
    zarr.create_array(path, dtype="u1", compressors=compressors, **options)[:] = noise(64, 64, 3)
    shard = path / "c/0/0/0"
    bomb, index = gzip.compress(bytes(BOMB_BYTES)), np.full((4, 2), 2**64 - 1, "<u8")
    index[0] = 0, len(bomb)
    checksum = imagecodecs.h5checksum_fletcher32  # a wrong checksum is seen after the size
    shard.write_bytes(bomb + index.tobytes() + checksum(index.tobytes()).to_bytes(4, "little"))
    with cheap(), pytest.raises(SourceError, match=r"a\.zarr: the chunk 0 decodes to more than 3"):
        open_slide(path).read((0, 40), (0, 40))


def test_codecs_that_run_code_or_hide_others(tmp_path: Path) -> None:
    path = written(tmp_path / "a.zarr", "zlib", noise(70, 50, 3))
    metadata = json.loads((path / ".zarray").read_text())
    (path / ".zarray").write_text(json.dumps(metadata | {"filters": [{"id": "pickle"}]}))
    with pytest.raises(SourceError, match=r"a\.zarr: .*pickle"):
        open_slide(path)
    compressors = [zarr.codecs.GzipCodec(), zarr.codecs.ZstdCodec()]
    path = written(tmp_path / "b.zarr", "gzip 3", noise(70, 50, 3), compressors=compressors)
    with pytest.raises(SourceError, match=r"b\.zarr: its chunks are stored with gzip, zstd, which"):
        open_slide(path)


def test_filters(tmp_path: Path) -> None:
    array = np.sort(noise(70, 50, 3).ravel()).reshape(70, 50, 3)
    filters = [numcodecs.Delta("u1", "i4")]
    slide = open_slide(written(tmp_path / "a.zarr", "zlib", array, filters=filters))
    np.testing.assert_array_equal(slide.read((0, 70), (0, 50)), array)


def test_chunks_that_are_too_large(tmp_path: Path) -> None:
    side = 20_000
    zarr.create_array(tmp_path / "a.zarr", shape=(side, side), dtype="u1", chunks=(side, side))
    with pytest.raises(
        SourceError, match=r"stored in chunks of \(20000, 20000\), 381\.5 MiB, .* 256"
    ):
        open_slide(tmp_path / "a.zarr")


def test_far_too_many_tiny_chunks(tmp_path: Path) -> None:
    options: dict[str, Any] = {"dtype": "u1", "chunks": (1, 1), "zarr_format": 2}
    zarr.create_array(tmp_path / "a.zarr", shape=(10**6, 10**6), **options)
    with cheap(), pytest.raises(SourceError, match=r"1000000000000 chunks of \(1, 1\), 1 B, which"):
        open_slide(tmp_path / "a.zarr").thumbnail(64)


@pytest.mark.parametrize("name", ["none", "gzip 3"])
@pytest.mark.parametrize("links", ["a chunk", "its folder"])
def test_links_to_other_folders(name: str, links: str, tmp_path: Path) -> None:
    """Files elsewhere are never shown as pixels; a link to the whole array is followed."""
    array = noise(70, 50, 3)
    path, other = (written(tmp_path / each, name, array) for each in ("a.zarr", "b.zarr"))
    (tmp_path / "c.zarr").symlink_to(path)
    np.testing.assert_array_equal(
        open_slide(tmp_path / "c.zarr").read((0, 9), (0, 9)), array[:9, :9]
    )
    (chunk,) = (p for p in ("0.0.0", "c/0/0/0") if (path / p).exists())
    if links == "a chunk":
        (path / chunk).unlink()
        (path / chunk).symlink_to(other / chunk)
    else:
        inner = Path(chunk).parts[0]
        (path / inner).rename(tmp_path / "old")
        (path / inner).symlink_to(other / inner)
    with pytest.raises(SourceError, match=r"a\.zarr: the chunk 0(\.0\.0)? is a link to .*b\.zarr"):
        open_slide(path).read((0, 9), (0, 9))


def test_pipes(tmp_path: Path) -> None:
    path = written(tmp_path / "a.zarr", "none", noise(70, 50, 3))
    (path / "0.0.0").unlink()
    os.mkfifo(path / "0.0.0")
    with pytest.raises(SourceError, match="it is not a regular file"):
        open_slide(path).read((0, 9), (0, 9))

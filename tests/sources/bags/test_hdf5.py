"""HDF5 files that declare huge datasets, or store them elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from resource_limits import cheap

import tfbig
from tfbig import sources
from tfbig.sources.bags import hdf5


def forged(path: Path, **options: Any) -> Path:
    """Write features and coordinates of 10**10 tiles, none of them stored."""
    with h5py.File(path, "w") as file:
        file.create_dataset("features", (10**10, 64), "f4", chunks=(1024, 64), **options)
        data = file.create_dataset("coords", (10**7, 2), "i8", chunks=(1024, 2), **options)
        data.attrs.update({"patch_size": 256, "patch_level": 0})
    return path


@pytest.mark.parametrize("read", [sources.open_bag, sources.read_coords])
@pytest.mark.parametrize("options", [{}, {"compression": "gzip"}])
def test_huge_declared_size(
    read: Callable[..., Any], options: dict[str, Any], tmp_path: Path
) -> None:
    path = forged(tmp_path / "forged.h5", **options)
    assert path.stat().st_size < 20_000
    with cheap(), pytest.raises(tfbig.SourceError, match=r"forged\.h5: .* are stored"):
        read(path)


@pytest.mark.parametrize("kind", ["external link", "soft link", "external file", "virtual"])
def test_links_and_external_data(kind: str, tmp_path: Path) -> None:
    other, path = tmp_path / "other.h5", tmp_path / "forged.h5"
    with h5py.File(other, "w") as file:
        file["coords"] = np.zeros((3, 2), np.int64)
        file["coords"].attrs.update({"patch_size": 256, "patch_level": 0})
    (tmp_path / "secret").write_bytes(bytes(48))
    with h5py.File(path, "w") as file:
        if kind == "external link":
            file["coords"] = h5py.ExternalLink(str(other), "coords")
        elif kind == "soft link":
            file["real"] = np.zeros((3, 2), np.int64)
            file["coords"] = h5py.SoftLink("/real")
        elif kind == "external file":
            parts = [(str(tmp_path / "secret"), 0, 48)]
            file.create_dataset("coords", (3, 2), "i8", external=parts)
        else:
            layout = h5py.VirtualLayout((3, 2), "i8")
            layout[:] = h5py.VirtualSource(str(other), "coords", shape=(3, 2))
            file.create_virtual_dataset("coords", layout)
        file["features"] = np.zeros((3, 4), np.float32)
    for read in (sources.read_coords, sources.open_bag):
        with pytest.raises(tfbig.SourceError, match=r"not followed|not read"):
            read(path)


@pytest.fixture(scope="module")
def huge_chunks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bag of three instances in chunks of millions."""
    path = tmp_path_factory.mktemp("chunks") / "chunks.h5"
    with h5py.File(path, "w") as file:
        options = {"maxshape": (None, None), "chunks": (2**22, 16), "compression": "gzip"}
        file.create_dataset("features", data=np.zeros((3, 4), np.float32), **options)
        data = file.create_dataset("coords", data=np.zeros((3, 2), np.int64), **options)
        data.attrs.update({"patch_size": 256, "patch_level": 0})
    return path


@pytest.mark.slow
@pytest.mark.parametrize("read", [sources.open_bag, sources.read_coords])
def test_chunks_far_larger_than_their_data(read: Callable[..., Any], huge_chunks: Path) -> None:
    """A chunk is decompressed whole, so a small file could take any memory."""
    assert huge_chunks.stat().st_size < 2**20
    with cheap(), pytest.raises(tfbig.SourceError, match=r"chunks\.h5: .* is stored in chunks of"):
        read(huge_chunks)


@pytest.mark.parametrize("kind", [KeyError, RuntimeError, ValueError, MemoryError, OSError])
def test_exceptions_of_h5py_become_errors_that_name_the_file(
    kind: type[Exception], tmp_path: Path
) -> None:
    h5py.File(tmp_path / "bag.h5", "w").close()
    with (
        pytest.raises(
            tfbig.SourceError, match=r"bag\.h5: is not a readable HDF5 file: .*(damaged|memory)"
        ),
        hdf5.opened(str(tmp_path / "bag.h5")),
    ):
        raise kind("damaged")


def test_bytes_of_a_bag_that_changed(tmp_path: Path) -> None:
    """Whatever byte of the headers is overwritten, reading gives arrays or SourceError."""
    good, bad = tmp_path / "good.h5", tmp_path / "bad.h5"
    with h5py.File(good, "w") as file:
        file["features"] = np.arange(12, dtype=np.float32).reshape(3, 4)
        file["coords"] = np.arange(6).reshape(3, 2)
        file["coords"].attrs.update({"patch_size": 256, "patch_level": 0})
    content = good.read_bytes()
    refused = 0
    for place in range(0, len(content), 13):
        bad.write_bytes(content[:place] + b"\xff" + content[place + 1 :])
        for read in (sources.read_coords, sources.open_bag):
            try:
                read(bad)
            except tfbig.SourceError as error:
                refused += 1
                assert "bad.h5" in str(error)
    assert refused > 20


def test_chunks_that_take_the_memory_of_the_machine(tmp_path: Path) -> None:
    """The trial does not decompress them, and they are refused after it."""
    path = tmp_path / "chunk.h5"
    with h5py.File(path, "w") as file:
        options = {"chunks": (2**26, 2), "maxshape": (None, None), "compression": "gzip"}
        data = file.create_dataset("coords", (2**26, 2), "i8", **options)
        data.id.write_direct_chunk((0, 0), bytes(2**22))
    with cheap(), pytest.raises(tfbig.SourceError, match=r"chunk\.h5: .* is stored in chunks of"):
        sources.read_coords(path)


@pytest.mark.parametrize(
    ("width", "tiles", "message"),
    [
        (5 * 10**8, 20, r"has 500000000 numbers for each tile; expected 1 to"),
        (8, 2 * 10**8, r"'coords' has 200000000 tiles; expected 1 to"),
    ],
)
def test_sizes_that_no_slide_has(width: int, tiles: int, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for name, shape in (("features", (20, width)), ("coords", (tiles, 2))):
            chunks = tuple(min(n, 2**18) for n in shape)
            data = file.create_dataset(name, shape, "f4", chunks=chunks, compression="gzip")
            stored = data.nbytes // hdf5.MAX_RATIO + 1  # the other chunks hold zeros
            if data.nbytes > 2**24:
                data.id.write_direct_chunk((0, 0), bytes(stored), 1)
    with cheap(), pytest.raises(tfbig.SourceError, match=rf"a\.h5: .*{message}"):
        sources.open_bag(path)

"""Files: closed sources, truncated files, and memory used for reading."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from samples import ENVIRONMENT, PROGRAMS, ROOT
from slide_files import image, read_all

from tfbig import sources
from tfbig.errors import SourceError
from tfbig.sources import ArraySource, TiffSource
from tfbig.sources.files import File, Package


def test_bytes_and_windows(tmp_path: Path) -> None:
    stored = image(9, 7, 2, dtype="uint16").astype(">u2")
    (tmp_path / "a.raw").write_bytes(b"head" + stored.tobytes())
    file = File(tmp_path / "a.raw")
    assert file.num_bytes == 4 + stored.nbytes
    assert file.read(1, 3) == b"ead"
    rows = file.read_rows(4, stored.dtype, (3, 7, 2), 5)
    assert rows.dtype.isnative
    np.testing.assert_array_equal(rows, stored[5:8])
    window = file.read_window(4, stored.dtype, stored.shape, (2, 6, 1, 4))
    np.testing.assert_array_equal(window, stored[2:6, 1:4])
    file.check_length(file.num_bytes)
    with pytest.raises(SourceError, match=r"a\.raw: is truncated: .* ends at byte 257"):
        file.check_length(file.num_bytes + 1)


def test_packages_are_imported_when_they_are_used(tmp_path: Path) -> None:
    (tmp_path / "used_later.py").write_text("number = 3\n")
    package = Package("used_later")
    sys.path.insert(0, str(tmp_path))
    try:
        assert not hasattr(package, "__wrapped__")
        assert "used_later" not in sys.modules
        assert package.number == 3
    finally:
        sys.path.remove(str(tmp_path))
        del sys.modules["used_later"]
    assert package.missing == "No module named 'used_later'"


def test_closed_sources(tiffs: dict[str, Path], tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", image(5, 4))
    opened = [
        TiffSource(tiffs["jpeg_tiles"]),
        TiffSource(tiffs["plain_rgb"]),
        sources.open(tmp_path / "a.npy"),
        TiffSource(tiffs["plain_rgb"]).crop((2, 9)),
    ]
    for source in opened:
        source.read(0, 1)
        source.close()
        with pytest.raises(SourceError, match=r"was closed\. Open the source again"):
            source.read(0, 1)
    array = ArraySource(image(5, 4))
    array.close()
    assert array.read(0, 5).shape == (5, 4, 1)


def test_file_truncated_after_opening(tiffs: dict[str, Path], tmp_path: Path) -> None:
    for name in ("deflate_tiles", "plain_rgb"):
        path = Path(shutil.copy(tiffs[name], tmp_path))
        source = TiffSource(path)
        os.truncate(path, 2000)
        with pytest.raises(SourceError, match="became shorter after it was opened"):
            read_all(source)


@pytest.fixture(scope="module")
def growth(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    """Memory growth in MiB while a file is read, by path and by memory map."""
    path = tmp_path_factory.mktemp("large") / "large.npy"
    np.lib.format.open_memmap(path, "w+", np.uint8, (20_000, 10_000))  # sparse: 200 MB of zeros
    command = [sys.executable, str(PROGRAMS / "read_rows_memory.py"), str(path)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=ROOT, env=ENVIRONMENT
    )
    lines = (line.split() for line in done.stdout.splitlines())
    return {kind: {"files": int(files), "other": int(other)} for kind, files, other in lines}


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
@pytest.mark.parametrize("kind", ["path", "map"])
def test_reading_maps_no_pages(growth: dict[str, dict[str, int]], kind: str) -> None:
    assert growth[kind]["files"] <= 2  # MiB; mapped pages would be 200
    assert growth[kind]["other"] <= 16  # one strip is 5


@pytest.mark.parametrize(
    "suffix", [".tif", ".svs", ".ndpi", ".npy", ".png", ".jpg", ".jp2", ".vrt", ".nii", ".xyz"]
)
@pytest.mark.parametrize("opened", [sources.open_slide, sources.open, sources.open_bag])
def test_pipes_are_never_waited_for(suffix: str, opened: Any, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    os.mkfifo(path)
    with pytest.raises(SourceError, match=rf"a\{suffix}: ") as raised:
        opened(path)
    assert len(str(raised.value).splitlines()) == 1

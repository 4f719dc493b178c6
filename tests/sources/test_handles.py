"""Handles and paths resolve to sources; files are opened on demand and closed when they are old."""

from __future__ import annotations

import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from masked_images import check_background
from PIL import Image
from slide_files import image, noise, num_open

from tfbig import sources
from tfbig.errors import SourceError
from tfbig.sources import ArraySource, OnDisk, Source
from tfbig.sources.volumes import raw


def test_handles() -> None:
    first, second = ArraySource(image(3, 4)), ArraySource(image(3, 4))
    assert re.fullmatch(r"tfbig:\d+", first.handle)
    assert first.handle == first.handle != second.handle
    assert sources.resolve(first.handle) is first
    assert sources.resolve(second.handle) is second
    handle = first.handle
    first.release()
    first.release()  # a second call has no effect
    with pytest.raises(SourceError, match=f"{handle}: no source is registered .* pass the path"):
        sources.resolve(handle)
    assert sources.resolve(first.handle) is first  # using the handle registers the source again
    first.release()
    second.release()


def test_lent_handle() -> None:
    """A source is released after the block, even after errors, unless it was registered before."""
    mine, other = ArraySource(image(3, 4)), ArraySource(image(3, 4))
    assert sources.resolve(mine.handle) is mine
    with pytest.raises(ZeroDivisionError), mine.lent() as kept, other.lent() as lent:
        assert (sources.resolve(kept), sources.resolve(lent)) == (mine, other)
        raise ZeroDivisionError
    assert sources.resolve(kept) is mine
    with pytest.raises(SourceError, match="no source is registered"):
        sources.resolve(lent)
    mine.release()


def test_handle_is_thread_safe() -> None:
    source = ArraySource(image(3, 4))
    barrier = threading.Barrier(8)

    def handle(_: int) -> str:
        barrier.wait()
        return source.handle

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(handle, range(8)))) == 1
    source.release()


@pytest.mark.skipif(sys.platform != "linux", reason="open files are counted in /proc")
def test_open_files_are_limited(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{index}.npy") for index in range(20)]
    for index, path in enumerate(paths):
        np.save(path, np.full((2, 2), index))
    assert sources.resolve(paths[0]) is sources.resolve(paths[0])
    held = sources.resolve(paths[0])
    for index, path in enumerate(paths):
        assert sources.resolve(path).read(0, 1)[0, 0, 0] == index
    assert num_open(tmp_path) == 16 + 1
    assert held.read(0, 1).shape == (1, 2, 1)  # old, but still in use
    del held
    assert num_open(tmp_path) == 16


def test_replaced_file_is_reopened(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    for value in (1, 2):
        with sources.write_npy(path, (2, 2), np.uint8) as file:
            file.write(0, np.full((2, 2), value, np.uint8))
        assert sources.resolve(str(path)).read(0, 2).max() == value


def test_on_disk_open_files(tmp_path: Path) -> None:
    """All files can be read, although there are more of several formats than may be open at once."""
    arrays = {}
    for number in range(24):
        array = image(9, 14, 3 if number % 3 else 1)
        arrays[tmp_path / f"{number}.png"] = array
        Image.fromarray(array.squeeze()).save(tmp_path / f"{number}.png")
        arrays[tmp_path / f"{number}.npy"] = array
        np.save(tmp_path / f"{number}.npy", array)
    held = {path: OnDisk(path) for path in arrays}
    for path, source in held.items():
        np.testing.assert_array_equal(source.read(0, 9), arrays[path], err_msg=str(path))
        np.testing.assert_array_equal(source.read_window((2, 5), (3, 4)), arrays[path][2:5, 3:4])
    if sys.platform == "linux":
        assert num_open(tmp_path) == 8  # of the 16 files read last; pictures are not held open


def test_on_disk_replaced_file(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", image(9, 14))
    source = OnDisk(tmp_path / "a.npy")
    np.save(tmp_path / "a.npy", image(10, 14))
    with pytest.raises(SourceError, match=r"a\.npy: was replaced: it is .* now, and was"):
        source.read(0, 1)


@pytest.fixture(scope="module")
def pyramid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An OME-TIFF of two levels with pixels of 0.5 um."""
    path = tmp_path_factory.mktemp("pyramid") / "a.ome.tif"
    source = ArraySource(noise(1200, 1600, 3))
    source.mpp = (0.5, 0.5)
    sources.write_ome_tiff(path, source, compression="none")
    return path


@pytest.mark.parametrize(
    "resolution", [{"mpp": 1.0}, {"magnification": 10}, {"step": 2.0}, {"level": 1}]
)
def test_on_disk_resolutions(pyramid: Path, resolution: dict[str, Any]) -> None:
    """The image equals the view of the open slide."""
    lazy = OnDisk(pyramid, **resolution)
    slide = sources.open_slide(pyramid)
    view = slide.scaled(2.0) if "step" in resolution else slide.at(**resolution)
    assert lazy.shape == view.shape == (600, 800, 3)
    window = (10, 90), (3, 77)
    np.testing.assert_array_equal(lazy.read_window(*window), view.read_window(*window))
    slide.close()


def test_on_disk_arguments(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((64, 64, 3), np.uint8))
    with pytest.raises(ValueError, match="expected at most one of level, mpp"):
        sources.OnDisk(tmp_path / "a.npy", mpp=1.0, step=2.0)
    assert sources.OnDisk(tmp_path / "a.npy", mpp=1.0, pixel=0.5).shape == (32, 32, 3)


def test_background_of_handles(tmp_path: Path) -> None:
    """Handles of registered sources, of augmented ones and of paths give the background."""
    masked = sources.Masked.by(ArraySource(image(64, 64)), np.eye(8), 3)
    with masked.lent() as handle:
        assert resolved(handle).background == masked.background
        check_background(resolved(masked.changed_handle(4)))
    array = ArraySource(image(3, 4))
    with array.lent() as handle:
        assert resolved(handle).background is None
        assert resolved(array.changed_handle(4)).background is None
    path = tmp_path / "sparse.tif"
    stored = iter([noise(256, 256) if n in (0, 7) else None for n in range(25)])
    options: dict[str, Any] = {"tile": (256, 256), "compression": "deflate", "dtype": "uint8"}
    tifffile.imwrite(path, stored, shape=(1280, 1280), **options)
    check_background(resolved(str(path)), 0.9)
    on_disk = OnDisk(path)
    check_background(on_disk, 0.9)
    check_background(OnDisk(path, step=2.5), 0.85)
    assert on_disk.colour((256, 512), (0, 512)) == 0
    tifffile.imwrite(path, noise(1280, 1280), tile=(256, 256), compression="deflate")
    assert on_disk.background is None  # of the file that is there now


def resolved(handle: str) -> Source:
    """The source of a handle."""
    source = sources.resolve(handle)
    assert isinstance(source, Source)
    return source


def test_compressed_volumes_are_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Crops of twenty compressed volumes in turn decode each once."""
    volumes = []
    for number in range(20):
        path = tmp_path / f"{number}.nii.gz"
        sources.write_nifti(path, sources.ArrayVolume(np.full((4, 3, 2), number, np.int16)))
        volumes.append(sources.VolumeOnDisk(path))
    decoded = []
    scratch = raw.scratch
    monkeypatch.setattr(raw, "scratch", lambda *a: decoded.append(a[2]) or scratch(*a))
    for _ in range(3):
        for number, volume in enumerate(volumes):
            assert (volume.read(1, 2) == number).all()
    assert len(decoded) == len(set(decoded)) == 20

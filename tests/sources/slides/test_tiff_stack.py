"""Stacks of OME-TIFF and ImageJ: channels, planes and projections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from slide_files import NDPI

from tfbig import SourceError, sources
from tfbig.sources import open_slide

SIZES = {"Z": 4, "C": 3, "Y": 70, "X": 50}
NAMES = ["DAPI", "CD3", "CD8"]


def stack(axes: str, dtype: str = "uint16") -> np.ndarray:
    """Return random numbers of all values of a dtype, with axes in an order."""
    shape = [SIZES[axis] for axis in axes]
    return np.random.default_rng(0).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def in_order(array: np.ndarray, axes: str) -> np.ndarray:
    """Return the array as `[Z, Y, X, C]`."""
    for axis in "ZYXC":
        if axis not in axes:
            array, axes = array[None], axis + axes
    return array.transpose([axes.index(axis) for axis in "ZYXC"])


def write(path: Path, array: np.ndarray, axes: str, **options: Any) -> Path:
    metadata = {"axes": axes, "PhysicalSizeX": 0.25, "PhysicalSizeY": 0.5}
    if "C" in axes:
        metadata["Channel"] = {"Name": NAMES}
    tifffile.imwrite(path, array, ome=True, metadata=metadata, photometric="minisblack", **options)
    return path


@pytest.mark.parametrize("axes", ["ZCYX", "CZYX", "CYX", "ZYX"])
@pytest.mark.parametrize("byteorder", ["<", ">"])
@pytest.mark.parametrize("storage", [{}, {"tile": (32, 32), "compression": "zlib"}])
def test_ome_tiff(tmp_path: Path, axes: str, byteorder: str, storage: dict[str, Any]) -> None:
    array = stack(axes)
    path = write(tmp_path / "a.ome.tif", array, axes, byteorder=byteorder, **storage)
    expected = in_order(array, axes)
    for z, plane in (("max", expected.max(0)), (2, expected[2 % len(expected)])):
        if z == 2 and len(expected) == 1:
            continue
        slide = open_slide(path, z=z)
        assert slide.dtype == np.dtype("uint16") and slide.mpp == (0.5, 0.25)
        np.testing.assert_array_equal(slide.read((0, 70), (0, 50)), plane)
        np.testing.assert_array_equal(slide.read((33, 70), (7, 50)), plane[33:, 7:])
    if "C" not in axes:
        return
    slide = open_slide(path, z="max", channels=["cd8", "DAPI"])
    assert slide.channel_names == ("CD8", "DAPI")
    np.testing.assert_array_equal(slide.read((0, 70), (0, 50)), expected.max(0)[..., [2, 0]])
    whole = sources.OnDisk(path, channels=("CD3",), z="max", percentiles=(0, 100))
    assert whole.dtype == np.uint8 and whole.shape == (70, 50, 1)


def test_pyramid(tmp_path: Path) -> None:
    array = stack("ZCYX")
    with tifffile.TiffWriter(tmp_path / "a.ome.tif") as writer:
        options: dict[str, Any] = {"tile": (32, 32), "photometric": "minisblack"}
        metadata = {"axes": "ZCYX", "Channel": {"Name": NAMES}}
        writer.write(array, subifds=1, metadata=metadata, **options)
        writer.write(array[..., ::2, ::2], subfiletype=1, **options)
    slide = open_slide(tmp_path / "a.ome.tif", z="max", channels=["CD3"])
    assert slide.levels == ((70, 50), (35, 25))
    for level, step in ((0, 1), (1, 2)):
        expected = array[:, 1].max(0)[::step, ::step, None]
        np.testing.assert_array_equal(slide.level(level).read(0, len(expected)), expected)


def test_imagej(tmp_path: Path) -> None:
    """ImageJ writes one page for a stack that is stored as a whole, and its own unit."""
    array = stack("ZCYX")
    metadata = {"axes": "ZCYX", "unit": "um", "spacing": 2.0}
    tifffile.imwrite(tmp_path / "a.tif", array, imagej=True, resolution=(4, 2), metadata=metadata)
    slide = open_slide(tmp_path / "a.tif", z=3, channels=[1])
    assert slide.mpp == (0.5, 0.25)
    np.testing.assert_array_equal(slide.read((0, 70), (0, 50)), array[3, 1][..., None])
    with tifffile.TiffFile(tmp_path / "a.tif") as tiff:
        assert len(tiff.series[0].pages) in (1, 12)


def test_pages_without_names_are_planes(tmp_path: Path) -> None:
    array = stack("ZYX")
    tifffile.imwrite(tmp_path / "a.tif", array, photometric="minisblack", metadata=None)
    slide = open_slide(tmp_path / "a.tif", z=1)
    np.testing.assert_array_equal(slide.read((0, 70), (0, 50)), array[1][..., None])


def test_one_line_for_each_mistake(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ome.tif", stack("ZCYX"), "ZCYX")
    with pytest.raises(SourceError, match=r"a\.ome\.tif: is a stack of 4 planes along z"):
        open_slide(path)
    with pytest.raises(SourceError, match=r"it has 0 'DAPI', 1 'CD3', 2 'CD8'\."):
        open_slide(path, z=0, channels=["CD4"])
    with pytest.raises(SourceError, match=r"plane 4 along z requested; it has 4, counted from 0"):
        open_slide(path, z=4)
    times = np.zeros((2, 3, 16, 16), np.uint8)
    tifffile.imwrite(tmp_path / "t.ome.tif", times, ome=True, metadata={"axes": "TZYX"})
    with pytest.raises(SourceError, match=r"axes 'TZYX'; expected channels \(C\) and planes \(Z\)"):
        open_slide(tmp_path / "t.ome.tif", z=0)
    content = path.read_bytes()
    (tmp_path / "cut.ome.tif").write_bytes(content[: len(content) // 2])
    with pytest.raises(SourceError, match=r"cut\.ome\.tif: its list of pages goes on at byte"):
        open_slide(tmp_path / "cut.ome.tif", z="max").read((0, 70), (0, 50))
    tifffile.imwrite(tmp_path / "one.tif", np.zeros((16, 16), np.uint8))
    assert open_slide(tmp_path / "one.tif", z="max").shape == (16, 16, 1)
    with pytest.raises(SourceError, match=r"one\.tif: plane 3 along z requested; it has 1"):
        open_slide(tmp_path / "one.tif", z=3)


def test_fluorescence_of_hamamatsu() -> None:
    """The scanner writes gray values as one colour of RGB, and the name of the filter."""
    slide = open_slide(NDPI, channels=["DAPI"])
    assert slide.channel_names == ("DAPI 2 (387)",)
    window = (1000, 1100), (1500, 1600)
    np.testing.assert_array_equal(slide.read(*window), open_slide(NDPI).read(*window)[..., 2:])
    with pytest.raises(SourceError, match=r"it has 0 'red', 1 'green', 2 'DAPI 2 \(387\)'"):
        open_slide(NDPI, channels=["Cy5"])

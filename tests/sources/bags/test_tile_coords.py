"""Positions of tiles in the HDF5 files of CLAM and TRIDENT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from tissue_slides import write_slide

from tfbig import SourceError
from tfbig.sources import Coords, read_coords, write_coords
from tfbig.tissue import tiling


@pytest.mark.parametrize("level", [0, 1])
def test_round_trip(tmp_path: Path, level: int) -> None:
    slide = write_slide(tmp_path / "a.tif", resolution=(40000, 40000), resolutionunit="CENTIMETER")
    coords = tiling.tile(slide, 50, step=slide.step(level=level), overlap=10)
    write_coords(tmp_path / "a.h5", coords, slide)
    again = read_coords(tmp_path / "a.h5")
    np.testing.assert_array_equal(again.coords, coords.coords)
    assert (again.name, again.size, again.step, again.overlap) == ("a", 50, 1 + level, 10)
    with h5py.File(tmp_path / "a.h5") as file:
        attributes = dict(file["coords"].attrs)
    assert attributes["patch_level"] == level  # CLAM
    np.testing.assert_array_equal(attributes["downsample"], [1 + level] * 2)
    assert attributes["level0_magnification"] == pytest.approx(40)  # TRIDENT: 0.25 um
    assert attributes["target_magnification"] == pytest.approx(40 / (1 + level))
    assert (attributes["level0_width"], attributes["level0_height"]) == (900, 1200)
    del attributes["patch_size_level0"], attributes["overlap"]  # what CLAM writes
    with h5py.File(tmp_path / "clam.h5", "w") as file:
        file.create_dataset("coords", data=coords.coords).attrs.update(attributes)
    assert read_coords(tmp_path / "clam.h5").step == 1 + level


INVALID = {
    "no coords": ({}, None),
    "three columns": ({"patch_size": 8, "downsample": 1.0}, np.zeros((4, 3), int)),
    "none": ({"patch_size": 8, "downsample": 1.0}, np.zeros((0, 2), int)),
    "no size": ({"downsample": 1.0}, np.zeros((4, 2), int)),
    "no step": ({"patch_size": 8}, np.zeros((4, 2), int)),
    "size 0": ({"patch_size": 0, "patch_size_level0": 8}, np.zeros((4, 2), int)),
    "step 0": ({"patch_size": 8, "downsample": 0.0}, np.zeros((4, 2), int)),
    "a word": ({"patch_size": "eight", "downsample": 1.0}, np.zeros((4, 2), int)),
    "overlap": ({"patch_size": 8, "downsample": 1.0, "overlap": 8}, np.zeros((4, 2), int)),
    "two steps": ({"patch_size": 8, "downsample": (2.0, 2.5)}, np.zeros((4, 2), int)),
    "nan": ({"patch_size": 8, "downsample": 1.0}, np.full((4, 2), np.nan)),
    "huge": ({"patch_size": 8, "downsample": 1.0}, np.full((4, 2), 2**50)),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_files(tmp_path: Path, case: str) -> None:
    attributes, coords = INVALID[case]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        if coords is not None:
            file.create_dataset("coords", data=coords).attrs.update(attributes)
    with pytest.raises(
        SourceError, match=r"a\.h5: (is not an HDF5 file with 'coords'|does not specify the size)"
    ):
        read_coords(tmp_path / "a.h5")
    (tmp_path / "b.h5").write_bytes(b"no HDF5")
    with pytest.raises(SourceError, match=r"b\.h5: is not a readable HDF5 file"):
        read_coords(tmp_path / "b.h5")


def test_failed_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slide = write_slide(tmp_path / "a.tif")
    coords = Coords("a", np.zeros((1, 2), np.int64), 8, 1.0)
    with pytest.raises(SourceError, match=r"none/a\.h5: cannot be written"):
        write_coords(tmp_path / "none" / "a.h5", coords, slide)

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError("disk is full")

    monkeypatch.setattr(h5py.Group, "create_dataset", fail)
    with pytest.raises(SourceError, match=r"a\.h5: cannot be written: disk is full"):
        write_coords(tmp_path / "a.h5", coords, slide)
    assert [p.name for p in tmp_path.iterdir()] == ["a.tif"]


def test_a_name_that_is_an_array(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        data = file.create_dataset("coords", data=np.zeros((2, 2), int))
        data.attrs.update({"patch_size": 32, "patch_size_level0": 32, "name": np.zeros(2)})
    with pytest.raises(SourceError, match=r"a\.h5: .*invalid values \(ValueError: name"):
        read_coords(tmp_path / "a.h5")


def test_magnification_that_contradicts_the_size_of_pixels(tmp_path: Path) -> None:
    """TRIDENT's magnifications are those of the micrometres: 0.25 um is 40x, whatever the file says."""
    slide = write_slide(tmp_path / "a.tif", resolution=(40000, 40000), resolutionunit="CENTIMETER")
    slide.magnification = 20.0
    coords = tiling.tile(slide, 50, step=slide.step(magnification=20))
    assert coords.step == 2
    write_coords(tmp_path / "a.h5", coords, slide)
    with h5py.File(tmp_path / "a.h5") as file:
        attributes = dict(file["coords"].attrs)
    assert attributes["level0_magnification"] == pytest.approx(40)
    assert attributes["target_magnification"] == pytest.approx(20)

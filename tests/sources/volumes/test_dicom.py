"""DICOM series become volumes in the order of their planes; gaps, phases and damage are one line each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from volume_files import dataset, samples, write_series

import tfbig
from tfbig.errors import SourceError


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("dtype", ["int16", "uint16"])
def test_series(big: bool, dtype: str, tmp_path: Path) -> None:
    array = samples(dtype)
    volume = tfbig.open(write_series(tmp_path / "ct", array, big=big))
    np.testing.assert_array_equal(volume.read(0, 5)[..., 0], array)
    np.testing.assert_array_equal(
        volume.read_box((1, 3), (2, 6), (3, 5))[..., 0], array[1:3, 2:6, 3:5]
    )
    assert (volume.dtype, volume.scaling) == (np.dtype(dtype), (1.0, -1024.0))
    # planes to the top, rows to the back, columns to the left; DICOM counts x to the left and y to the back
    expected = np.array([[0, 0, -0.6, 100], [0, -0.7, 0, 90], [2.5, 0, 0, -50], [0, 0, 0, 1]])
    np.testing.assert_allclose(volume.affine, expected)
    assert (volume.spacing, volume.orientation) == ((2.5, 0.7, 0.6), "SPL")
    assert volume.values().read(0, 1).max() == float(array[0].max()) - 1024


def test_slopes_that_differ_are_applied(tmp_path: Path) -> None:
    slopes = [1.0, 0.5, 2.0, 0.25, 3.0]
    volume = tfbig.open(write_series(tmp_path / "pet", samples(), slopes=slopes))
    assert (volume.dtype, volume.scaling) == (np.dtype("float32"), (1.0, 0.0))
    expected = samples() * np.array(slopes)[:, None, None] - 1024
    np.testing.assert_array_equal(volume.read(0, 5)[..., 0], expected.astype("float32"))


@pytest.mark.parametrize("geometry", [True, False])
def test_one_file_with_frames(geometry: bool, tmp_path: Path) -> None:
    array = samples("uint16")
    data = dataset(array)
    if geometry:
        shared, frames = pydicom.Dataset(), []
        measures, direction = pydicom.Dataset(), pydicom.Dataset()
        measures.PixelSpacing, measures.SliceThickness = [0.7, 0.6], 2.5
        direction.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
        shared.PixelMeasuresSequence = pydicom.Sequence([measures])
        shared.PlaneOrientationSequence = pydicom.Sequence([direction])
        data.SharedFunctionalGroupsSequence = pydicom.Sequence([shared])
        for plane in range(5):
            frame, place = pydicom.Dataset(), pydicom.Dataset()
            place.ImagePositionPatient = [0, 0, -2.5 * plane]  # from the top down
            frame.PlanePositionSequence = pydicom.Sequence([place])
            frames.append(frame)
        data.PerFrameFunctionalGroupsSequence = pydicom.Sequence(frames)
    data.save_as(tmp_path / "x.dcm", enforce_file_format=True)
    volume = tfbig.open(tmp_path / "x.dcm")
    expected = array[::-1] if geometry else array
    np.testing.assert_array_equal(volume.read(0, 5)[..., 0], expected)
    assert volume.spacing == ((2.5, 0.7, 0.6) if geometry else None)


def test_one_plane(tmp_path: Path) -> None:
    volume = tfbig.open(write_series(tmp_path / "x", samples(shape=(1, 6, 7))) / "IM000.dcm")
    assert (volume.shape, volume.spacing) == ((1, 6, 7, 1), (5.0, 0.7, 0.6))


def change(folder: Path, number: int, **tags: Any) -> None:
    """Change the file of a plane."""
    for path in folder.iterdir():
        data = pydicom.dcmread(path)
        if data.ImagePositionPatient[2] == -50 + 2.5 * number:
            for name, value in tags.items():
                setattr(data, name, value)
            data.save_as(path)


def remove(folder: Path, number: int) -> None:
    for path in folder.iterdir():
        if pydicom.dcmread(path).ImagePositionPatient[2] == -50 + 2.5 * number:
            path.unlink()


BAD = {
    "missing": (
        lambda f: remove(f, 3),
        r"1 planes are missing: 5 mm between IM\d+\.dcm and IM\d+\.dcm, 2\.5 mm elsewhere",
    ),
    "unequal": (
        lambda f: change(f, 4, ImagePositionPatient=[-100, -90, -39.0]),
        r"planes have unequal distances: 3\.5 mm between",
    ),
    "twice": (
        lambda f: change(f, 1, ImagePositionPatient=[-100, -90, -50.0]),
        "two planes are at the same place",
    ),
    "turned": (
        lambda f: change(f, 1, ImageOrientationPatient=[0, 1, 0, 1, 0, 0]),
        "its planes are not parallel",
    ),
    "series": (lambda f: change(f, 1, SeriesInstanceUID="1.2.3"), "holds 2 series, of "),
    "pixels": (lambda f: change(f, 1, PixelSpacing=[1, 1]), r"has 6 x 7 pixels of \("),
    "empty": (lambda f: [path.unlink() for path in f.iterdir()], "holds no DICOM image"),
    "damaged": (
        lambda f: (f / "IM002.dcm").write_bytes((f / "IM002.dcm").read_bytes()[:-30]),
        r"IM002\.dcm: its pixels cannot be decoded",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_series(case: str, tmp_path: Path) -> None:
    folder = write_series(tmp_path / "ct", samples())
    spoil, message = BAD[case]
    spoil(folder)
    with pytest.raises(SourceError, match=message) as caught:
        tfbig.sources.open_volume(folder)
    assert "\n" not in str(caught.value)


def test_localizers_and_other_files_are_left_out(tmp_path: Path) -> None:
    folder = write_series(tmp_path / "ct", samples())
    scout = dataset(samples()[0, :3])
    scout.ImageType = ["ORIGINAL", "PRIMARY", "LOCALIZER"]
    scout.save_as(folder / "scout.dcm", enforce_file_format=True)
    (folder / "DICOMDIR.txt").write_text("no image")
    np.testing.assert_array_equal(tfbig.open(folder).read(0, 5)[..., 0], samples())

"""DICOM series become volumes in the order of their planes; gaps, phases and damage are one line each."""

from __future__ import annotations

import re
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from volume_files import dataset, samples, write_series

import tfbig
from tfbig.errors import SourceError, SourceWarning
from tfbig.sources import untrusted
from tfbig.sources.volumes import dicom


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
    for name in ("notes.txt", ".hidden", "DICOMDIR"):
        (folder / name).write_text("no image")
    with pytest.warns(SourceWarning) as said:
        np.testing.assert_array_equal(tfbig.open(folder).read(0, 5)[..., 0], samples())
    texts = [str(each.message) for each in said]
    assert texts == [
        f"{folder}: 1 file passed over, no DICOM image: notes.txt.",
        f"{folder}: 1 file passed over, a localizer: scout.dcm.",
    ]


@pytest.mark.parametrize("implicit", [False, True])
def test_planes_without_a_preamble_are_planes(tmp_path: Path, implicit: bool) -> None:
    """Old scanners and some archives write such files, in implicit or explicit VR."""
    folder = write_series(tmp_path / "ct", samples("int16"))
    for number in (1, 3):
        path = folder / f"IM{number:03}.dcm"
        data = pydicom.dcmread(path)
        plain = pydicom.Dataset()
        plain.update({element.tag: element for element in data})
        pydicom.filewriter.dcmwrite(
            path, plain, implicit_vr=implicit, little_endian=True, enforce_file_format=False
        )
        assert path.read_bytes()[128:132] != b"DICM"
    volume = tfbig.open(folder)
    np.testing.assert_array_equal(volume.read(0, 5)[..., 0], samples("int16"))
    assert volume.scaling == (1.0, -1024.0)


def put(folder: Path, tag: str, value: bytes, kind: bytes | None = None) -> None:
    """Replace the stored bytes of a value of one file, and perhaps the letters of its kind."""
    path = folder / "IM002.dcm"
    element = pydicom.dcmread(path).data_element(tag)
    assert element is not None
    stored, number = path.read_bytes(), element.tag
    place = stored.index(struct.pack("<HH", number.group, number.element) + element.VR.encode())
    end = place + 8 + struct.unpack("<H", stored[place + 6 : place + 8])[0]
    head = stored[place : place + 4] + (kind or element.VR.encode())
    path.write_bytes(stored[:place] + head + struct.pack("<H", len(value)) + value + stored[end:])


VALUES: dict[str, tuple[str, bytes, bytes | None]] = {
    "two rows": ("Rows", struct.pack("<HH", 1, 2), None),
    "no rows": ("Rows", b"", None),
    "rows of 3 bytes": ("Rows", b"abc", None),
    "0 columns": ("Columns", bytes(2), None),
    "other kind": ("Rows", b"ab", b"ZZ"),
    "most pixels": ("Rows", b"\xff\xff", None),
    "258 bits": ("BitsAllocated", struct.pack("<H", 258 * 8), None),
    "24 bits": ("BitsAllocated", struct.pack("<H", 24), None),
    "no position": ("ImagePositionPatient", b"", None),
    "two numbers": ("ImagePositionPatient", b"1\\2 ", None),
    "text": ("ImagePositionPatient", b"a\\b\\c ", None),
    "nan": ("ImagePositionPatient", b"nan\\0\\0 ", None),
    "huge": ("ImagePositionPatient", b"1e308\\-1e308\\1e308 ", None),
    "direction": ("ImageOrientationPatient", b"1\\0 ", None),
    "spacing": ("PixelSpacing", b"1 ", None),
    "slope": ("RescaleSlope", b"inf ", None),
    "slope text": ("RescaleSlope", b"1\\2 ", None),
    "number": ("InstanceNumber", b"x ", None),
    "samples": ("SamplesPerPixel", b"\xff\xff", None),
}


@pytest.mark.parametrize("case", VALUES)
def test_values_that_are_wrong(case: str, tmp_path: Path) -> None:
    folder = write_series(tmp_path / "ct", samples())
    put(folder, *VALUES[case])
    for read in (tfbig.open, tfbig.sources.VolumeOnDisk):
        try:
            volume = read(folder)
        except SourceError as error:
            assert re.search(r"IM\d+\.dcm|ct: ", str(error))
            assert "\n" not in str(error)
        else:  # without a place, planes are in the order of their numbers
            assert case == "no position" and volume.shape == (5, 6, 7, 1)


@pytest.mark.parametrize("tag", ["Columns", "BitsAllocated", "PhotometricInterpretation"])
def test_values_that_are_missing(tag: str, tmp_path: Path) -> None:
    folder = write_series(tmp_path / "ct", samples())
    for path in folder.iterdir():
        data = pydicom.dcmread(path)
        delattr(data, tag)
        data.save_as(path)
    with pytest.raises(SourceError, match=r"IM00\d\.dcm: ") as caught:
        tfbig.open(folder)
    assert "\n" not in str(caught.value)


def test_a_damaged_series_is_one_so_that_it_is_reported(tmp_path: Path) -> None:
    folder = write_series(tmp_path / "ct", samples())
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes()[:140])
    assert dicom.is_series(folder)
    with pytest.raises(SourceError, match=r"ct|IM00\d\.dcm"):
        tfbig.open(folder)


@pytest.mark.parametrize("count", [2**31 - 1, 2 * 10**7, -3, 3000])
def test_frames_are_counted_before_they_are_read(count: int, tmp_path: Path) -> None:
    data = dataset(samples("uint16"))
    data.NumberOfFrames = count
    data.save_as(tmp_path / "x.dcm", enforce_file_format=True)
    begin = time.perf_counter()
    with pytest.raises(SourceError, match=r"x\.dcm: "):
        tfbig.open(tmp_path / "x.dcm")
    assert time.perf_counter() - begin < 10


def test_files_that_are_deflated_as_a_whole_are_refused(tmp_path: Path) -> None:
    data = dataset(np.zeros((64, 512, 512), "uint8"))
    data.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
    data.save_as(tmp_path / "x.dcm", enforce_file_format=True)
    with pytest.raises(SourceError, match=r"x\.dcm: is compressed as a whole"):
        tfbig.open(tmp_path / "x.dcm")


def test_a_series_takes_no_more_than_its_files_can_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_series(tmp_path / "ct", samples())
    for path in folder.iterdir():
        data = pydicom.dcmread(path)
        data.Rows = data.Columns = 512
        data.save_as(path)
    monkeypatch.setattr(untrusted, "ALWAYS_ALLOWED", 4 * 512 * 512 * 2)
    with pytest.raises(SourceError, match="ct: its pixels would take"):
        tfbig.open(folder)


def test_real_numbers(tmp_path: Path) -> None:
    array = samples("float32") + np.float32(0.5)
    data = dataset(array)
    del data.PixelData, data.PixelRepresentation
    data.FloatPixelData = array.tobytes()
    data.save_as(tmp_path / "x.dcm", enforce_file_format=True)
    np.testing.assert_array_equal(tfbig.open(tmp_path / "x.dcm").read(0, 5)[..., 0], array)


def test_compressed_frames(tmp_path: Path) -> None:
    array = samples("uint16")
    data = dataset(array)
    data.compress(pydicom.uid.RLELossless)
    data.save_as(tmp_path / "x.dcm", enforce_file_format=True)
    np.testing.assert_array_equal(tfbig.open(tmp_path / "x.dcm").read(0, 5)[..., 0], array)


@pytest.mark.parametrize("rows", [4, 6])
def test_rows_that_contradict_the_pixels(rows: int, tmp_path: Path) -> None:
    """Fewer rows than are stored would be a part of the image."""
    folder = write_series(tmp_path / "a", samples(shape=(3, 5, 8)))
    for file in folder.iterdir():
        data = pydicom.dcmread(file)
        data.Rows = rows
        data.save_as(file)
    message = r"dcm: (holds 80 bytes of pixels; expected 64, 1 x 4 rows x 8|its pixels cannot be)"
    with pytest.raises(SourceError, match=message):
        tfbig.open(folder)

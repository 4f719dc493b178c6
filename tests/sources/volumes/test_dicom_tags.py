"""What DICOM attributes say about values: a test for each row of the table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from pydicom.pixels.processing import apply_modality_lut, apply_presentation_lut
from volume_files import samples, write_series

import tfbig
from tfbig.errors import SourceError, SourceWarning
from tfbig.sources.volumes import dicom_tags

STORED = samples("uint16")


def series(folder: Path, planes: tuple[int, ...] = (0, 1, 2, 3, 4), **tags: Any) -> Path:
    """Write a series of MR whose planes have more tags."""
    write_series(folder, STORED)
    for number, path in enumerate(in_order(folder)):
        data = pydicom.dcmread(path)
        data.Modality = "MR"
        for name, value in tags.items() if number in planes else ():
            if isinstance(value, pydicom.DataElement):
                data[name] = value
            else:
                setattr(data, name, value)
        data.save_as(path)
    return folder


def in_order(folder: Path) -> list[Path]:
    """Return the files of a series from the lowest plane to the highest."""
    return sorted(folder.iterdir(), key=lambda path: pydicom.dcmread(path).ImagePositionPatient[2])


def values(folder: Path) -> Any:
    return tfbig.open(folder).values().read(0, 5)[..., 0]


def rescaled(folder: Path) -> None:
    np.testing.assert_array_equal(values(series(folder)), STORED.astype("float32") - 1024)


def shown(folder: Path) -> Any:
    """Values for the display, as pydicom computes them, but for a constant of each plane."""
    planes = [pydicom.dcmread(path) for path in in_order(folder)]
    found = [apply_presentation_lut(apply_modality_lut(p.pixel_array, p), p) for p in planes]
    return np.stack([plane - plane.min() for plane in found])


def inverse(folder: Path) -> None:
    series(folder, PresentationLUTShape="INVERSE", PhotometricInterpretation="MONOCHROME1")
    ours = values(folder)
    assert tfbig.open(folder).scaling == (-1.0, 65535.0 - 1024)
    np.testing.assert_array_equal(ours - ours.min((1, 2), keepdims=True), shown(folder))


def colours(folder: Path) -> None:
    gray = np.repeat(samples("uint8", shape=(1, 6, 7))[..., None], 3, -1)
    write_series(folder, samples("uint8", shape=(1, 6, 7)))
    (path,) = folder.iterdir()
    data = pydicom.dcmread(path)
    rgb = gray.copy()
    rgb[..., 0] = 200
    data.SamplesPerPixel, data.PlanarConfiguration = 3, 0
    data.PhotometricInterpretation = "YBR_FULL"
    data.PixelData = pydicom.pixels.convert_color_space(rgb[0], "RGB", "YBR_FULL").tobytes()
    data.save_as(path)
    found = tfbig.open(folder).read(0, 1)
    assert np.abs(found.astype(int) - rgb).max() <= 3  # the rounding of YBR


def palette(folder: Path) -> None:
    series(folder, PhotometricInterpretation="PALETTE COLOR")
    with pytest.raises(SourceError, match="its samples are numbers of colours"):
        tfbig.sources.open_volume(folder)


def table(folder: Path) -> None:
    item = pydicom.Dataset()
    item.LUTDescriptor = [2, 0, 16]
    item.add_new("LUTData", "US", [1, 5])
    series(folder, ModalityLUTSequence=pydicom.Sequence([item]))
    with pytest.raises(SourceError, match=r"its values are in a table \(ModalityLUTSequence\)"):
        tfbig.sources.open_volume(folder)


def unchanged(**tags: Any) -> Callable[[Path], None]:
    def check(folder: Path) -> None:
        expected = STORED.astype("float32") - 1024
        np.testing.assert_array_equal(values(series(folder, **tags)), expected)

    return check


def localizer(folder: Path) -> None:
    series(folder, (4,), ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"])
    with pytest.warns(SourceWarning, match="1 file passed over, a localizer: IM"):
        assert tfbig.open(folder).shape[0] == 4


def preamble(folder: Path) -> None:
    series(folder)
    for path in folder.iterdir():
        data = pydicom.dcmread(path)
        plain = pydicom.Dataset()
        plain.update({element.tag: element for element in data})
        pydicom.filewriter.dcmwrite(path, plain, implicit_vr=True, little_endian=True)
    np.testing.assert_array_equal(values(folder), STORED.astype("float32") - 1024)


CASES: dict[str, Callable[[Path], None]] = {
    "RescaleSlope, RescaleIntercept": rescaled,
    "PhotometricInterpretation MONOCHROME1, PresentationLUTShape INVERSE": inverse,
    "PhotometricInterpretation YBR": colours,
    "PhotometricInterpretation PALETTE COLOR": palette,
    "ModalityLUTSequence": table,
    "PixelPaddingValue": unchanged(
        PixelPaddingValue=pydicom.DataElement("PixelPaddingValue", "US", 3)
    ),
    "WindowCenter, VOILUTSequence, PresentationLUTSequence": unchanged(
        WindowCenter=40, WindowWidth=9
    ),
    "ImageType LOCALIZER": localizer,
    "the preamble of a file": preamble,
}


@pytest.mark.parametrize("name", CASES)
def test_attribute(name: str, tmp_path: Path) -> None:
    CASES[name](tmp_path / "series")


def test_every_attribute_has_a_test() -> None:
    assert [each.subject for each in dicom_tags.ATTRIBUTES] == list(CASES)


@pytest.mark.parametrize(
    "tags",
    [{"PhotometricInterpretation": "MONOCHROME1"}, {"PresentationLUTShape": "INVERSE"}],
)
def test_a_series_of_both_signs_has_one(tmp_path: Path, tags: dict[str, str]) -> None:
    folder = series(tmp_path / "series", (1, 3), **tags)
    found, plain = values(folder), STORED.astype("float32") - 1024
    for plane in range(5):
        expected = (
            65535 - STORED[plane].astype("float32") - 1024 if plane in (1, 3) else plain[plane]
        )
        np.testing.assert_array_equal(found[plane], expected)


@pytest.mark.parametrize("signed", [False, True])
def test_bits_that_are_stored(tmp_path: Path, signed: bool) -> None:
    """The largest value of 12 bits becomes the smallest."""
    data = pydicom.Dataset()
    data.PhotometricInterpretation, data.BitsStored = "MONOCHROME1", 12
    data.PixelRepresentation = int(signed)
    slope, intercept = dicom_tags.inverted(data, (2.0, 1.0))
    low, high = (-2048, 2047) if signed else (0, 4095)
    assert (slope * high + intercept, slope * low + intercept) == (2.0 * low + 1, 2.0 * high + 1)


@pytest.mark.parametrize("tags", [{"Modality": "CT"}, {"Modality": "PT"}, {"RescaleType": "HU"}])
def test_measurements_are_not_inverted(tmp_path: Path, tags: dict[str, str]) -> None:
    folder = series(tmp_path / "series", PhotometricInterpretation="MONOCHROME1", **tags)
    np.testing.assert_array_equal(values(folder), STORED.astype("float32") - 1024)

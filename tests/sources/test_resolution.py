"""Pixel sizes from TIFF tags, Aperio's description, OME-XML and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import tifffile
from slide_files import noise, write_pyramid

from tfbig import SourceError
from tfbig.sources import Resolution, open_slide, read_mpp_table
from tfbig.sources.resolution import (
    _mpp_from_ome,
    doubts,
    one_size,
    resolution_from_openslide,
)


@pytest.mark.parametrize(
    ("options", "mpp"),
    [
        ({"resolution": (40000, 20000), "resolutionunit": "CENTIMETER"}, (0.5, 0.25)),
        ({"resolution": (25400, 25400), "resolutionunit": "INCH"}, (1.0, 1.0)),
        ({"resolution": (72, 72), "resolutionunit": "INCH"}, None),
        ({"resolution": (4, 4), "resolutionunit": "NONE"}, None),
        (
            {"description": "Aperio Image Library v1\r\n1x1 |AppMag = 40|MPP = 0.2500|Left = 2"},
            (0.25, 0.25),
        ),
        ({"description": "Aperio |MPP = 0|Left = 2"}, None),
        ({"description": "Aperio |MPP = 0,5000|AppMag = 20,0"}, (0.5, 0.5)),
        ({"description": "Aperio |AppMag = 20|MPP = 1,5000"}, (1.5, 1.5)),
        ({"description": "Aperio |MPP = 1,500\r\nLeft = 2"}, (1.5, 1.5)),
        ({"description": "Aperio |MPP = 1.2.3|Left = 2"}, None),
        ({"description": "Aperio |MPP = 1,2,3|Left = 2"}, None),
        ({}, None),
    ],
)
def test_pixel_size_of_tiff(tmp_path: Path, options: Any, mpp: Any) -> None:
    write_pyramid(tmp_path / "a.tif", **options)
    assert open_slide(tmp_path / "a.tif").mpp == pytest.approx(mpp)
    assert open_slide(tmp_path / "a.tif", mpp=0.3).mpp == (0.3, 0.3)


@pytest.mark.parametrize(
    ("unit", "mpp"), [("\u00b5m", (0.5, 0.25)), ("nm", (5e-4, 2.5e-4)), ("pixel", None)]
)
def test_pixel_size_of_ome_xml(tmp_path: Path, unit: str, mpp: Any) -> None:
    sizes = {"PhysicalSizeX": 0.25, "PhysicalSizeY": 0.5}
    units = {f"{key}Unit": unit for key in sizes}
    path = tmp_path / "a.ome.tif"
    tifffile.imwrite(
        path, noise(40, 30, 3), photometric="rgb", metadata={"axes": "YXS", **sizes, **units}
    )
    slide = open_slide(path)
    assert slide.mpp == pytest.approx(mpp)


@pytest.mark.parametrize(
    ("vendor", "mpp", "expected"),
    [
        ("aperio", "50", (50.0, 50.0)),
        ("generic-tiff", "50", None),
        ("generic-tiff", "40", (40.0, 40.0)),
    ],
)
def test_pixel_size_of_openslide(vendor: str, mpp: str, expected: Any) -> None:
    """Coarse pixels in a generic TIFF are a default of the program that wrote it."""
    properties = {"openslide.vendor": vendor, "openslide.mpp-x": mpp, "openslide.mpp-y": mpp}
    assert resolution_from_openslide(properties) == Resolution(expected)
    for power in ("40", "40,0"):
        properties["openslide.objective-power"] = power
        assert resolution_from_openslide(properties).magnification == 40
    properties |= {"openslide.mpp-x": f"{mpp},0", "openslide.mpp-y": f"{mpp},000"}
    assert resolution_from_openslide(properties).mpp == expected


def test_decimal_comma_of_ome_xml() -> None:
    text = '<Pixels PhysicalSizeX="0,25" PhysicalSizeY="0,5000"/>'
    assert _mpp_from_ome(ElementTree.fromstring(text)) == (0.5, 0.25)


def test_decimal_commas_in_a_table(tmp_path: Path) -> None:
    table = tmp_path / "mpp.csv"
    table.write_text('wsi;mpp\na.tif;0,25\nb.svs;1,5000\n"c;d";2\n')
    assert read_mpp_table(table) == {"a.tif": 0.25, "b.svs": 1.5, "c;d": 2}
    table.write_text('wsi,mpp\na.tif,"0,5"\n')
    assert read_mpp_table(table) == {"a.tif": 0.5}
    for text, message in (
        ("wsi;mpp\na.tif;1,500", r"line 2: mpp '1,500' \(.*decimal comma or"),
        ("wsi,mpp\na.tif,1,5000", "line 2 has 3 cells for 2 columns: put a cell with a comma"),
        ("wsi;mpp\na;0,5\nb;0.25", "line 3: .*the column has '0,5' with a decimal comma and"),
    ):
        table.write_text(text)
        with pytest.raises(SourceError, match=message):
            read_mpp_table(table)


def test_table(tmp_path: Path) -> None:
    table = tmp_path / "mpp.csv"
    table.write_text("wsi, mpp\na.tif,0.25\nb.svs, 0.5\n")
    assert read_mpp_table(table) == {"a.tif": 0.25, "b.svs": 0.5}
    for line, message in {
        **{f"a.tif,{text}": f"line 2: mpp '{text}'; expected" for text in ("0", "no", "nan", "-1")},
        ",0.3": "line 2: has no wsi",
        "a.tif,0.2\na.tif,0.3": "slide a.tif is in line 2 and line 3",
    }.items():
        table.write_text(f"wsi,mpp\n{line}\n")
        with pytest.raises(SourceError, match=rf"mpp\.csv: {message}"):
            read_mpp_table(table)
    table.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SourceError, match=r"mpp\.csv: cannot be read as a CSV file"):
        read_mpp_table(table)
    for text in ("", "wsi,mpp\n", '"""'):
        table.write_text(text)
        with pytest.raises(
            SourceError, match=r"mpp\.csv: has no rows; expected a table with columns wsi, mpp"
        ):
            read_mpp_table(table)
    with pytest.raises(SourceError, match=r"none\.csv: no such file"):
        read_mpp_table(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("mpp", "magnification", "kinds"),
    [
        ((0.25, 0.25), 40.0, []),
        ((0.499, 0.499), 20.0, []),
        ((0.2282, 0.2282), 40.0, []),  # of Hamamatsu
        ((0.234, 0.234), 20.0, ["a magnification that contradicts the size of pixels"]),
        ((0.5, 0.5), 40.0, ["a magnification that contradicts the size of pixels"]),
        ((0.25, 0.2), None, ["pixels that are not square"]),
        ((0.25, 0.2485), None, []),
        ((0.00025, 0.00025), None, ["pixels of an implausible size"]),
        ((250.0, 250.0), None, ["pixels of an implausible size"]),
        (None, 40.0, []),
    ],
)
def test_doubts(mpp: Any, magnification: float | None, kinds: list[str]) -> None:
    found = doubts(mpp, magnification)
    assert list(found) == kinds
    if magnification == 20 and kinds:
        assert found[kinds[0]] == (
            "20x, but 0.234 x 0.234 um a pixel, which is 42.7x; the micrometres are used"
        )


def test_one_size() -> None:
    assert one_size((0.25, 0.25)) == 0.25
    assert one_size((0.25, 0.2525)) == pytest.approx(0.25125)
    assert one_size((0.25, 0.2)) is None
    assert one_size((4.0, 4.1), rounding=0.05) == pytest.approx(4.05)

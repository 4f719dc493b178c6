"""Slides: levels, resolutions and thumbnails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from slide_files import NDPI, OME_TIFF, PANCREAS, SMALL_SVS, write_pyramid

from tfbig import SourceError, sources
from tfbig.sources import open_slide
from tfbig.tissue import find_tissue

REAL = [
    (SMALL_SVS, (2967, 2220), 1, 0.499, 20.0, "tifffile"),
    (OME_TIFF, (1101, 1101), 1, 0.2271, None, "tifffile"),
    (NDPI, (4864, 3968), 7, 0.2282, 40.0, "OpenSlide (hamamatsu)"),
    (PANCREAS, (3721, 4184), 2, 2.0192, None, "tifffile"),
]


@pytest.mark.parametrize(
    ("path", "size", "levels", "mpp", "power", "reader"), REAL, ids=lambda v: getattr(v, "name", "")
)
def test_real_slides(
    path: Path, size: tuple[int, int], levels: int, mpp: float, power: float | None, reader: str
) -> None:
    slide = open_slide(path)
    assert slide.shape == (*size, 3)
    assert len(slide.levels) == levels
    assert slide.mpp == pytest.approx((mpp, mpp), abs=1e-4)
    assert slide.magnification == power
    assert slide.reader == reader
    assert slide.level().mpp == slide.mpp
    assert slide.thumbnail(300).shape[:2] == tuple(round(n * 300 / max(size)) for n in size)


def test_levels(tmp_path: Path) -> None:
    base = write_pyramid(tmp_path / "a.tif")
    slide = open_slide(tmp_path / "a.tif")
    assert slide.levels == ((400, 300), (200, 150), (100, 75))
    assert slide.downsamples == (1, 2, 4)
    np.testing.assert_array_equal(slide.read((7, 90), (3, 61), 1), base[::2, ::2][7:90, 3:61])
    assert slide.level(1) is slide.level(1)
    with pytest.raises(
        SourceError, match=r"a\.tif: level 3 requested, but the slide has 3 \(400 x 300, 200"
    ):
        slide.level(3)
    source = slide.level(2)
    slide.close()
    for read in (lambda: slide.read((0, 2), (0, 2)), lambda: source.read(0, 2)):
        with pytest.raises(SourceError, match=r"a\.tif: was closed\. Open the s"):
            read()


def test_resolutions(tmp_path: Path) -> None:
    write_pyramid(tmp_path / "a.tif", resolution=(20000, 20000), resolutionunit="CENTIMETER")
    slide = open_slide(tmp_path / "a.tif")  # 0.5 um
    assert slide.at(mpp=1.0) is slide.level(1)
    assert slide.at(mpp=1.005) is slide.level(1)
    assert slide.at(magnification=20) is slide.level(0)
    assert slide.at(magnification=5) is slide.level(2)
    assert slide.at(level=2) is slide.level(2)
    between = slide.at(mpp=1.5)
    assert between.shape == (133, 100, 3)
    assert between.mpp == pytest.approx((1.5, 1.5), rel=0.01)
    expected = sources.Scaled(slide.level(1), (133, 100))
    np.testing.assert_array_equal(between.read(0, 133), expected.read(0, 133))
    assert slide.at(mpp=0.45).shape == (444, 333, 3)
    with pytest.raises(
        SourceError, match=r"finest pixels are 2 times as coarse as requested; expected 1\.25"
    ):
        slide.at(mpp=0.25)
    slide.magnification = 40.0  # 20x is 0.5 um, whatever objective the file names
    assert slide.at(magnification=20) is slide.level(0)
    slide.mpp = None
    assert slide.at(magnification=20) is slide.level(1)


def test_pixels_that_are_not_square(tmp_path: Path) -> None:
    """Rows and columns have their own step; one number for both is refused, but for pixels as they are."""
    write_pyramid(tmp_path / "a.tif", resolution=(50000, 40000), resolutionunit="CENTIMETER")
    slide = open_slide(tmp_path / "a.tif")
    assert slide.mpp == pytest.approx((0.25, 0.2))
    assert slide.steps(mpp=0.5) == pytest.approx((2, 2.5))
    assert slide.steps(magnification=20) == pytest.approx((2, 2.5))
    assert slide.at(mpp=0.5).shape == (200, 120, 3)
    assert slide.at(mpp=0.5).mpp == pytest.approx((0.5, 0.5))
    assert slide.step(level=1) == 2
    message = r"pixels are 0\.25 x 0\.2 um \(rows x columns\), .* 2 x 2\.5 pixels of level 0; expected squ"
    with pytest.raises(SourceError, match=message):
        slide.step(mpp=0.5)
    slide.mpp = 0.25, 0.2476
    assert slide.step(mpp=0.5) == pytest.approx(2.01, abs=0.01)


def test_levels_whose_sides_are_rounded(tmp_path: Path) -> None:
    """A level of 37 x 22 pixels of 147 x 89 has steps that differ by 1.8 %, which is rounding."""
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        options = {"photometric": "rgb", "tile": (16, 16)}
        file.write(np.zeros((147, 89, 3), np.uint8), subifds=2, **options)
        for rows, columns in ((37, 22), (37, 44)):
            small = np.zeros((rows, columns, 3), np.uint8)
            file.write(small, subfiletype=1, **options)
    slide = open_slide(tmp_path / "a.tif")
    if len(slide.levels) == 3:
        with pytest.raises(SourceError, match=r"level 2 is \(37, 44\), so that"):
            slide.step(level=2)
    assert slide.step(level=1) == pytest.approx((147 / 37 + 89 / 22) / 2)


@pytest.mark.parametrize("mpp", [0.00025, 250.0])
def test_implausible_pixel_size(tmp_path: Path, mpp: float) -> None:
    """Micrometres in another unit are refused with the slide and the value; tissue is found without them."""
    np.save(tmp_path / "a.npy", np.full((300, 200, 3), 240, np.uint8))
    slide = open_slide(tmp_path / "a.npy", mpp=mpp)
    message = (
        rf"a\.npy: says that its pixels are {mpp:.4g} x .* 0\.5 um are asked for; .* 0\.02 to 40"
    )
    for arguments in ({"mpp": 0.5}, {"magnification": 20.0}):
        with pytest.raises(SourceError, match=message):
            slide.at(**arguments)
    assert slide.at(mpp=2 * mpp).shape == (150, 100, 3)  # as of an electron microscope
    assert find_tissue(slide, "otsu").mask.shape == (300, 200)


@pytest.mark.parametrize(
    "arguments", [{}, {"mpp": 1.0, "level": 1}, {"mpp": 0.0}, {"magnification": -1.0}]
)
def test_invalid_resolution(tmp_path: Path, arguments: dict[str, Any]) -> None:
    write_pyramid(tmp_path / "a.tif")
    with pytest.raises(ValueError, match="expected one of mpp, magnification and level"):
        open_slide(tmp_path / "a.tif").at(**arguments)


def test_unknown_pixel_size(tmp_path: Path) -> None:
    write_pyramid(tmp_path / "a.tif")
    for arguments in ({"mpp": 1.0}, {"magnification": 10.0}):
        with pytest.raises(
            SourceError, match=r"a\.tif: does not specify its pixel size; .*mpp=0\.25"
        ):
            open_slide(tmp_path / "a.tif").at(**arguments)
    assert open_slide(tmp_path / "a.tif", mpp=0.5).at(mpp=1.0).shape == (200, 150, 3)


def test_thumbnail_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = write_pyramid(tmp_path / "a.tif")
    slide = open_slide(tmp_path / "a.tif")
    opened: list[int] = []
    level = slide.level
    monkeypatch.setattr(slide, "level", lambda n=0: opened.append(n) or level(n))
    assert slide.thumbnail(90).shape == (90, 68, 3)
    np.testing.assert_array_equal(slide.thumbnail(100), base[::4, ::4])
    assert slide.thumbnail(150).shape == (150, 112, 3)
    assert slide.thumbnail(1000).shape == (400, 300, 3)
    assert opened == [2, 2, 1, 0]

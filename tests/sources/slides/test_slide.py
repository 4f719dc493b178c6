"""Slides: levels, resolutions and thumbnails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from slide_files import NDPI, OME_TIFF, PANCREAS, SMALL_SVS, write_pyramid

from tfbig import SourceError, sources
from tfbig.sources import open_slide

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
    slide.magnification = 40.0  # the objective that the file names wins over the rule 20x at 0.5 um
    assert slide.at(magnification=20) is slide.level(1)


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

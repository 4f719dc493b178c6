"""Slides read by OpenSlide: levels, damaged tiles, transparency."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from samples import FILES
from slide_files import NDPI, PANCREAS, SMALL_SVS

from tfbig import SourceError
from tfbig.sources import open_slide
from tfbig.sources.slides import openslide


@pytest.mark.parametrize("path", [SMALL_SVS, PANCREAS], ids=lambda path: path.name)
def test_equals_tifffile(path: Path) -> None:
    tiff, slide = open_slide(path), open_slide(path, reader="openslide")
    assert (tiff.levels, tiff.magnification) == (slide.levels, slide.magnification)
    assert tiff.mpp == pytest.approx(slide.mpp)
    rows, columns = tiff.shape[:2]
    for window in (((0, 70), (0, columns)), ((rows - 1500, rows), (columns - 1111, columns - 3))):
        np.testing.assert_array_equal(tiff.read(*window), slide.read(*window))


def test_levels_are_aligned() -> None:
    slide = open_slide(NDPI)
    whole = slide.level(2)
    part = whole.read_window((100, 1100), (64, 900))  # one block, and parts of four
    np.testing.assert_array_equal(part, whole.read(0, whole.shape[0])[100:1100, 64:900])
    small = whole.read_window((304, 704), (248, 548)).astype(float)
    large = slide.read((304 * 4, 704 * 4), (248 * 4, 548 * 4))
    means = large.reshape(400, 4, 300, 4, 3).mean((1, 3))
    shifts = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
    differences = [np.abs(means - np.roll(small, shift, (0, 1))).mean() for shift in shifts]
    assert shifts[int(np.argmin(differences))] == (0, 0)


def test_reads_again_after_damaged_tile() -> None:
    slide = open_slide(FILES / "unreadable_tile.svs", reader="openslide")
    for _ in range(2):
        with pytest.raises(
            SourceError, match=r"unreadable_tile\.svs: level 0, rows 0:16 from column 0, cannot"
        ):
            slide.read((0, 16), (0, 16))
    slide.close()
    with pytest.raises(SourceError, match=r"unreadable_tile\.svs: was closed"):
        slide.read((0, 16), (0, 16))


def test_unreadable_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.mrxs").write_bytes(b"no slide")
    with pytest.raises(SourceError, match=r"a\.mrxs: cannot be read by OpenSlide .*8 bytes"):
        open_slide(tmp_path / "a.mrxs")
    with pytest.raises(SourceError, match=r"b\.mrxs: there is no such file"):
        open_slide(tmp_path / "b.mrxs")
    monkeypatch.setattr(openslide, "openslide", None)
    monkeypatch.setattr(openslide, "_import_error", "no library")
    with pytest.raises(
        SourceError, match=r"a\.mrxs: needs OpenSlide, which cannot be imported \(no library\)"
    ):
        open_slide(tmp_path / "a.mrxs")
    assert open_slide(SMALL_SVS).reader == "tifffile"


def test_transparent_pixels() -> None:
    pixels = np.zeros((1, 3, 4), np.uint8)
    pixels[0, :, 3] = [0, 255, 51]
    pixels[0, :, 0] = [9, 90, 100]
    actual = openslide._opaque(pixels, (255, 200, 10))
    np.testing.assert_array_equal(actual[0], [[255, 200, 10], [90, 0, 0], [224, 160, 8]])

"""Slides read by OpenSlide: levels, damaged tiles, transparency, areas that were not scanned."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from masked_images import check_background
from samples import FILES
from slide_files import NDPI, PANCREAS, SMALL_SVS

from tfbig import SourceError
from tfbig.sources import open_slide
from tfbig.sources.files import Package
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
    monkeypatch.setattr(openslide, "openslide", Package("no_library"))
    with pytest.raises(
        SourceError,
        match=r"a\.mrxs: needs OpenSlide, which cannot be imported \(No module named 'no_library'\)",
    ):
        open_slide(tmp_path / "a.mrxs")
    assert open_slide(SMALL_SVS).reader == "tifffile"


def test_transparent_pixels() -> None:
    pixels = np.zeros((1, 3, 4), np.uint8)
    pixels[0, :, 3] = [0, 255, 51]
    pixels[0, :, 0] = [9, 90, 100]
    actual = openslide._opaque(pixels, (255, 200, 10))
    np.testing.assert_array_equal(actual[0], [[255, 200, 10], [90, 0, 0], [224, 160, 8]])


class FakeOpenSlide:
    """A slide of which a rectangle was scanned, with a level half as large; it counts what is read."""

    level_dimensions = ((9000, 6000), (4500, 3000))
    level_downsamples = (1.0, 2.0)
    scanned = (1501, 3501), (4003, 7003)  # rows and columns

    def __init__(self, name: str) -> None:
        self.pixels_read = 0
        (top, bottom), (left, right) = self.scanned
        self.properties = {
            "openslide.vendor": "mirax",
            "openslide.background-color": "F0F1F2",
            "openslide.bounds-x": str(left),
            "openslide.bounds-y": str(top),
            "openslide.bounds-width": str(right - left),
            "openslide.bounds-height": str(bottom - top),
        }

    @staticmethod
    def detect_format(name: str) -> str:
        return "mirax"

    def set_cache(self, cache: object) -> None:
        pass

    def read_region(
        self, location: tuple[int, int], level: int, size: tuple[int, int]
    ) -> np.ndarray:
        self.pixels_read += size[0] * size[1]
        step = 2**level
        rows, columns = np.ogrid[: size[1], : size[0]]
        rows, columns = rows * step + location[1], columns * step + location[0]
        (top, bottom), (left, right) = self.scanned
        inside = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
        noise = ((rows * 7 + columns * 13) % 251).astype(np.uint8)
        return np.stack([*[np.where(inside, noise, 0)] * 3, np.where(inside, 255, 0)], -1).astype(
            np.uint8
        )


@pytest.fixture
def scanned_slide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    fake = SimpleNamespace(
        missing="",
        OpenSlide=FakeOpenSlide,
        OpenSlideCache=lambda size: None,
        OpenSlideError=OSError,
    )
    monkeypatch.setattr(openslide, "openslide", fake)
    monkeypatch.setattr(openslide, "_shared_cache", [])
    monkeypatch.setattr(openslide.trial, "check", lambda kind, path: None)
    (tmp_path / "a.mrxs").write_bytes(b"fake")
    return open_slide(tmp_path / "a.mrxs")


def test_origin(scanned_slide: Any) -> None:
    """It is that of OpenSlide's properties, row before column, also after channels are chosen."""
    assert scanned_slide.origin == (1501, 4003)
    assert scanned_slide.channels(0).origin == (1501, 4003)
    assert scanned_slide.level(0).origin == (1501, 4003)
    assert scanned_slide.level(1).origin == (0, 0)
    assert open_slide(SMALL_SVS, reader="tifffile").origin == (0, 0)


@pytest.mark.parametrize(
    "missing", ["openslide.bounds-x", "openslide.bounds-width", "openslide.bounds-height"]
)
def test_no_origin_without_all_bounds(missing: str) -> None:
    """QuPath needs all four."""
    properties = FakeOpenSlide("").properties
    assert openslide._origin(properties) == (1501, 4003)
    assert openslide._origin({**properties, missing: "x"}) == (0, 0)
    del properties[missing]
    assert openslide._origin(properties) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("level", [0, 1])
def test_background_outside_the_scanned_area(scanned_slide: Any, level: int) -> None:
    source = scanned_slide.level(level)
    check_background(source, 0.7 if level == 0 else 0.1)
    fake, rows = scanned_slide._handle.slide(), source.shape[0]
    fake.pixels_read = 0
    assert source.colour((0, 100), (0, 900)).tolist() == [0xF0, 0xF1, 0xF2]
    assert source.colour((rows // 2, rows // 2 + 1), (0, source.shape[1])) is None
    assert (source.read_window((0, rows), (0, 900)) == (0xF0, 0xF1, 0xF2)).all()
    assert fake.pixels_read == 0


@pytest.mark.parametrize(
    ("rows", "columns"),
    [((1490, 1520), (0, 9000)), ((3400, 3600), (4000, 4100)), ((1400, 3600), (7000, 7050))],
)
def test_windows_at_the_border_of_the_scanned_area(
    scanned_slide: Any, rows: tuple[int, int], columns: tuple[int, int]
) -> None:
    """Windows equal those that OpenSlide reads, but what is far outside is not read."""
    source, fake = scanned_slide.level(0), FakeOpenSlide("")
    size = columns[1] - columns[0], rows[1] - rows[0]
    whole = fake.read_region((columns[0], rows[0]), 0, size)
    expected = openslide._opaque(whole, (0xF0, 0xF1, 0xF2))
    np.testing.assert_array_equal(source.read_window(rows, columns), expected)
    assert scanned_slide._handle.slide().pixels_read < size[0] * size[1]


@pytest.mark.parametrize(
    "changes",
    [
        {"openslide.bounds-width": None},
        {"openslide.bounds-x": "left"},
        {
            **{f"openslide.bounds-{name}": "0" for name in "xy"},
            "openslide.bounds-width": "9000",
            "openslide.bounds-height": "6000",
        },
    ],
)
def test_no_background_without_bounds(scanned_slide: Any, changes: dict[str, str | None]) -> None:
    properties = scanned_slide._handle.slide().properties
    properties |= {name: value for name, value in changes.items() if value is not None}
    for name in [name for name, value in changes.items() if value is None]:
        del properties[name]
    assert scanned_slide.level(0).background is None
    assert scanned_slide.level(0).colour((0, 9), (0, 9)) is None


def test_background_of_a_scaled_slide(scanned_slide: Any) -> None:
    scanned_slide.mpp = (0.25, 0.25)
    check_background(scanned_slide.at(mpp=0.7), 0.1)


def test_errors_of_other_threads(scanned_slide: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error in one thread, all that OpenSlide is asked of the slide raises in the others."""
    source, fake = scanned_slide.level(0), scanned_slide._handle.slide()

    def fail(*_: Any) -> Any:
        raise KeyError("openslide.background-color")

    monkeypatch.setattr(fake, "read_region", fail)
    fake.properties = None
    assert source.colour((0, 9), (0, 9)) is not None
    with pytest.raises(SourceError, match=r"cannot be decoded \('openslide\.background-color'\)"):
        source.read_window((1600, 3200), (4000, 6000))

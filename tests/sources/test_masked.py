"""Masked images equal `np.where` bit by bit, and do not read their background."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from hypothesis import given
from hypothesis import strategies as st
from masked_images import Recording, check_background
from slide_files import image, read_all

from tfbig import sources
from tfbig.errors import SourceError
from tfbig.geometry import cells
from tfbig.geometry.background import Background
from tfbig.sources import ArraySource, Masked, masked
from tfbig.sources.masked import background_of_mask, sampled_colour

pairs = st.lists(st.integers(0, 70), min_size=2, max_size=2, unique=True).map(sorted)


def where(array: np.ndarray, background: Background, colour: Any) -> np.ndarray:
    """The masked image, computed at once."""
    inside = np.kron(background.foreground, np.ones((background.cell,) * 2, bool))
    return np.where(inside[: len(array), : array.shape[1], None], array, colour).astype(array.dtype)


@given(st.integers(1, 80), st.integers(0, 20), st.floats(0.01, 1), pairs, pairs)
def test_windows_equal_where(
    cell: int, seed: int, share: float, rows: list[int], columns: list[int]
) -> None:
    array = image(70, 70, 3)
    foreground = np.random.default_rng(seed).random(cells.num_cells((70, 70), cell)) < share
    foreground[0, 0] = True
    background = Background(foreground, cell)
    recording = Recording(array)
    source = Masked(recording, background, (200, 100, 0))
    expected = where(array, background, (200, 100, 0))[slice(*rows), slice(*columns)]
    window = (rows[0], rows[1]), (columns[0], columns[1])
    actual = source.read_window(*window)
    np.testing.assert_array_equal(actual, expected)
    assert actual.dtype == array.dtype
    assert actual.flags.c_contiguous
    known = source.colour(*window)
    only_background = not cells.pixels(background, *window).any()
    assert (known is not None) == only_background
    assert recording.windows == [] if only_background else recording.windows
    if known is not None:
        assert (expected == known).all()
        assert known.dtype == array.dtype
    np.testing.assert_array_equal(
        source.read(*window[0]), where(array, background, (200, 100, 0))[slice(*rows)]
    )
    assert source.background == background


def test_background_is_not_read() -> None:
    foreground = np.zeros((100, 100), bool)
    foreground[40:50, 60:75] = True
    recording = Recording(image(1000, 1000))
    source = Masked(recording, Background(foreground, 10), 9)
    for start in range(0, 1000, 32):
        source.read(start, min(start + 32, 1000))
    assert recording.read_pixels() == 100 * 150
    assert source.background is not None
    assert source.background.share == pytest.approx(0.015)
    assert source.name == "masked recording"


def test_everything_is_foreground() -> None:
    array = image(30, 40, 3)
    source = Masked.by(sources.open(array), np.ones((30, 40), bool))
    np.testing.assert_array_equal(read_all(source), array)
    assert source.background is not None
    assert source.background.share == 1
    assert source.colour((0, 3), (0, 3)) is None


@pytest.mark.parametrize("factor", [1, 3, 8, 40, 100])
def test_smaller_masks(factor: int) -> None:
    array = image(61, 83)[..., None]
    small = np.random.default_rng(1).integers(-1, 2, cells.num_cells((61, 83), factor))
    small[0, 0] = -1
    source = Masked.by(sources.open(array), small, 7, factor if factor > 8 else None)
    inside = small.repeat(factor, 0).repeat(factor, 1)[:61, :83, None] != 0
    np.testing.assert_array_equal(read_all(source), np.where(inside, array, 7))
    assert source.background is not None
    assert source.background.cell == factor


@pytest.mark.parametrize("cell", [None, 1, 3, 16])
@pytest.mark.parametrize("size", [(25, 33), (25, 34), (9, 13), (122, 166)])
def test_masks_of_other_sizes_are_stretched(size: tuple[int, int], cell: int | None) -> None:
    """A pixel is foreground if a pixel of the mask that touches its cell is."""
    array = image(61, 83)
    small = np.random.default_rng(2).random(size) < 0.2
    background = background_of_mask(ArraySource(array), small, cell)
    side = background.cell
    for i, j in np.ndindex(background.foreground.shape):
        rows, columns = (
            slice(
                int(np.floor(n * side * m / extent)),
                int(np.ceil(min((n + 1) * side, extent) * m / extent)),
            )
            for n, m, extent in zip((i, j), size, (61, 83), strict=True)
        )
        assert background.foreground[i, j] == small[rows, columns].any()
    assert cell in (None, side)


def test_cells_of_large_masks_are_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold all foreground, whatever the strips in which the mask is read."""
    monkeypatch.setattr(masked, "_STRIP_SAMPLES", 1000)
    mask = np.zeros((2100, 2100), np.uint8)
    mask[1000, 2099] = mask[2099, 3] = 1
    background = background_of_mask(ArraySource(np.zeros((2100, 2100), np.uint8)), mask)
    assert background.cell == 2
    assert np.argwhere(background.foreground).tolist() == [[500, 1049], [1049, 1]]
    background = background_of_mask(ArraySource(np.zeros((2100, 2100), np.uint8)), mask, cell=300)
    assert np.argwhere(background.foreground).tolist() == [[3, 6], [6, 0]]


def test_masks_in_files_and_of_several_channels(tmp_path: Path) -> None:
    mask = np.zeros((16, 16, 3), np.uint8)
    mask[4:8, 4:8, 1] = 255
    np.save(tmp_path / "mask.npy", mask)
    for given_mask in (mask, np.load(tmp_path / "mask.npy", "r"), sources.open(mask)):
        source = Masked.by(sources.open(np.ones((32, 32), np.uint8)), given_mask, 5)
        assert source.background is not None
        assert source.background.foreground.sum() == 16
        assert source.background.cell == 2


def test_default_colour_is_the_median_of_the_background() -> None:
    array = np.full((40, 60, 3), (240, 238, 241), np.uint8)
    array[:, :30] = 5
    array[0, 30:] = 0  # less than half
    mask = np.arange(60)[None].repeat(40, 0) < 30
    source = Masked.by(sources.open(array), mask)
    assert source.fill.tolist() == [240, 238, 241]
    np.testing.assert_array_equal(read_all(source)[:, 30:], array[1:2, 30:].repeat(40, 0))


def test_sampled_colour() -> None:
    recording = Recording(image(1000, 2000))
    foreground = np.zeros((10, 20), bool)
    foreground[5] = True
    first = sampled_colour(recording, Background(foreground, 100))
    assert recording.read_pixels() == 64 * 16 * 16
    assert not [w for w in recording.windows if w[0] < 600 and w[1] > 500]
    assert first == sampled_colour(recording, Background(foreground, 100))
    even = sources.open(np.array([[1, 2]], np.uint8))
    assert sampled_colour(even, Background(np.zeros((1, 1), bool), 2)).tolist() == [1]
    real = sources.open(np.array([[1.0, 2.0]], np.float32))
    assert sampled_colour(real, Background(np.zeros((1, 1), bool), 2)).tolist() == [1.5]
    assert sampled_colour(even, Background(np.ones((1, 1), bool), 2)).tolist() == [0]


@pytest.mark.parametrize("colour", [7, 9])
def test_background_of_the_image_joins_that_of_the_mask(tmp_path: Path, colour: int) -> None:
    """They are joined only where the file has the colour of the mask."""
    tile = image(16, 16)
    tiles = iter([tile, None, None, tile] * 2048)
    tags = [(42113, "s", 0, "7", True)]
    options: dict[str, Any] = {"tile": (16, 16), "compression": "deflate", "extratags": tags}
    tifffile.imwrite(tmp_path / "a.tif", tiles, shape=(2048, 1024), dtype="uint8", **options)
    mask = np.zeros((128, 64), bool)
    mask[:64] = True  # rows above 1024
    source = Masked.by(sources.open(tmp_path / "a.tif"), mask, colour)
    check_background(source, 0.75 if colour == 7 else 0.5)
    assert source.background is not None
    assert source.background.share == (0.25 if colour == 7 else 0.5)
    across = source.colour((1008, 1040), (16, 32))  # a missing tile, and one that is masked
    assert (across is None) == (colour == 9)
    assert source.colour((1008, 1024), (16, 32)) == 7
    assert source.colour((1040, 1050), (0, 32)) == colour
    assert source.colour((0, 16), (0, 16)) is None
    inner = sources.open(tmp_path / "a.tif")
    assert Masked.by(inner, np.ones((128, 64)), colour).background == inner.background


@pytest.mark.parametrize(
    ("mask", "options", "message"),
    [
        (
            np.ones((30, 41), bool),
            {},
            r"array: a mask of 30 x 41 for an image of 40 x 60; expected",
        ),
        (
            np.ones((60, 40), bool),
            {},
            r"array: a mask of 60 x 40 for .* Use the mask of this image",
        ),
        (np.zeros((40, 60)), {}, "array: its mask is 0 everywhere; expected some foreground. Use"),
        (
            np.ones((20, 30)),
            {"cell": 3},
            "cells of 3 pixels requested, but a pixel .* multiple of 2",
        ),
        (np.ones((20, 30)), {"cell": 0}, "cells of 0 pixels requested; expected at least 1"),
        (np.ones((20, 30)), {"colour": (1, 2)}, r"array: cannot have the colour \[1, 2\]; .* 3 of"),
        (
            np.ones((20, 30)),
            {"colour": 256},
            "array: cannot have the colour 256; .* that uint8 can",
        ),
        (np.ones((20, 30)), {"colour": (1, 2.5, 3)}, r"array: cannot have the colour \[1.0, 2.5"),
        (np.ones((20, 30)), {"colour": "white"}, "array: cannot have the colour white"),
        (np.ones((40,)), {}, r"array: has shape \(40,\)"),
    ],
)
def test_bad_input(mask: np.ndarray, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceError, match=message) as raised:
        Masked.by(sources.open(image(40, 60, 3)), mask, **options)
    assert "\n" not in str(raised.value)


def test_pixels_of_one_colour_are_left_out() -> None:
    """A cell is background if all of its pixels have the colour; no pixel changes."""
    array = np.full((8, 12, 2), (7, 9), np.uint8)
    array[1, 2], array[6, 11, 1] = (7, 8), 200
    masked_image = Masked.without(ArraySource(array), (7, 9), cell=4)
    background = masked_image.background
    assert background is not None and background.cell == 4
    assert background.foreground.tolist() == [[True, False, False], [False, False, True]]
    np.testing.assert_array_equal(read_all(masked_image), array)
    with pytest.raises(SourceError, match=r"nearest colour of .* is \[7, 9\]"):
        Masked.without(ArraySource(array), (7, 11), cell=4)


def test_bad_cells() -> None:
    gray = sources.open(np.zeros((40, 60), np.float16))
    with pytest.raises(
        SourceError, match=r"a mask of 4 x 5 cells of 10 pixels for .*; expected 4 x 6"
    ):
        Masked(gray, Background(np.ones((4, 5), bool), 10), 0)
    with pytest.raises(SourceError, match="its mask is 0 everywhere"):
        Masked(gray, Background(np.zeros((4, 6), bool), 10), 0)
    for colour in (np.nan, 1e9):
        with pytest.raises(SourceError, match=r"as float16; expected finite numbers"):
            Masked(gray, Background(np.ones((4, 6), bool), 10), colour)


def test_handles() -> None:
    source = Masked.by(sources.open(image(40, 60)), np.eye(40, 60), 3)
    with source.lent() as handle:
        resolved = sources.resolve(handle)
        assert isinstance(resolved, sources.Source)
        assert resolved.background == source.background


def test_weights_are_of_the_foreground() -> None:
    background = Background(np.array([[True, False], [False, True]]), 3)
    weights = Masked(ArraySource(image(6, 5, 3)), background, 7).weights
    expected = where(np.ones((6, 5, 1)), background, 0)
    np.testing.assert_array_equal(weights.read(0, 6), expected)
    assert weights.background == background

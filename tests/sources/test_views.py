"""Views: crops, gray, scaled, padded and enlarged images equal the whole image transformed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from masked_images import check_background
from PIL import Image
from resource_limits import cheap
from slide_files import image, noise, read_all

from tfbig import sources
from tfbig.errors import SourceError
from tfbig.geometry import cells
from tfbig.geometry.background import Background
from tfbig.sources import ArraySource, Grayscale, Masked, Padded, Scaled, Source, Upsampled, views


def window_sources(tmp_path: Path) -> dict[str, Source]:
    array = image(37, 53, 3)
    np.save(tmp_path / "a.npy", array)
    np.save(tmp_path / "big.npy", array.astype(">u2"))
    small = ArraySource(image(8, 11))
    return {
        "array": sources.open(array),
        "npy": sources.open(tmp_path / "a.npy"),
        "big endian": sources.open(tmp_path / "big.npy"),
        "gray": Grayscale(sources.open(array), invert=True),
        "rgb": sources.RGB(sources.open(array)),
        "rgb of gray": sources.RGB(sources.open(array[..., :1])),
        "rgb of black and white": sources.RGB(sources.open(array[..., :1] > 99)),
        "padded": Padded(sources.open(array), 16, value=7),
        "upsampled": Upsampled(small, 5, (37, 53)),
        "crop": sources.open(array).crop((3, 30), (5, 44)),
        "crop of padded": Padded(sources.open(array), 32).crop((20, 64), (30, 60)),
    }


@pytest.mark.parametrize("window", [(0, 3, 2, 9), (20, 27, 0, 1), (13, 14, 3, 30)])
def test_windows_equal_rows(tmp_path: Path, window: tuple[int, int, int, int]) -> None:
    start, stop, left, right = window
    for name, source in window_sources(tmp_path).items():
        actual = source.read_window((start, stop), (left, right))
        assert actual.dtype == source.dtype
        assert actual.flags.c_contiguous
        expected = read_all(source)[start:stop, left:right]
        np.testing.assert_array_equal(actual, expected, err_msg=name)


class White(Source):
    """White, except for a noisy square in the middle third; counts the pixels that are read."""

    pixels_read = 0

    def _read(self, start: int, stop: int) -> np.ndarray:
        raise AssertionError

    def _read_window(self, start: int, stop: int, left: int, right: int) -> np.ndarray:
        White.pixels_read += (stop - start) * (right - left)
        rows, columns = np.ogrid[start:stop, left:right]
        middle = self._in_middle(rows, 0) & self._in_middle(columns, 1)
        grid = np.where(middle, (rows * 7 + columns * 3) % 200, 255).astype(np.uint8)
        return np.repeat(grid[..., None], self.shape[2], axis=2)

    def _colour(self, start: int, stop: int, left: int, right: int) -> np.ndarray | None:
        (top, bottom), (before, after) = self._middle(0), self._middle(1)
        if start < bottom and stop > top and left < after and right > before:
            return None
        return np.full(self.shape[2], 255, np.uint8)

    def _in_middle(self, places: np.ndarray, axis: int) -> np.ndarray:
        return (places >= self._middle(axis)[0]) & (places < self._middle(axis)[1])

    def _middle(self, axis: int) -> tuple[int, int]:
        return self.shape[axis] // 3, 2 * self.shape[axis] // 3


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("white", 0.4),
        ("crop", 0.3),
        ("gray", 0.4),
        ("rgb", 0.4),
        ("channels", 0.4),
        ("padded", 0.4),
        ("upsampled", 0.4),
        ("scaled", 0.3),
    ],
)
def test_colour_equals_pixels(name: str, share: float) -> None:
    """`share` of the windows have a colour that is known; none of these differs from what is read."""
    white, gray = (White((60, 90, n), np.uint8, "white") for n in (3, 1))
    source = {
        "white": white,
        "crop": white.crop((5, 55), (10, 80)),
        "gray": Grayscale(white, invert=True),
        "rgb": sources.RGB(gray),
        "channels": sources.Channels(white, 1, 3),
        "padded": Padded(white, 64, value=7),
        "upsampled": Upsampled(white, 3, (179, 268)),
        "scaled": Scaled(white, (25, 31)),
    }[name]
    rng, known = np.random.default_rng(0), 0
    for _ in range(200):
        first = [int(rng.integers(n)) for n in source.shape[:2]]
        rows, columns = (
            (i, min(i + int(rng.integers(1, 12)), n))
            for i, n in zip(first, source.shape, strict=False)
        )
        colour = source.colour(rows, columns)
        if colour is not None:
            known += 1
            assert colour.dtype == source.dtype
            pixels = source.read_window(rows, columns)
            np.testing.assert_array_equal(pixels, np.broadcast_to(colour, pixels.shape))
    assert known > share * 200


def test_colour_is_unknown() -> None:
    source = sources.open(np.zeros((4, 4), np.uint8))
    assert source.colour((0, 4), (0, 4)) is None
    with pytest.raises(IndexError, match="columns 3:3 requested"):
        source.colour((0, 4), (3, 3))


def test_scaled_reads_no_area_of_one_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(White, "pixels_read", 0)
    monkeypatch.setattr(views, "_BLOCK_BYTES", 3 * 100 * 100)
    small = read_all(Scaled(White((2000, 3000, 3), np.uint8, "white"), (200, 300)))
    assert White.pixels_read < 0.3 * 2000 * 3000
    full = White((2000, 3000, 3), np.uint8, "white").read_window((0, 2000), (0, 3000))
    expected = np.asarray(Image.fromarray(full).resize((300, 200), Image.Resampling.BILINEAR))
    assert abs(small.astype(int) - expected).max() <= 1
    everything = read_all(Scaled(sources.open(full), (200, 300)))
    np.testing.assert_array_equal(small, everything)


@pytest.mark.parametrize("shape", [(60, 90), (90, 60), (20, 20), (19, 200)])
def test_center_cropped(shape: tuple[int, int]) -> None:
    """The shorter side has 38 / 0.95 = 40 pixels, and the middle 38 x 38 of them remain."""
    array = image(*shape, 3)
    rows, columns = (round(n * 40 / min(shape)) for n in shape)
    scaled = Image.fromarray(array).resize((columns, rows), Image.Resampling.BILINEAR)
    top, left = (rows - 38) // 2, (columns - 38) // 2
    square = sources.CenterCropped(sources.open(array), 38)
    expected = np.asarray(scaled)[top : top + 38, left : left + 38]
    assert abs(read_all(square).astype(int) - expected).max() <= 1
    assert square.whole.shape == array.shape


def test_rgb() -> None:
    array = image(6, 7, 3)
    np.testing.assert_array_equal(read_all(sources.RGB(sources.open(array))), array)
    gray = read_all(sources.RGB(sources.open(array[..., 0])))
    np.testing.assert_array_equal(gray, np.asarray(Image.fromarray(array[..., 0]).convert("RGB")))
    black_and_white = read_all(sources.RGB(sources.open(array[..., 0] > 99)))
    np.testing.assert_array_equal(black_and_white, 255 * np.stack([array[..., 0] > 99] * 3, -1))
    for other in (array.astype("u2"), array[..., :2], array.astype("f4")):
        with pytest.raises(SourceError, match=r"array: has [23] channels of .* 8 bits \(uint8\)"):
            sources.RGB(sources.open(other))


def test_scaled_reads_only_its_window() -> None:
    windows = []

    class RecordingSource(Source):
        def _read_window(self, *window: int) -> np.ndarray:
            windows.append(window)
            return np.zeros((window[1] - window[0], window[3] - window[2], 1), np.uint8)

        def _read(self, start: int, stop: int) -> np.ndarray:
            raise AssertionError

    Scaled(RecordingSource((4000, 4000), np.uint8, "seen"), (1000, 500)).read_window(
        (500, 510), (0, 5)
    )
    assert windows == [(1998, 2042, 0, 44)]


@pytest.mark.parametrize("block_bytes", [1, 3000, 9000])
@pytest.mark.parametrize("shape", [(20, 31), (37, 53), (9, 80), (64, 5)])
def test_scaled_in_blocks(
    shape: tuple[int, int], block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = image(37, 53, 3)
    whole = read_all(Scaled(sources.open(array), shape))
    monkeypatch.setattr(views, "_BLOCK_BYTES", block_bytes)
    np.testing.assert_array_equal(read_all(Scaled(sources.open(array), shape)), whole)


@pytest.mark.slow
def test_memory_of_a_scaled_image() -> None:
    """The whole image would take 1.2 GB."""

    class Plain(Source):
        def _read_window(self, start: int, stop: int, left: int, right: int) -> np.ndarray:
            return np.full((stop - start, right - left, 3), 255, np.uint8)

        def _read(self, start: int, stop: int) -> np.ndarray:
            raise AssertionError

    with cheap(30, 150):
        small = Scaled(Plain((20_000, 20_000, 3), np.uint8, "white"), (100, 100)).read(0, 100)
    np.testing.assert_array_equal(small, 255)


def test_scaled_invalid_arguments() -> None:
    with pytest.raises(SourceError, match="expected uint8 and sides of at least 1"):
        Scaled(sources.open(np.zeros((5, 5), np.int16)), (2, 2))
    with pytest.raises(SourceError, match="cannot scale uint8 to 0 x 2"):
        Scaled(sources.open(np.zeros((5, 5), np.uint8)), (0, 2))


def pillow_gray(rgb: np.ndarray) -> np.ndarray:
    return np.asarray(Image.fromarray(rgb).convert("L"))[..., None]


def test_grayscale_equals_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    rgb = np.random.default_rng(3).integers(0, 256, (300, 401, 3), dtype=np.uint8)
    rgb[0, :6] = [[0, 0, 0], [255, 255, 255], [255, 0, 0], [0, 255, 0], [0, 0, 255], [1, 2, 3]]
    source = Grayscale(ArraySource(rgb))
    assert source.shape == (300, 401, 1)
    assert source.dtype == np.uint8
    np.testing.assert_array_equal(read_all(source), pillow_gray(rgb))
    monkeypatch.setattr(views, "_LUMA_BLOCK", 7)
    np.testing.assert_array_equal(source.read(5, 60), pillow_gray(rgb)[5:60])


def test_grayscale_matches_equation() -> None:
    levels = np.array([0, 1, 2, 63, 127, 128, 200, 254, 255], np.uint8)
    rgb = np.stack(np.meshgrid(levels, levels, levels), -1).reshape(27, 27, 3)
    red, green, blue = np.moveaxis(rgb.astype(int), -1, 0)
    expected = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16
    np.testing.assert_array_equal(read_all(Grayscale(ArraySource(rgb)))[..., 0], expected)
    inverted = Grayscale(ArraySource(rgb), invert=True)
    np.testing.assert_array_equal(read_all(inverted)[..., 0], 255 - expected)


def test_grayscale_of_gray_image() -> None:
    gray = image(30, 20)
    assert np.shares_memory(Grayscale(ArraySource(gray)).read(3, 9), gray)
    inverted = Grayscale(ArraySource(gray), invert=True).read(3, 9)
    np.testing.assert_array_equal(inverted[..., 0], 255 - gray[3:9].astype(int))
    np.testing.assert_array_equal(gray, image(30, 20))  # the image itself is not inverted


@pytest.mark.parametrize(("shape", "dtype"), [((4, 5, 3), "uint16"), ((4, 5, 2), "uint8")])
def test_grayscale_invalid_source(shape: tuple[int, ...], dtype: str) -> None:
    message = f"array: has {shape[2]} channels of {dtype}; Grayscale expects 1 or 3 channels"
    with pytest.raises(SourceError, match=message):
        Grayscale(ArraySource(np.zeros(shape, dtype)))


@given(
    factor=st.integers(1, 9), rows=st.integers(1, 40), columns=st.integers(1, 40), data=st.data()
)
@settings(max_examples=60, deadline=None)
def test_upsampled(factor: int, rows: int, columns: int, data: st.DataObject) -> None:
    small = image(-(-rows // factor), -(-columns // factor), 2)
    source = Upsampled(small, factor, (rows, columns))
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(start, rows))
    expected = small.repeat(factor, 0).repeat(factor, 1)[start:stop, :columns]
    rows_read = source.read(start, stop)
    assert source.shape == (rows, columns, 2)
    assert rows_read.flags.c_contiguous
    np.testing.assert_array_equal(rows_read, expected)


@pytest.mark.parametrize(
    ("factor", "shape"), [(8, (33, 40)), (8, (32, 41)), (0, (1, 1)), (-1, (1, 1))]
)
def test_upsampled_image_too_small(factor: int, shape: tuple[int, int]) -> None:
    message = (
        rf"array: 4 x 5 enlarged {factor} times does not cover {shape[0]} x {shape[1]}\. Use a"
    )
    with pytest.raises(SourceError, match=message):
        Upsampled(ArraySource(image(4, 5)), factor, shape)


@pytest.mark.parametrize(("multiple", "value"), [(0, 0), (8, 256), (8, -1), (8, 0.5)])
def test_padded_invalid_arguments(multiple: int, value: float) -> None:
    message = f"array: cannot be padded with {value} to a multiple of {multiple}; expected a value"
    with pytest.raises(SourceError, match=message):
        Padded(ArraySource(image(4, 5)), multiple, value)


def test_padded_float_and_bool() -> None:
    assert Padded(ArraySource(np.zeros((1, 1))), 2, 0.5).read(1, 2)[0, 0, 0] == 0.5
    assert Padded(ArraySource(np.zeros((1, 1), bool)), 2, 1).read(1, 2).all()
    with pytest.raises(SourceError, match="that bool can hold"):
        Padded(ArraySource(np.zeros((1, 1), bool)), 2, 2)


def test_channels() -> None:
    array = noise(40, 30, 4)
    source = sources.ArraySource(array)
    np.testing.assert_array_equal(sources.Channels(source, 1).read(3, 9), array[3:9, :, 1:])
    one = sources.Channels(source, 2, 3)
    assert one.shape == (40, 30, 1)
    np.testing.assert_array_equal(one.read_window((3, 9), (2, 7)), array[3:9, 2:7, 2:3])
    for part in ((4, None), (2, 2), (0, 5), (-1, None)):
        with pytest.raises(
            SourceError, match=r"channels .* requested, but it has 4, counted from 0"
        ):
            sources.Channels(source, *part)


def test_pixel_size() -> None:
    source = sources.open(noise(40, 30, 3))
    source.mpp = (0.5, 0.25)
    assert sources.Grayscale(source).crop((0, 8), (4, 9)).mpp == (0.5, 0.25)
    assert sources.Padded(source, 32).mpp == (0.5, 0.25)
    assert sources.Scaled(source, (20, 30)).mpp == (1.0, 0.25)
    assert sources.Upsampled(source, 2, (80, 60)).mpp == (0.25, 0.125)


def masked_image(cell: int, seed: int, channels: int = 3, share: float = 0.2) -> Masked:
    """An image of 150 x 210 whose background has the colour 9."""
    shape = cells.num_cells((150, 210), cell)
    foreground = np.random.default_rng(seed).random(shape) < share
    foreground[-1, 0] = True
    array = noise(150, 210, channels)
    return Masked(sources.open(array), Background(foreground, cell), 9)


VIEWS = {
    "crop": lambda x, n: x.crop((n % 50, 150 - n % 31), (n % 64, 210 - n % 7)),
    "gray": lambda x, n: Grayscale(x, invert=bool(n % 2)),
    "rgb": lambda x, n: sources.RGB(Grayscale(x)),
    "channels": lambda x, n: sources.Channels(x, n % 3, n % 3 + 1),
    "upsampled": lambda x, n: Upsampled(x, n % 5 + 1, (150 * (n % 5 + 1) - n % 4, 209)),
    "padded": lambda x, n: Padded(x, n % 60 + 1, 9),
    "padded otherwise": lambda x, n: Padded(x, n % 60 + 1, 10),
    "scaled": lambda x, n: Scaled(x, (n % 200 + 1, n % 307 + 1)),
    "enlarged": lambda x, n: Scaled(x, (200 + n % 200, 300 + n % 307)),
    "centre": lambda x, n: sources.CenterCropped(x, n % 140 + 8),
    "masked": lambda x, n: Masked.by(x, np.eye(15, 21), 9 + n % 2),
    "crop of crop": lambda x, n: x.crop((n % 5, 140)).crop((n % 10, 130), (n % 13, 200)),
}


@pytest.mark.parametrize("name", VIEWS)
@given(cell=st.integers(1, 40), seed=st.integers(0, 9), number=st.integers(0, 999))
@settings(max_examples=40)
def test_views_keep_the_background(name: str, cell: int, seed: int, number: int) -> None:
    check_background(VIEWS[name](masked_image(cell, seed), number))


def test_background_of_views_is_not_much_smaller() -> None:
    source = masked_image(10, 0, share=0.05)
    assert source.background is not None
    share = 1 - source.background.share
    check_background(source.crop((20, 150), (30, 200)), share - 0.05)
    check_background(source.crop((21, 150), (33, 200)), share - 0.05)
    check_background(Scaled(source, (75, 105)), share - 0.12)
    check_background(Upsampled(source, 4, (600, 840)), share - 0.01)
    check_background(Padded(source, 200, 9), 1 - 150 * 210 / 200 / 400 * (1 - share) - 0.01)


def test_padding_is_background_of_large_images() -> None:
    large = ArraySource(np.ones((1024, 1000), np.uint8))
    assert Padded(large, 16).background is None  # too little
    padded = Padded(large, 1024)
    assert padded.shape[:2] == (1024, 1024)
    check_background(padded, 24 / 1024)
    assert Padded(large, 8).background is None
    assert Padded(ArraySource(np.ones((90, 90), np.uint8)), 512).background is None  # small


def test_background_of_an_image_that_shrinks_a_lot() -> None:
    wide = Upsampled(masked_image(7, 1), 2000, (150, 210 * 2000))
    check_background(Scaled(wide, (150, 210)), 0)

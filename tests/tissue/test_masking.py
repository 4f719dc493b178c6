"""Slides masked by tissue, by masks in arrays and files, and by a colour."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from hypothesis import given
from hypothesis import strategies as st
from masked_images import Recording, check_background
from PIL import Image
from samples import ROOT
from slide_files import noise, read_all
from tissue_slides import write_slide

import tfbig
from tfbig.errors import SourceError
from tfbig.geometry import cells
from tfbig.sources import ArraySource, Slide, Source, open_slide
from tfbig.tissue import Tissue, find_tissue, masked, masking, read_tissue

INSIDE = np.zeros((1200, 900), bool)
INSIDE[200:700, 300:800] = True


@pytest.fixture
def slide(tmp_path: Path) -> Slide:
    """Return a slide of 1200 x 900 pixels with tissue in rows 200:700 and columns 300:800."""
    return write_slide(tmp_path / "slide.tif")


def foreground(source: Source) -> np.ndarray:
    """Return which pixels are foreground."""
    background = source.background
    assert background is not None
    return cells.pixels(background, (0, source.shape[0]), (0, source.shape[1]))


def test_tissue_is_found(slide: Slide) -> None:
    source = masked(slide)
    inside = foreground(source)
    assert (inside != INSIDE).mean() < 0.02
    expected = np.where(inside[..., None], read_all(slide.level()), source.fill)
    np.testing.assert_array_equal(read_all(source), expected)
    check_background(source, 0.7)
    assert tfbig.masked is masked
    assert all(235 <= value <= 240 for value in source.fill.tolist())  # the glass


@pytest.mark.parametrize(
    "resolution", [{"mpp": 1.0}, {"level": 1}, {"magnification": 10}, {"mpp": 1.3}]
)
def test_resolutions(tmp_path: Path, resolution: dict[str, float]) -> None:
    write_slide(tmp_path / "slide.tif")
    slide = open_slide(tmp_path / "slide.tif", mpp=0.5)
    tissue = Tissue(INSIDE[::3, ::3], (1200, 900))
    source = masked(slide, tissue, 255, **resolution)
    plain = slide.at(**resolution)
    assert source.shape == plain.shape
    assert source.mpp == plain.mpp
    check_background(source, 0.7)
    inside = foreground(source)
    whole = np.zeros(inside.shape, bool)
    steps = [n / m for n, m in zip(slide.shape, inside.shape, strict=False)]
    whole[
        round(200 / steps[0]) : round(700 / steps[0]), round(300 / steps[1]) : round(800 / steps[1])
    ] = True
    assert (inside != whole).mean() < 0.03
    difference = read_all(source)[inside].astype(int) - read_all(plain)[inside]
    assert abs(difference).max() <= 1  # windows of scaled images differ by their rounding


@pytest.fixture(scope="module")
def masks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every form of a mask is the same mask, enlarged, or half as large."""
    folder = tmp_path_factory.mktemp("masks")
    write_slide(folder / "slide.tif")
    mask = INSIDE.astype(np.uint8)
    half = mask[::2, ::2]
    Image.fromarray(half * 255).save(folder / "a.png")
    Image.fromarray(mask[:, :, None].repeat(3, 2) * 255).save(folder / "rgb.png")
    tifffile.imwrite(folder / "a.tif", mask, tile=(64, 64), compression="deflate")
    np.save(folder / "a.npy", half.astype(float))
    box = [[300, 200], [800, 200], [800, 700], [300, 700], [300, 200]]
    feature = {"type": "Feature", "geometry": {"type": "Polygon", "coordinates": [box]}}
    (folder / "a.geojson").write_text(json.dumps({"features": [feature]}))
    return {
        "array": mask,
        "bool": INSIDE,
        "half": half,
        "source": ArraySource(half),
        "twice": mask.repeat(2, 0).repeat(2, 1),
        "png": folder / "a.png",
        "rgb png": str(folder / "rgb.png"),
        "tif": folder / "a.tif",
        "npy": folder / "a.npy",
        "geojson": folder / "a.geojson",
        "tissue": read_tissue(folder / "a.geojson", open_slide(folder / "slide.tif")),
    }


FORMS = ["array", "bool", "half", "source", "twice", "png", "rgb png", "tif", "npy", "geojson"]


@pytest.mark.parametrize("form", [*FORMS, "tissue"])
@pytest.mark.parametrize("as_source", [False, True])
def test_masks(slide: Slide, masks: dict[str, Any], form: str, as_source: bool) -> None:
    source = masked(slide.level() if as_source else slide, masks[form], (1, 2, 3))
    np.testing.assert_array_equal(foreground(source), INSIDE)
    expected = np.where(INSIDE[..., None], read_all(slide.level()), (1, 2, 3))
    np.testing.assert_array_equal(read_all(source), expected)


@pytest.mark.parametrize("cell", [1, 16])
@pytest.mark.parametrize("dilation", [0.4, 3, 20])
def test_dilation_in_micrometres(cell: int, dilation: float) -> None:
    """All pixels that are at most so far away are foreground, and none that are much farther."""
    image = ArraySource(noise(160, 200, 3))
    image.mpp = (0.5, 1.0)
    mask = np.zeros((160, 200), np.uint8)
    mask[80, 70] = mask[81, 150] = 1
    inside = foreground(masked(image, mask, 0, dilation=dilation, cell=cell))
    rows, columns = np.ogrid[:160, :200]
    distances = np.minimum(
        np.hypot((rows - 80) * 0.5, (columns - 70) * 1.0),
        np.hypot((rows - 81) * 0.5, (columns - 150) * 1.0),
    )
    assert inside[distances <= dilation].all()
    assert not inside[distances > dilation + 2 * np.hypot(0.5, 1.0) * cell].any()


def test_dilation_needs_the_size_of_pixels(slide: Slide) -> None:
    with pytest.raises(
        SourceError, match=r"slide\.tif: does not specify the size .* 5 um .* mpp=0\.25"
    ):
        masked(slide, INSIDE, dilation=5)
    known = open_slide(slide.name, mpp=0.5)
    assert foreground(masked(known, INSIDE, dilation=5)).sum() > INSIDE.sum()


@pytest.mark.slow
@given(st.integers(1, 9), st.integers(0, 30))
def test_leave_out_a_colour(cell: int, seed: int) -> None:
    """No pixel changes, and all cells of one colour are background."""
    rng = np.random.default_rng(seed)
    array = np.full((50, 70, 3), (250, 251, 252), np.uint8)
    array[rng.integers(50, size=20), rng.integers(70, size=20)] = (250, 251, 253)
    array[:5, :20] = 255
    array[-10:, -10:] = (250, 251, 252)
    source = masked(ArraySource(array), leave_out=(250, 251, 252), cell=cell)
    np.testing.assert_array_equal(read_all(source), array)
    check_background(source)
    differs = (array != (250, 251, 252)).any(-1)
    for i, j in np.ndindex(cells.num_cells((50, 70), cell)):
        part = differs[i * cell : (i + 1) * cell, j * cell : (j + 1) * cell]
        assert foreground(source)[i * cell, j * cell] == part.any()


def test_leave_out_reads_once_and_then_no_background() -> None:
    array = np.full((600, 800), 255, np.uint8)
    array[300:310, 400:408] = 7
    recording = Recording(array)
    source = masked(recording, leave_out=255)
    assert recording.read_pixels() == 600 * 800
    recording.windows.clear()
    np.testing.assert_array_equal(read_all(source)[..., 0], array)
    assert recording.read_pixels() == 80


def test_leave_out_and_dilate() -> None:
    array = np.full((60, 80), 255, np.uint8)
    array[30, 40] = 0
    image = ArraySource(array)
    image.mpp = (1.0, 1.0)
    source = masked(image, leave_out=255, dilation=4)
    assert 40 < foreground(source).sum() < 120
    check_background(source, 0.9)


@pytest.mark.parametrize(
    ("array", "colour", "message"),
    [
        (noise(50, 50), 300, "array: cannot have the colour 300"),
        (
            np.full((50, 50), 250, np.uint8),
            255,
            r"array: has no cell of 1 x 1 pixels .* \[255\]; .* is \[250\]",
        ),
        (np.full((50, 50), 255, np.uint8), 255, "array: its mask is 0 everywhere"),
        (noise(50, 50, 3), (255, 255), r"array: cannot have the colour \[255, 255\]; .* 3 of them"),
    ],
)
def test_colours_that_cannot_be_left_out(array: np.ndarray, colour: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        masked(ArraySource(array), leave_out=colour)


def test_bad_input(slide: Slide, tmp_path: Path) -> None:
    """Each is refused in one line."""
    far = {"type": "Polygon", "coordinates": [[[9e3, 9e3], [9e3, 9.1e3], [9.1e3, 9e3], [9e3, 9e3]]]}
    (tmp_path / "far.geojson").write_text(json.dumps(far))
    Image.fromarray(np.zeros((60, 45), np.uint8)).save(tmp_path / "empty.png")
    (tmp_path / "bad.png").write_bytes(b"no picture")
    np.save(tmp_path / "glass.npy", np.full((300, 300, 3), 240, np.uint8))
    glass = open_slide(tmp_path / "glass.npy")
    cases: list[tuple[Any, tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
        (glass, (), {}, SourceError, r"glass\.npy: no tissue was found; .* Pass a mask"),
        (slide, (np.ones((900, 1200)),), {}, SourceError, "a mask of 900 x 1200 for an image of"),
        (slide, (tmp_path / "empty.png",), {}, SourceError, "its mask is 0 everywhere"),
        (slide, (tmp_path / "bad.png",), {}, SourceError, r"bad\.png: cannot be decoded"),
        (slide, (tmp_path / "none.tif",), {}, SourceError, r"none\.tif: there is no such file"),
        (slide, (tmp_path / "far.geojson",), {}, SourceError, r"far\.geojson: none of its 1 poly"),
        (slide, (INSIDE, (1, 2)), {}, SourceError, r"cannot have the colour \[1, 2\]"),
        (slide, (INSIDE,), {"leave_out": 255}, ValueError, "received leave_out with a mask or a"),
        (slide, (None, 3), {"leave_out": 255}, ValueError, "received leave_out with a mask or a"),
        (slide, (INSIDE,), {"dilation": -1}, ValueError, "received a dilation of -1; expected"),
        (slide, (INSIDE,), {"dilation": np.nan}, ValueError, "received a dilation of nan"),
        (
            slide,
            (INSIDE,),
            {"level": 0, "mpp": 1},
            ValueError,
            "expected one of mpp, magnification",
        ),
        (slide.level(), (INSIDE,), {"mpp": 1}, ValueError, "received {'mpp': 1} for an image"),
    ]
    for image, arguments, options, kind, message in cases:
        with pytest.raises(kind, match=message) as raised:
            masked(image, *arguments, **options)
        assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_real_slide() -> None:
    slide = open_slide(ROOT / "examples" / "data" / "pancreas_pdac_1.tif")
    source = masked(slide, dilation=20)
    check_background(source, 0.5)
    tissue = find_tissue(slide).mask
    inside = foreground(source)
    small = inside[:: max(len(inside) // len(tissue), 1)]
    assert small.mean() > tissue.mean()


def test_masks_travel_with_handles(slide: Slide) -> None:
    source = masked(slide, INSIDE, 255)
    with source.lent() as handle:
        resolved = tfbig.sources.resolve(handle)
        assert isinstance(resolved, Source)
        assert resolved.background == source.background


def test_image_as_slide() -> None:
    image = ArraySource(noise(64, 64, 3))
    image.mpp = (0.5, 0.5)
    slide = masking._Image(image)
    assert slide.level() is image
    assert image.mpp == (0.5, 0.5)
    assert slide.at(mpp=1.0).shape == (32, 32, 3)

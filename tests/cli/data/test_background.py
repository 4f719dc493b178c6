"""Background of slides by flags: which flags hold, and slides of which it is masked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runs import write_rectangle
from masked_images import check_background
from PIL import Image

from tfbig import SourceError, sources
from tfbig.cli.data import background
from tfbig.cli.data.background import Masking
from tfbig.cli.paths import FlagError
from tfbig.cli.settings.background_settings import BackgroundSettings

RUN = {"background": "skip", "tissue": "otsu", "leave_out": None, "dilation": 30.0}


def test_two_slides_of_a_mask(tmp_path: Path) -> None:
    slides = [tmp_path / name for name in ("a.svs", "a.tif", "b.svs", "b.tif")]
    masking = Masking(str(tmp_path / "masks"))
    masking.check_own(slides)  # a way to find tissue, or no such folder
    (tmp_path / "masks").mkdir()
    masking.check_own(slides)
    (tmp_path / "masks" / "b.geojson.gz").touch()
    with pytest.raises(
        SourceError, match=r"b\.svs and .*b\.tif would both have the mask .*b\.geojs"
    ):
        masking.check_own(slides)
    masking.check_own(slides[:3])


def settings(**changes: Any) -> BackgroundSettings:
    return BackgroundSettings(**changes)


@pytest.mark.parametrize(
    ("given", "run", "expected"),
    [
        ({}, None, {}),
        ({"background": "skip"}, None, {"background": "skip"}),
        ({"tissue": "grey"}, None, {"background": "skip", "tissue": "grey"}),
        ({"dilation": 0.0}, None, {"background": "skip", "dilation": 0.0}),
        (
            {"background": "compute", "tissue": "grey"},
            None,
            {"background": "compute", "tissue": "grey"},
        ),
        ({}, {"background": None, "tissue": None}, {}),
        ({}, {"task": "mil", "tissue": "otsu"}, {}),
        ({}, RUN, RUN),
        ({"tissue": "grey"}, RUN, RUN | {"tissue": "grey"}),
        ({"leave_out": (0.0,)}, RUN, RUN | {"tissue": None, "leave_out": (0.0,)}),
        ({"dilation": 5.0}, RUN, RUN | {"dilation": 5.0}),
        (
            {},
            RUN | {"tissue": None, "leave_out": [255]},
            RUN | {"tissue": None, "leave_out": (255,)},
        ),
        ({"background": "compute"}, RUN, RUN | {"background": "compute"}),
    ],
)
def test_flags_win_over_the_run(
    given: dict[str, Any], run: dict[str, Any] | None, expected: dict[str, Any]
) -> None:
    resolved = background.resolved(settings(**given), run)
    assert resolved == settings(**expected)
    assert background.resolved(resolved) == resolved
    assert (Masking.of(resolved) is not None) == (expected.get("background") == "skip")


def test_both_places() -> None:
    with pytest.raises(FlagError, match="--tissue and --leave-out both say where"):
        background.resolved(settings(tissue="otsu", leave_out=(255.0,)))


def test_refused_by_name() -> None:
    background.refuse(settings(background="compute", dilation=1.0), "no.")
    for given, name in (
        ({}, "--background skip: no."),
        ({"leave_out": (1.0,)}, "--leave-out: no."),
    ):
        with pytest.raises(FlagError, match=name):
            background.refuse(settings(background="skip", **given), "no.")


@pytest.fixture
def slide(tmp_path: Path) -> sources.Slide:
    """Return a slide of 300 x 420 pixels of 0.5 um with grey tissue in rows 40:200 and columns 100:330."""
    write_rectangle(tmp_path / "a.tif")
    return sources.open_slide(tmp_path / "a.tif")


INSIDE = np.zeros((300, 420), bool)
INSIDE[40:200, 100:330] = True
OUTLINE = [[100, 40], [330, 40], [330, 200], [100, 200], [100, 40]]


def masks(folder: Path, kind: str) -> Path:
    """Write the mask of the slide, and return its path, or that of its folder."""
    folder.mkdir()
    if kind == "geojson":
        polygon = {"type": "Polygon", "coordinates": [OUTLINE]}
        (folder / "a.geojson").write_text(json.dumps({"geometry": polygon}))
    elif kind == "png":
        Image.fromarray(INSIDE[::4, ::4].astype(np.uint8)).save(folder / "a.png")
    else:
        np.save(folder / "a.npy", INSIDE.astype(np.uint8))
    return folder / f"a.{kind}" if kind == "npy" else folder


@pytest.mark.parametrize("tissue", ["grey", "geojson", "png", "npy"])
def test_tissue(tissue: str, slide: sources.Slide, tmp_path: Path) -> None:
    """The image is as before on tissue, and one colour elsewhere."""
    place = tissue if tissue == "grey" else str(masks(tmp_path / "masks", tissue))
    before = slide.level()
    image = Masking(place).apply(slide, before)
    assert image.name == before.name
    check_background(image, 0.5)
    assert background.foreground(image) == pytest.approx(INSIDE.mean(), abs=0.07)
    assert background.foreground_pixels(image) == pytest.approx(INSIDE.sum(), rel=0.25)
    pixels, plain = image.read(0, 300), before.read(0, 300)
    np.testing.assert_array_equal(pixels[44:196, 104:326], plain[44:196, 104:326])
    assert background.describe([("a", image), ("b", before)]).startswith(
        f"background has one colour; share of the foreground: a {background.foreground(image):.3f}, b 1.000, mean"
    )
    (overlay,) = background.overlays(image)
    assert overlay.image[..., 3].any() and overlay.share >= 1
    assert background.overlays(before) == []
    assert background.shares(before, None) == {"foreground": 1.0, "computed": 1.0}


def test_dilation_is_of_micrometres(slide: sources.Slide, tmp_path: Path) -> None:
    """A level without a size of its pixels gets that of the slide."""
    place = str(masks(tmp_path / "masks", "png"))
    plain = Masking(place).apply(slide, slide.level())
    level, unknown = sources.OnDisk(slide.name), sources.OnDisk(slide.name)
    level.mpp = unknown.mpp = None
    wide = Masking(place, dilation=10.0).apply(slide, level)
    rows = [
        np.flatnonzero(b.foreground.any(1)) * b.cell for b in (plain.background, wide.background)
    ]
    assert 20 <= rows[0][0] - rows[1][0] <= 24
    slide.mpp = None
    with pytest.raises(SourceError, match="which --dilation 10 needs"):
        Masking(place, dilation=10.0).apply(slide, unknown)


def test_a_colour_changes_nothing(tmp_path: Path) -> None:
    pixels = np.full((64, 64, 3), 255, np.uint8)
    pixels[8:40, 8:40] = np.random.default_rng(0).integers(0, 250, (32, 32, 3))
    Image.fromarray(pixels).save(tmp_path / "a.png")
    slide = sources.open_slide(tmp_path / "a.png")
    for colour in ((255.0,), (255.0, 255.0, 255.0)):
        image = Masking(leave_out=colour).apply(slide, slide.level())
        assert background.foreground(image) == 0.25
        np.testing.assert_array_equal(image.read(0, 64), pixels)
    with pytest.raises(SourceError, match="with the colour"):
        Masking(leave_out=(254.0,)).apply(slide, slide.level())


def test_all_tissue(slide: sources.Slide, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((300, 420), np.uint8))
    image = Masking(str(tmp_path)).apply(slide, slide.level())
    assert background.foreground(image) == 1.0
    np.testing.assert_array_equal(image.read(0, 300), slide.level().read(0, 300))


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (None, "has no mask of it; expected a.geojson, or .png, .tif or .npy"),
        (np.zeros((300, 420), np.uint8), "its mask is 0 everywhere"),
        (np.ones((300, 300), np.uint8), "a mask of 300 x 300 for an image of 300 x 420"),
    ],
)
def test_masks_that_cannot_be_used(
    mask: np.ndarray | None, message: str, slide: sources.Slide, tmp_path: Path
) -> None:
    (tmp_path / "masks").mkdir()
    if mask is not None:
        np.save(tmp_path / "masks" / "a.npy", mask)
    with pytest.raises(SourceError, match=message):
        Masking(str(tmp_path / "masks")).apply(slide, slide.level())


def test_no_tissue(tmp_path: Path) -> None:
    Image.fromarray(np.full((64, 64, 3), 240, np.uint8)).save(tmp_path / "a.png")
    with pytest.raises(SourceError, match="no tissue was found by --tissue otsu"):
        background.masked_level(
            tmp_path / "a.png", sources.open(tmp_path / "a.png"), Masking("otsu")
        )

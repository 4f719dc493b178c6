"""Tissue masks, tiles chosen by them, tiles as bags, and the files of CLAM and TRIDENT that say where tiles lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tifffile
from samples import ROOT
from scipy import ndimage

from tfbig import SourceError
from tfbig.sources import ArraySource, Coords, Slide, Tiles, open_slide, read_coords, write_coords
from tfbig.tissue import masks, tiling
from tfbig.tissue.masks import Tissue, find_tissue

PANCREAS = ROOT / "examples" / "data" / "pancreas_pdac_1.tif"
DAPI = ROOT / "tests" / "data" / "test3-DAPI-2-387_fluorescence.ndpi"


def drawn(path: Path, shape: tuple[int, int] = (1200, 900), **options: Any) -> Slide:
    """A bright slide with one purple rectangle, rows 200 to 700 and columns 300 to 800, and a black corner."""
    rng = np.random.default_rng(0)
    base = np.full((*shape, 3), 240, np.uint8)
    base[200:700, 300:800] = (150, 80, 160)
    base[:40, :40] = 0
    base -= rng.integers(0, 6, base.shape, np.uint8) * (base > 5)
    with tifffile.TiffWriter(path) as writer:
        for step in (1, 2):
            part = np.ascontiguousarray(base[::step, ::step])
            own = {"subfiletype": 1} if step > 1 else options
            writer.write(part, photometric="rgb", tile=(64, 64), **own)
    return open_slide(path)


@pytest.mark.parametrize("method", ["otsu", "grey"])
def test_tissue_is_what_is_coloured(tmp_path: Path, method: str) -> None:
    slide = drawn(tmp_path / "a.tif", resolution=(5000, 5000), resolutionunit="CENTIMETER")  # 2 um
    found = find_tissue(slide, method)
    assert found.mask.shape == (300, 225)  # at 8 um
    expected = np.zeros((300, 225), bool)
    expected[50:175, 75:200] = True
    rim = ndimage.binary_dilation(expected) & ~ndimage.binary_erosion(expected)
    np.testing.assert_array_equal(found.mask & ~rim, expected & ~rim)
    assert found.share == found.mask.mean()


def test_tissue_of_a_slide_of_unknown_resolution(tmp_path: Path) -> None:
    found = find_tissue(drawn(tmp_path / "a.tif"))
    assert found.mask.shape == (1200, 900)
    assert found.mask[210:690, 310:790].all()
    assert not found.mask[:190].any()


@pytest.mark.parametrize(("path", "low", "high"), [(PANCREAS, 0.15, 0.6), (DAPI, 0.02, 0.6)])
def test_tissue_of_real_slides(path: Path, low: float, high: float) -> None:
    slide = open_slide(path)
    found = find_tissue(slide, dark=path is DAPI)
    assert low < found.share < high
    small = slide.scaled(masks._factor(slide))
    values = masks.gray(small.read(0, small.shape[0]))
    inside, outside = values[found.mask].mean(), values[~found.mask].mean()
    assert inside > 3 * outside if path is DAPI else inside < outside - 30


def test_dirt_goes_and_holes_close(tmp_path: Path) -> None:
    base = np.full((300, 300, 3), 240, np.uint8)
    base[50:250, 50:250] = (150, 80, 160)
    base[100:104, 100:104] = 240
    base[10:14, 10:14] = (150, 80, 160)
    tifffile.imwrite(tmp_path / "a.tif", base, photometric="rgb")
    slide = open_slide(tmp_path / "a.tif")
    expected = np.zeros((300, 300), bool)
    expected[50:250, 50:250] = True
    changed = find_tissue(slide).mask != expected
    assert changed.sum() <= 4  # corners, by the median
    assert find_tissue(slide, smallest=1, holes=1).mask[11, 11]
    assert not find_tissue(slide, smallest=1, holes=1).mask[102, 102]


def test_tissue_that_cannot_be_found(tmp_path: Path) -> None:
    slide = drawn(tmp_path / "a.tif")
    for options in ({"method": "hue"}, {"method": "grey", "dark": True}):
        with pytest.raises(ValueError, match=r"tissue by .*expected 'otsu', or 'grey'"):
            find_tissue(slide, **options)
    tifffile.imwrite(tmp_path / "b.tif", np.zeros((30, 30), np.uint16))
    with pytest.raises(SourceError, match=r"b\.tif: has 1 channels of uint16; tissue is found on"):
        find_tissue(open_slide(tmp_path / "b.tif"))


def test_a_dark_ground_is_not_taken_for_tissue() -> None:
    with pytest.raises(
        SourceError, match=r"fluorescence\.ndpi: its ground is dark, .* Pass dark=True"
    ):
        find_tissue(open_slide(DAPI))


def test_shares_are_those_of_the_pixels() -> None:
    rng = np.random.default_rng(0)
    mask = rng.random((20, 30)) < 0.4
    found = Tissue(mask, (200, 600))  # 10 x 20 pixels of level 0 in one
    coords = np.concatenate(
        [rng.integers(0, [560, 160], (50, 2)), [[0, 0], [560, 160], [-20, -20]]]
    )
    whole = np.repeat(np.repeat(mask, 10, 0), 20, 1).astype(float)
    padded = np.pad(whole, 64)
    expected = [padded[y + 64 : y + 104, x + 64 : x + 104].mean() for x, y in coords]
    np.testing.assert_allclose(found.shares(coords, 40), expected, atol=1e-12)


def test_tiles_with_tissue(tmp_path: Path) -> None:
    slide = drawn(tmp_path / "a.tif")
    coords = tiling.tile(slide, 50, step=2.0, tissue=find_tissue(slide), smallest_share=0.6)
    whole = [(x, y) for y in range(0, 1200, 100) for x in range(0, 900, 100)]
    kept = [(x, y) for x, y in whole if 300 <= x < 800 and 200 <= y < 700]
    assert list(map(tuple, coords.coords)) == kept
    assert (coords.size, coords.step, coords.size_at_level_0, coords.name) == (50, 2.0, 100, "a")
    tiles = coords.tiles(slide)
    assert tiles.shape == (len(kept), 50, 50, 3)
    image = slide.level(1)
    for number in (0, 7, len(kept) - 1):
        x, y = (n // 2 for n in kept[number])
        np.testing.assert_array_equal(
            tiles.read(number, number + 1)[0], image.read_window((y, y + 50), (x, x + 50))
        )
    np.testing.assert_array_equal(tiles.coords, kept)


def test_tiles_cover_the_slide(tmp_path: Path) -> None:
    slide = drawn(tmp_path / "a.tif", (130, 170))
    for step, overlap in ((1.0, 0), (1.0, 16), (1.3, 8)):
        coords = tiling.tile(slide, 48, step=step, overlap=overlap)
        seen = np.zeros((130, 170), int)
        side = coords.size_at_level_0
        for x, y in coords.coords:
            seen[y : y + side, x : x + side] += 1
        assert seen.min() >= 1
        assert coords.tiles(slide).shape[1:] == (48, 48, 3)


def test_tiles_that_are_kept_by_what_they_show(tmp_path: Path) -> None:
    slide = drawn(tmp_path / "a.tif")
    kept = tiling.tile(slide, 100, keep=lambda t: tiling.grey_share(t) >= 0.6, at_once=7)
    assert list(map(tuple, kept.coords)) == [
        (x, y) for y in range(200, 700, 100) for x in range(300, 800, 100)
    ]
    with pytest.raises(SourceError, match=r"a\.tif: none of its 108 tiles has the quality"):
        tiling.tile(slide, 100, keep=lambda t: tiling.sharpness(t) > 1e6)
    with pytest.raises(SourceError, match=r"a\.tif: none of its 108 tiles has 60% tissue"):
        tiling.tile(slide, 100, tissue=Tissue(np.zeros((4, 4), bool), (1200, 900)))
    for size, overlap, message in (
        (10, 10, "overlap=10 of tiles of 10"),
        (5000, 0, "smaller than a patch"),
    ):
        with pytest.raises(ValueError, match=message):
            tiling.tile(slide, size, overlap=overlap)


def test_quality() -> None:
    rng = np.random.default_rng(0)
    sharp = rng.integers(0, 256, (2, 40, 40, 3), np.uint8)
    blurred = sharp // 8 + 100
    assert (tiling.sharpness(sharp) > 20 * tiling.sharpness(blurred)).all()
    inks = {"green": (30, 120, 60), "blue": (30, 60, 160), "black": (20, 22, 25)}
    stains = {"haematoxylin": (80, 50, 130), "eosin": (230, 140, 180), "glass": (243, 243, 240)}
    for colours, expected in ((inks, 1.0), (stains, 0.0)):
        for name, colour in colours.items():
            flat = np.full((1, 8, 8, 3), colour, np.uint8)
            assert tiling.pen_share(flat) == expected, name
    slide = open_slide(PANCREAS)
    assert tiling.pen_share(slide.thumbnail(800)[None])[0] < 0.01


@pytest.mark.parametrize("level", [0, 1])
def test_coords_go_through_a_file(tmp_path: Path, level: int) -> None:
    slide = drawn(tmp_path / "a.tif", resolution=(40000, 40000), resolutionunit="CENTIMETER")
    coords = tiling.tile(slide, 50, step=slide.step(level=level), overlap=10)
    write_coords(tmp_path / "a.h5", coords, slide)
    again = read_coords(tmp_path / "a.h5")
    np.testing.assert_array_equal(again.coords, coords.coords)
    assert (again.name, again.size, again.step, again.overlap) == ("a", 50, 1 + level, 10)
    with h5py.File(tmp_path / "a.h5") as file:
        facts = dict(file["coords"].attrs)
    assert facts["patch_level"] == level  # CLAM
    np.testing.assert_array_equal(facts["downsample"], [1 + level] * 2)
    assert facts["level0_magnification"] == pytest.approx(40)  # TRIDENT: 0.25 um
    assert facts["target_magnification"] == pytest.approx(40 / (1 + level))
    assert (facts["level0_width"], facts["level0_height"]) == (900, 1200)
    del facts["patch_size_level0"], facts["overlap"]  # what CLAM writes
    with h5py.File(tmp_path / "clam.h5", "w") as file:
        file.create_dataset("coords", data=coords.coords).attrs.update(facts)
    assert read_coords(tmp_path / "clam.h5").step == 1 + level


def test_tiles_reach_over_the_edge() -> None:
    image = ArraySource(np.random.default_rng(0).integers(0, 256, (40, 30, 3), np.uint8))
    corners = [[-5, -3], [-5, 7], [0, 0], [30, 20], [38, 29], [3, 10], [3, 15]]
    tiles = Tiles(image, corners, 16)
    padded = np.pad(image.read(0, 40), ((16, 16), (16, 16), (0, 0)), constant_values=255)
    expected = np.stack([padded[r + 16 : r + 32, c + 16 : c + 32] for r, c in corners])
    np.testing.assert_array_equal(tiles.read(0, 7), expected)
    np.testing.assert_array_equal(tiles.take([6, 0, 3]), expected[[6, 0, 3]])
    for corner in ([40, 0], [0, -16]):
        with pytest.raises(
            SourceError, match=r"tile 1 of 16 x 16 .*has no pixel of the image, \(40, 30\)"
        ):
            Tiles(image, [[0, 0], corner], 16)


BAD = {
    "no coords": ({}, None),
    "three columns": ({"patch_size": 8, "downsample": 1.0}, np.zeros((4, 3), int)),
    "none": ({"patch_size": 8, "downsample": 1.0}, np.zeros((0, 2), int)),
    "no size": ({"downsample": 1.0}, np.zeros((4, 2), int)),
    "no step": ({"patch_size": 8}, np.zeros((4, 2), int)),
    "size 0": ({"patch_size": 0, "patch_size_level0": 8}, np.zeros((4, 2), int)),
    "step 0": ({"patch_size": 8, "downsample": 0.0}, np.zeros((4, 2), int)),
    "a word": ({"patch_size": "eight", "downsample": 1.0}, np.zeros((4, 2), int)),
    "overlap": ({"patch_size": 8, "downsample": 1.0, "overlap": 8}, np.zeros((4, 2), int)),
    "nan": ({"patch_size": 8, "downsample": 1.0}, np.full((4, 2), np.nan)),
    "huge": ({"patch_size": 8, "downsample": 1.0}, np.full((4, 2), 2**50)),
}


@pytest.mark.parametrize("case", BAD)
def test_files_that_say_no_coords(tmp_path: Path, case: str) -> None:
    facts, coords = BAD[case]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        if coords is not None:
            file.create_dataset("coords", data=coords).attrs.update(facts)
    with pytest.raises(
        SourceError, match=r"a\.h5: (is no HDF5 file with 'coords'|does not say how large)"
    ):
        read_coords(tmp_path / "a.h5")
    (tmp_path / "b.h5").write_bytes(b"no HDF5")
    with pytest.raises(SourceError, match=r"b\.h5: is not a readable HDF5 file"):
        read_coords(tmp_path / "b.h5")


def test_nothing_is_left_of_coords_that_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slide = drawn(tmp_path / "a.tif")
    coords = Coords("a", np.zeros((1, 2), np.int64), 8, 1.0)
    with pytest.raises(SourceError, match=r"none/a\.h5: cannot be written"):
        write_coords(tmp_path / "none" / "a.h5", coords, slide)

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError("disk is full")

    monkeypatch.setattr(h5py.Group, "create_dataset", fail)
    with pytest.raises(SourceError, match=r"a\.h5: cannot be written: disk is full"):
        write_coords(tmp_path / "a.h5", coords, slide)
    assert [p.name for p in tmp_path.iterdir()] == ["a.tif"]

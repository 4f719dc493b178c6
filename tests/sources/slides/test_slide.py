"""Slides: which reader, which levels, how large the pixels, and pixels that equal those of the levels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import zarr
from samples import ROOT

from tfbig import SourceError, sources
from tfbig.sources import open_slide, read_mpp_table
from tfbig.sources.slides import opening, openslide

DATA = ROOT / "tests" / "data"
REAL = [
    (DATA / "CMU-1-Small-Region.svs", (2967, 2220), 1, 0.499, 20.0, "tifffile"),
    (DATA / "OS-1-detail.ome.tif", (1101, 1101), 1, 0.2271, None, "tifffile"),
    (
        DATA / "test3-DAPI-2-387_fluorescence.ndpi",
        (4864, 3968),
        7,
        0.2282,
        40.0,
        "OpenSlide (hamamatsu)",
    ),
    (ROOT / "examples" / "data" / "pancreas_pdac_1.tif", (3721, 4184), 2, 2.0192, None, "tifffile"),
]


def image(*shape: int) -> np.ndarray:
    """Noise, so that no two places are alike."""
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def pyramid(path: Path, **options: Any) -> np.ndarray:
    """A TIFF file of three levels; gives level 0."""
    base = image(400, 300, 3)
    with tifffile.TiffWriter(path) as writer:
        for step in (1, 2, 4):
            part = np.ascontiguousarray(base[::step, ::step])
            own = {"subfiletype": 1} if step > 1 else options
            writer.write(part, photometric="rgb", tile=(64, 64), **own)
    return base


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


@pytest.mark.parametrize("path", [REAL[0][0], REAL[3][0]], ids=lambda path: path.name)
def test_both_readers_give_the_same_pixels(path: Path) -> None:
    ours, theirs = open_slide(path), open_slide(path, reader="openslide")
    assert (ours.levels, ours.magnification) == (theirs.levels, theirs.magnification)
    assert ours.mpp == pytest.approx(theirs.mpp)
    rows, columns = ours.shape[:2]
    for window in (((0, 70), (0, columns)), ((rows - 1500, rows), (columns - 1111, columns - 3))):
        np.testing.assert_array_equal(ours.read(*window), theirs.read(*window))


def test_levels_of_a_vendor_are_where_those_of_level_0_are() -> None:
    slide = open_slide(REAL[2][0])
    whole = slide.level(2)
    part = whole.read_window((100, 1100), (64, 900))  # one block, and parts of four
    np.testing.assert_array_equal(part, whole.read(0, whole.shape[0])[100:1100, 64:900])
    small = whole.read(0, whole.shape[0]).astype(float)
    large = slide.read((0, 4864), (0, 3968)).astype(float)
    means = large[: 1216 * 4, : 992 * 4].reshape(1216, 4, 992, 4, 3).mean((1, 3))
    shifts = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
    apart = [np.abs(means - np.roll(small, shift, (0, 1))).mean() for shift in shifts]
    assert shifts[int(np.argmin(apart))] == (0, 0)


def test_a_level_is_that_of_the_file(tmp_path: Path) -> None:
    base = pyramid(tmp_path / "a.tif")
    slide = open_slide(tmp_path / "a.tif")
    assert slide.levels == ((400, 300), (200, 150), (100, 75))
    assert slide.downsamples == (1, 2, 4)
    np.testing.assert_array_equal(slide.read((7, 90), (3, 61), 1), base[::2, ::2][7:90, 3:61])
    assert slide.level(1) is slide.level(1)
    with pytest.raises(
        SourceError, match=r"a\.tif: level 3 was asked for, the slide has 3 \(400 x 300, 200"
    ):
        slide.level(3)
    source = slide.level(2)
    slide.close()
    for read in (lambda: slide.read((0, 2), (0, 2)), lambda: source.read(0, 2)):
        with pytest.raises(SourceError, match=r"a\.tif: was closed\. Open the s"):
            read()


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
        ({}, None),
    ],
)
def test_the_size_of_pixels(tmp_path: Path, options: Any, mpp: Any) -> None:
    pyramid(tmp_path / "a.tif", **options)
    assert open_slide(tmp_path / "a.tif").mpp == pytest.approx(mpp)
    assert open_slide(tmp_path / "a.tif", mpp=0.3).mpp == (0.3, 0.3)


@pytest.mark.parametrize(
    ("unit", "mpp"), [("\u00b5m", (0.5, 0.25)), ("nm", (5e-4, 2.5e-4)), ("pixel", None)]
)
def test_the_size_of_pixels_in_ome_xml(tmp_path: Path, unit: str, mpp: Any) -> None:
    sizes = {"PhysicalSizeX": 0.25, "PhysicalSizeY": 0.5}
    units = {f"{key}Unit": unit for key in sizes}
    path = tmp_path / "a.ome.tif"
    tifffile.imwrite(
        path, image(40, 30, 3), photometric="rgb", metadata={"axes": "YXS", **sizes, **units}
    )
    slide = open_slide(path)
    assert slide.mpp == pytest.approx(mpp)


def test_resolutions(tmp_path: Path) -> None:
    pyramid(tmp_path / "a.tif", resolution=(20000, 20000), resolutionunit="CENTIMETER")
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
        SourceError, match=r"finest pixels are 2 times as coarse as those asked for; expected 1\.25"
    ):
        slide.at(mpp=0.25)
    slide.magnification = 40.0  # the objective that the file names wins over the rule 20x at 0.5 um
    assert slide.at(magnification=20) is slide.level(1)


@pytest.mark.parametrize(
    "asked", [{}, {"mpp": 1.0, "level": 1}, {"mpp": 0.0}, {"magnification": -1.0}]
)
def test_no_resolution(tmp_path: Path, asked: dict[str, Any]) -> None:
    pyramid(tmp_path / "a.tif")
    with pytest.raises(ValueError, match="expected one of mpp, magnification and level"):
        open_slide(tmp_path / "a.tif").at(**asked)


def test_nothing_is_assumed_of_pixels_of_unknown_size(tmp_path: Path) -> None:
    pyramid(tmp_path / "a.tif")
    for asked in ({"mpp": 1.0}, {"magnification": 10.0}):
        with pytest.raises(
            SourceError, match=r"a\.tif: does not say how large its pixels are; .*mpp=0\.25"
        ):
            open_slide(tmp_path / "a.tif").at(**asked)
    assert open_slide(tmp_path / "a.tif", mpp=0.5).at(mpp=1.0).shape == (200, 150, 3)


def test_views_keep_the_size_of_pixels() -> None:
    source = sources.open(image(40, 30, 3))
    source.mpp = (0.5, 0.25)
    assert sources.Grayscale(source).crop((0, 8), (4, 9)).mpp == (0.5, 0.25)
    assert sources.Padded(source, 32).mpp == (0.5, 0.25)
    assert sources.Scaled(source, (20, 30)).mpp == (1.0, 0.25)
    assert sources.Upsampled(source, 2, (80, 60)).mpp == (0.25, 0.125)


def test_channels_of_an_image() -> None:
    array = image(40, 30, 4)
    source = sources.ArraySource(array)
    np.testing.assert_array_equal(sources.Channels(source, 1).read(3, 9), array[3:9, :, 1:])
    one = sources.Channels(source, 2, 3)
    assert one.shape == (40, 30, 1)
    np.testing.assert_array_equal(one.read_window((3, 9), (2, 7)), array[3:9, 2:7, 2:3])
    for part in ((4, None), (2, 2), (0, 5), (-1, None)):
        with pytest.raises(
            SourceError, match=r"channels .* were asked for, it has 4, counted from 0"
        ):
            sources.Channels(source, *part)


def test_a_thumbnail_reads_the_coarsest_level_that_is_large_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = pyramid(tmp_path / "a.tif")
    slide = open_slide(tmp_path / "a.tif")
    opened: list[int] = []
    level = slide.level
    monkeypatch.setattr(slide, "level", lambda n=0: opened.append(n) or level(n))
    assert slide.thumbnail(90).shape == (90, 68, 3)
    np.testing.assert_array_equal(slide.thumbnail(100), base[::4, ::4])
    assert slide.thumbnail(150).shape == (150, 112, 3)
    assert slide.thumbnail(1000).shape == (400, 300, 3)
    assert opened == [2, 2, 1, 0]


def test_tables_of_pixel_sizes(tmp_path: Path) -> None:
    table = tmp_path / "mpp.csv"
    table.write_text("wsi,mpp\na.tif,0.25\nb.svs, 0.5\n")
    assert read_mpp_table(table) == {"a.tif": 0.25, "b.svs": 0.5}
    for line in ("a.tif,0", "a.tif,no", ",0.3", "a.tif,0.2\na.tif,0.3", "a.tif,nan"):
        table.write_text(f"wsi,mpp\n{line}\n")
        with pytest.raises(
            SourceError, match=r"mpp\.csv: line \d: has wsi .*expected the file name"
        ):
            read_mpp_table(table)
    table.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SourceError, match=r"mpp\.csv: cannot be read as a CSV file"):
        read_mpp_table(table)
    for text in ("", "wsi,mpp\n", '"""'):
        table.write_text(text)
        with pytest.raises(SourceError, match=r"mpp\.csv: lists no slides"):
            read_mpp_table(table)
    with pytest.raises(SourceError, match=r"none\.csv: cannot be read"):
        read_mpp_table(tmp_path / "none.csv")


@pytest.mark.parametrize("shape", [(70, 50), (70, 50, 3)])
def test_zarr_arrays(tmp_path: Path, shape: tuple[int, ...]) -> None:
    array = image(*shape)
    zarr.save(tmp_path / "a.zarr", array)
    slide = open_slide(tmp_path / "a.zarr")
    assert slide.levels == ((70, 50),)
    assert slide.mpp is None
    np.testing.assert_array_equal(
        slide.read((3, 60), (7, 50)), array.reshape(70, 50, -1)[3:60, 7:50]
    )
    np.testing.assert_array_equal(
        sources.open(tmp_path / "a.zarr").read(0, 70), array.reshape(70, 50, -1)
    )


@pytest.mark.parametrize("version", [2, 3])
def test_ome_zarr(tmp_path: Path, version: int) -> None:
    base = image(80, 60, 3)
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=version)
    units = {"unit": "micrometer", "type": "space"}
    axes = [{"name": "t"}, {"name": "c"}, {"name": "y", **units}, {"name": "x", **units}]
    levels = []
    for number, step in enumerate((1, 2)):
        part = base[::step, ::step].transpose(2, 0, 1)[None]
        group.create_array(str(number), data=np.ascontiguousarray(part), chunks=(1, 1, 32, 32))
        scale = [1, 1, 0.5 * step, 0.25 * step]
        levels.append(
            {"path": str(number), "coordinateTransformations": [{"type": "scale", "scale": scale}]}
        )
    facts = {"multiscales": [{"axes": axes, "datasets": levels}]}
    group.attrs.update(facts if version == 2 else {"ome": facts})
    slide = open_slide(tmp_path / "a.zarr")
    assert slide.levels == ((80, 60), (40, 30))
    assert slide.mpp == (0.5, 0.25)
    np.testing.assert_array_equal(slide.read((5, 40), (0, 30), 1), base[::2, ::2][5:40])


def test_zarr_that_is_no_image(tmp_path: Path) -> None:
    zarr.save(tmp_path / "stack.zarr", image(4, 5, 3)[None, None])
    with pytest.raises(SourceError, match=r"stack\.zarr: holds \(1, 1, 4, 5, 3\) with axes"):
        open_slide(tmp_path / "stack.zarr")
    (tmp_path / "none.zarr").mkdir()
    with pytest.raises(SourceError, match=r"none\.zarr: is no zarr array and no OME-Zarr"):
        open_slide(tmp_path / "none.zarr")
    with pytest.raises(SourceError, match=r"missing\.zarr: there is no such file"):
        open_slide(tmp_path / "missing.zarr")


def test_a_damaged_chunk_of_zarr(tmp_path: Path) -> None:
    zarr.save(tmp_path / "a.zarr", image(70, 50, 3))
    for chunk in (tmp_path / "a.zarr" / "c").rglob("*"):
        if chunk.is_file():
            chunk.write_bytes(b"torn")
    with pytest.raises(SourceError, match=r"a\.zarr: rows 0:9, columns 0:50 cannot be read"):
        sources.open(tmp_path / "a.zarr").read(0, 9)


def test_openslide_goes_on_after_a_damaged_tile() -> None:
    slide = open_slide(DATA / "unreadable_tile.svs", reader="openslide")
    for _ in range(2):
        with pytest.raises(
            SourceError, match=r"unreadable_tile\.svs: level 0, rows 0:16 from column 0, cannot"
        ):
            slide.read((0, 16), (0, 16))
    slide.close()
    with pytest.raises(SourceError, match=r"unreadable_tile\.svs: was closed"):
        slide.read((0, 16), (0, 16))


def test_what_openslide_cannot_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.mrxs").write_bytes(b"no slide")
    with pytest.raises(SourceError, match=r"a\.mrxs: cannot be read by OpenSlide .*8 bytes"):
        open_slide(tmp_path / "a.mrxs")
    with pytest.raises(SourceError, match=r"b\.mrxs: there is no such file"):
        open_slide(tmp_path / "b.mrxs")
    monkeypatch.setattr(openslide, "openslide", None)
    monkeypatch.setattr(openslide, "_why_not", "no library")
    with pytest.raises(
        SourceError, match=r"a\.mrxs: needs OpenSlide, which is not there \(no library\)"
    ):
        open_slide(tmp_path / "a.mrxs")
    assert open_slide(REAL[0][0]).reader == "tifffile"


def test_svs_that_tifffile_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> Any:
        raise SourceError(f"{path}: refused")

    monkeypatch.setattr(opening, "_by_tifffile", refuse)
    assert open_slide(REAL[0][0]).reader == "OpenSlide (aperio)"
    with pytest.raises(SourceError, match="refused"):
        open_slide(REAL[3][0])


def test_transparent_pixels_have_the_background() -> None:
    pixels = np.zeros((1, 3, 4), np.uint8)
    pixels[0, :, 3] = [0, 255, 51]
    pixels[0, :, 0] = [9, 90, 100]
    found = openslide._opaque(pixels, (255, 200, 10))
    np.testing.assert_array_equal(found[0], [[255, 200, 10], [90, 0, 0], [224, 160, 8]])


def test_readers_by_name(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"reader 'bioio'; expected one of tifffile, openslide, zarr"
    ):
        open_slide(REAL[0][0], reader="bioio")
    with pytest.raises(ValueError, match=r"given mpp=-1; expected micrometres per pixel"):
        open_slide(REAL[0][0], mpp=-1)


@pytest.mark.parametrize("look", [{"mpp": 1.0}, {"magnification": 10}, {"step": 2.0}, {"level": 1}])
def test_a_slide_on_disk_is_seen_at_any_resolution(look, tmp_path):
    """As an open slide, and no file stays open for it."""
    path = tmp_path / "a.ome.tif"
    image = np.random.default_rng(0).integers(0, 256, (1200, 1600, 3), np.uint8)
    source = sources.ArraySource(image)
    source.mpp = (0.5, 0.5)
    sources.write_ome_tiff(path, source)
    lazy = sources.OnDisk(path, **look)
    slide = sources.open_slide(path)
    step = look.pop("step", None)
    seen = slide.at(**look) if step is None else slide.scaled(step)
    assert lazy.shape == seen.shape == (600, 800, 3)
    np.testing.assert_array_equal(
        lazy.read_window((10, 90), (3, 77)), seen.read_window((10, 90), (3, 77))
    )
    slide.close()


def test_a_slide_on_disk_takes_one_resolution_and_the_size_of_its_pixels(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((64, 64, 3), np.uint8))
    with pytest.raises(ValueError, match="one of them"):
        sources.OnDisk(tmp_path / "a.npy", mpp=1.0, step=2.0)
    assert sources.OnDisk(tmp_path / "a.npy", mpp=1.0, pixel=0.5).shape == (32, 32, 3)


def test_tiles_of_a_slide_on_disk_are_those_of_the_open_slide(tmp_path):
    np.save(tmp_path / "a.npy", np.random.default_rng(1).integers(0, 256, (90, 130, 3), np.uint8))
    slide = sources.open_slide(tmp_path / "a.npy")
    coords = sources.Coords("a", np.array([[0, 0], [40, 20], [70, 50]]), 20, 2.0)
    lazy = coords.tiles_of(sources.OnDisk(tmp_path / "a.npy", step=2.0), slide.shape)
    np.testing.assert_array_equal(lazy.read(0, 3), coords.tiles(slide).read(0, 3))

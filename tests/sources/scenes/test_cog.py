"""Cloud-optimised GeoTIFF: valid, equal to what was written, and finished by another process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import rasterio
from rasterio.crs import CRS
from rasterio.enums import ColorInterp
from rasterio.transform import Affine
from rio_cogeo.cogeo import cog_validate
from scene_files import PLACE, UTM, pixels

from tfbig import sources
from tfbig.errors import SourceError
from tfbig.sources import MapGrid, RasterSource, write_cog
from tfbig.sources.scenes.cog import BlockWriter, Format

GRID = MapGrid.of(CRS.from_string(UTM), PLACE)
TURNED = MapGrid.of(CRS.from_string(UTM), PLACE @ Affine.rotation(12))


def check(path: Path) -> None:
    """Check that a file is a valid COG."""
    valid, errors, warnings = cog_validate(path, strict=True, quiet=True)
    assert (valid, errors, warnings) == (True, [], [])


@pytest.mark.parametrize("grid", [GRID, TURNED])
@pytest.mark.parametrize(("dtype", "bands"), [("uint8", 1), ("uint16", 2), ("float32", 1)])
def test_equals_the_image(tmp_path: Path, dtype: str, bands: int, grid: MapGrid) -> None:
    image = pixels(1100, 700, bands, dtype=dtype)
    names = [f"band {n}" for n in range(bands)]
    path = tmp_path / "a.tif"
    write_cog(path, sources.open(image), grid, nodata=5, names=names, labels=dtype == "uint8")
    check(path)
    source = RasterSource(path)
    np.testing.assert_array_equal(source.read(0, 1100), image)
    assert source.grid.equals(grid, (1100, 700))
    assert source.bands.nodata == (5.0,) * bands
    assert source.bands.names == tuple(names)
    assert source.levels == ((1100, 700), (550, 350), (275, 175))
    assert [file.name for file in tmp_path.iterdir()] == ["a.tif"]


def test_overviews_of_labels_are_labels(tmp_path: Path) -> None:
    image = np.random.default_rng(0).choice([1, 9], (1100, 1100, 1)).astype("uint8")
    write_cog(tmp_path / "a.tif", sources.open(image), GRID, labels=True)
    small = RasterSource(tmp_path / "a.tif", level=1)
    assert set(np.unique(small.read(0, 550))) == {1, 9}


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")  # of the validator
@pytest.mark.parametrize(
    ("grid", "dtype", "bands", "has_colours"),
    [
        (GRID, "uint8", 1, True),
        (GRID, "uint8", 2, False),
        (GRID, "uint16", 1, False),
        (MapGrid(None, GRID.matrix), "uint8", 1, False),
    ],
)
def test_classes_have_names_and_colours(
    tmp_path: Path, grid: MapGrid, dtype: str, bands: int, has_colours: bool
) -> None:
    image = np.random.default_rng(0).integers(0, 3, (600, 530, bands)).astype(dtype)
    image[:50] = 255
    names, colours = ("background", "a & <b>", "wood"), ((255, 255, 255), (0, 158, 115), (9, 8, 7))
    form = Format(image.shape, image.dtype, grid, 255, ("class",) * bands, True, names, colours)
    writer = BlockWriter(tmp_path / "a.tif", form, {}, side=512)
    for rows, columns in writer.blocks:
        writer.write((rows, columns), image[slice(*rows), slice(*columns)])
    writer.finish()
    check(tmp_path / "a.tif")
    with rasterio.open(tmp_path / "a.tif") as file:
        found = [file.tags()[f"CLASS_{number}"] for number in range(3)]
        assert (file.colorinterp[0] == ColorInterp.palette) == has_colours
        if has_colours:
            table = file.colormap(1)
            assert [table[n] for n in range(3)] == [(*colour, 255) for colour in colours]
            assert table[255][3] == 0
    assert found == [*names]
    assert [path.name for path in tmp_path.iterdir()] == ["a.tif"]
    np.testing.assert_array_equal(RasterSource(tmp_path / "a.tif").read(0, 600), image)
    if bands == 1:  # by tifffile
        np.testing.assert_array_equal(sources.open(tmp_path / "a.tif").read(0, 600), image)


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")  # of the validator
def test_no_coordinates(tmp_path: Path) -> None:
    write_cog(
        tmp_path / "a.tif", sources.open(pixels(30, 20, 1)), MapGrid.of(None, Affine.identity())
    )
    check(tmp_path / "a.tif")
    assert RasterSource(tmp_path / "a.tif").grid.crs is None


def test_another_writer_goes_on(tmp_path: Path) -> None:
    image, path = pixels(1100, 1300, 1), tmp_path / "a.tif"
    form = Format((1100, 1300, 1), image.dtype, GRID)
    first = BlockWriter(path, form, {"model": 1}, side=512)
    assert first.blocks[:3] == [
        ((0, 512), (0, 512)),
        ((0, 512), (512, 1024)),
        ((0, 512), (1024, 1300)),
    ]
    for rows, columns in first.blocks[:4]:
        first.write((rows, columns), image[slice(*rows), slice(*columns)])
    with pytest.raises(SourceError, match="5 of 9 blocks are not written"):
        first.finish()
    second = BlockWriter(path, form, {"model": 1}, side=512)
    assert second.missing == first.blocks[4:]
    for rows, columns in second.missing:
        second.write((rows, columns), image[slice(*rows), slice(*columns)])
    np.testing.assert_array_equal(second.read(second.blocks[8]), image[1024:, 1024:])
    second.finish()
    np.testing.assert_array_equal(RasterSource(path).read(0, 1100), image)


def test_blocks_of_another_model_are_dropped(tmp_path: Path) -> None:
    form = Format((600, 20, 1), np.dtype("uint8"), GRID)
    first = BlockWriter(tmp_path / "a.tif", form, {"model": 1}, side=512)
    first.write(first.blocks[0], np.ones((512, 20, 1), "uint8"))
    assert len(BlockWriter(tmp_path / "a.tif", form, {"model": 2}, side=512).missing) == 2


def test_a_half_written_block_is_missing(tmp_path: Path) -> None:
    form = Format((20, 20, 1), np.dtype("uint8"), GRID)
    writer = BlockWriter(tmp_path / "a.tif", form, {})
    (writer.folder / ".part-0_0.tif").write_bytes(b"half")
    assert len(writer.missing) == 1
    with pytest.raises(ValueError, match="received a block of"):
        writer.write(writer.blocks[0], np.ones((20, 20, 1), "uint16"))
    writer.write(writer.blocks[0], np.ones((20, 20, 1), "uint8"))
    assert writer.missing == []


def test_the_folder_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be written"):
        write_cog(tmp_path / "no" / "a.tif", sources.open(pixels(8, 8, 1)), GRID)


def test_tags_are_read_by_others(tmp_path: Path) -> None:
    write_cog(tmp_path / "a.tif", sources.open(pixels(30, 20, 1)), GRID, nodata=0)
    with rasterio.open(tmp_path / "a.tif") as file:
        assert (file.crs, file.transform, file.nodata) == (CRS.from_string(UTM), PLACE, 0)
        assert file.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG"

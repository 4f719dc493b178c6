"""Slides in zarr arrays and OME-Zarr groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from masked_images import check_background
from slide_files import noise
from streamed_pairs import slow

from tfbig import SourceError, sources
from tfbig.sources import open_slide
from tfbig.sources.slides import zarr_chunks


@pytest.mark.parametrize("shape", [(70, 50), (70, 50, 3)])
def test_arrays(tmp_path: Path, shape: tuple[int, ...]) -> None:
    array = noise(*shape)
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
    base = noise(80, 60, 3)
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
    metadata = {"multiscales": [{"axes": axes, "datasets": levels}]}
    group.attrs.update(metadata if version == 2 else {"ome": metadata})
    slide = open_slide(tmp_path / "a.zarr")
    assert slide.levels == ((80, 60), (40, 30))
    assert slide.mpp == (0.5, 0.25)
    np.testing.assert_array_equal(slide.read((5, 40), (0, 30), 1), base[::2, ::2][5:40])


def test_unsuitable_folders(tmp_path: Path) -> None:
    zarr.save(tmp_path / "stack.zarr", noise(4, 5, 3)[None, None])
    with pytest.raises(SourceError, match=r"stack\.zarr: holds \(1, 1, 4, 5, 3\) with axes"):
        open_slide(tmp_path / "stack.zarr")
    (tmp_path / "none.zarr").mkdir()
    with pytest.raises(SourceError, match=r"none\.zarr: is neither a zarr array nor an OME-Zarr"):
        open_slide(tmp_path / "none.zarr")
    with pytest.raises(SourceError, match=r"missing\.zarr: there is no such file"):
        open_slide(tmp_path / "missing.zarr")


def write_stack(path: Path, array: np.ndarray, axes: str, **options: Any) -> Any:
    """Write an array as OME-Zarr with one level; options are those of the array, and `omero` and `scale`."""
    version = options.get("zarr_format", 2)
    units = {"unit": "micrometer", "type": "space"}
    named = [{"name": axis, **(units if axis in "zyx" else {})} for axis in axes]
    sizes = options.pop("scale", {"y": 0.5, "x": 0.25})
    scale = [{"type": "scale", "scale": [sizes.get(axis, 1) for axis in axes]}]
    datasets = [{"path": "0", "coordinateTransformations": scale}]
    metadata = {"multiscales": [{"axes": named, "datasets": datasets}], **options.pop("about", {})}
    group = zarr.open_group(path, mode="w", zarr_format=options.pop("zarr_format", 2))
    stored = group.create_array("0", shape=array.shape, dtype=array.dtype, **options)
    stored[...] = array
    group.attrs.update(metadata if version == 2 else {"ome": metadata})
    return group


@pytest.mark.slow
@pytest.mark.parametrize("axes", ["czyx", "tczyx", "zcyx", "xyzc", "zyx"])
@pytest.mark.parametrize("storage", ["v2", "v3", "shards", "big endian"])
def test_stacks(tmp_path: Path, axes: str, storage: str) -> None:
    sizes = {"t": 1, "c": 3, "z": 4, "y": 70, "x": 50}
    shape = [sizes[axis] for axis in axes]
    dtype = ">u2" if storage == "big endian" else "<u2"
    array = np.random.default_rng(0).integers(0, 2**16, shape).astype(dtype)
    options: dict[str, Any] = {"chunks": [min(n, 16) if n > 4 else 1 for n in shape]}
    if storage in ("v3", "shards"):
        options["zarr_format"] = 3
    if storage == "shards":
        options["shards"] = [n * 2 if n > 1 else 1 for n in options["chunks"]]
    names = {"omero": {"channels": [{"label": name} for name in ("DAPI", "CD3", "CD8")]}}
    write_stack(tmp_path / "a.zarr", array, axes, about=names, **options)
    whole = array.transpose([axes.index(axis) for axis in "tczyx" if axis in axes])
    expected = np.moveaxis(whole.reshape(-1, 4, 70, 50), 0, -1)  # [z, y, x, c]
    for z, plane in (("max", expected.max(0)), (2, expected[2])):
        slide = open_slide(tmp_path / "a.zarr", z=z)
        assert slide.dtype == np.dtype("uint16") and slide.mpp == (0.5, 0.25)
        np.testing.assert_array_equal(slide.read((3, 60), (7, 50)), plane[3:60, 7:50])
        if "c" in axes:
            chosen = open_slide(tmp_path / "a.zarr", z=z, channels=["cd8", 0, "CD3"])
            assert chosen.channel_names == ("CD8", "DAPI", "CD3")
            np.testing.assert_array_equal(
                chosen.read((3, 60), (7, 50)), plane[3:60, 7:50][..., [2, 0, 1]]
            )
    with pytest.raises(SourceError, match=r"a\.zarr: is a stack of 4 planes along z"):
        open_slide(tmp_path / "a.zarr")


def test_only_chosen_channels_are_read(tmp_path: Path) -> None:
    array = noise(3, 40, 40)
    group = write_stack(tmp_path / "a.zarr", array, "cyx", chunks=(1, 40, 40))
    (tmp_path / "a.zarr/0/1.0.0").write_bytes(b"torn")
    assert group["0"].shape == (3, 40, 40)
    slide = open_slide(tmp_path / "a.zarr", channels=[2, 0])
    np.testing.assert_array_equal(slide.read((0, 40), (0, 40)), np.moveaxis(array[[2, 0]], 0, -1))


def test_missing_chunks_have_the_fill_value(tmp_path: Path) -> None:
    array = noise(40, 40) // 2 + 1
    write_stack(tmp_path / "a.zarr", array, "yx", chunks=(16, 16), fill_value=200)
    (tmp_path / "a.zarr/0/1.1").unlink()
    expected = array.copy()
    expected[16:32, 16:32] = 200
    np.testing.assert_array_equal(
        open_slide(tmp_path / "a.zarr").read((0, 40), (0, 40))[..., 0], expected
    )


def test_scale_of_all_levels_and_missing_scales(tmp_path: Path) -> None:
    group = write_stack(tmp_path / "a.zarr", noise(9, 9), "yx")
    image = dict(group.attrs["multiscales"][0])
    everywhere = [{"type": "scale", "scale": [10, 100]}]
    group.attrs["multiscales"] = [image | {"coordinateTransformations": everywhere}]
    assert open_slide(tmp_path / "a.zarr").mpp == (5.0, 25.0)
    for axes in (["y", "x"], [{"name": "y"}, {"name": "x"}]):
        group.attrs["multiscales"] = [image | {"axes": axes}]
        assert open_slide(tmp_path / "a.zarr").mpp is None
    group.attrs["multiscales"] = [{"datasets": [{"path": "0"}]}]
    assert open_slide(tmp_path / "a.zarr").mpp is None
    for wrong in (0, -1, float("inf")):
        write_stack(tmp_path / "b.zarr", noise(9, 9), "yx", scale={"y": wrong, "x": 1})
        assert open_slide(tmp_path / "b.zarr").mpp is None


def test_groups_of_images(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=2)
    group.attrs["bioformats2raw.layout"] = 3
    write_stack(tmp_path / "a.zarr/0", noise(9, 8), "yx")
    assert open_slide(tmp_path / "a.zarr").shape == (9, 8, 1)
    group.attrs.put({"plate": {"wells": [{"path": "A/1"}]}})
    with pytest.raises(
        SourceError, match=r"is a plate of many images\. .* a\.zarr/A/1/0 with|A/1/0"
    ):
        open_slide(tmp_path / "a.zarr")
    write_stack(tmp_path / "t.zarr", noise(2, 9, 8), "tyx")
    with pytest.raises(SourceError, match=r"t\.zarr: holds \(2, 9, 8\) with axes 'tyx'; expected"):
        open_slide(tmp_path / "t.zarr")
    (tmp_path / "t.zarr/.zattrs").write_text("{not JSON")
    with pytest.raises(SourceError, match=r"t\.zarr: is neither a zarr array nor an OME-Zarr"):
        open_slide(tmp_path / "t.zarr")


def test_chunk_that_ends_the_process_of_blosc(tmp_path: Path) -> None:
    """Blosc reads as far as the header of a chunk says, beyond its end."""
    write_stack(tmp_path / "a.zarr", noise(64, 64), "yx", compressors=numcodecs.Blosc("zstd"))
    (chunk,) = (tmp_path / "a.zarr/0").glob("0.0")
    data = bytearray(chunk.read_bytes())
    data[12:16] = (2**30).to_bytes(4, "little")
    data[16:20] = (2**30 - 100).to_bytes(4, "little")
    chunk.write_bytes(data)
    with pytest.raises(SourceError, match=r"a\.zarr.*SIGSEGV|a\.zarr.*cannot be read"):
        open_slide(tmp_path / "a.zarr").read((0, 64), (0, 64))
    array = zarr.open_array(tmp_path / "a.zarr/0", mode="r")
    with pytest.raises(ValueError, match="a chunk is shorter than its header states"):
        zarr_chunks.check_chunk(array, (0, 0), "a")


def test_damaged_chunk(tmp_path: Path) -> None:
    zarr.save(tmp_path / "a.zarr", noise(70, 50, 3))
    for chunk in (tmp_path / "a.zarr" / "c").rglob("*"):
        if chunk.is_file():
            chunk.write_bytes(b"torn")
    with pytest.raises(SourceError, match=r"a\.zarr: rows 0:9, columns 0:50 cannot be read"):
        sources.open(tmp_path / "a.zarr").read(0, 9)


@pytest.mark.parametrize("axes", ["yx", "cyx", "xyc"])
@pytest.mark.parametrize(("fill", "shards"), [(7, False), (7, True), (0, False), slow(0, True)])
def test_background_of_missing_chunks(tmp_path: Path, axes: str, shards: bool, fill: int) -> None:
    sizes, chunk = {"y": 1100, "x": 1000, "c": 3}, {"y": 64, "x": 128, "c": 1}
    shape = [sizes[axis] for axis in axes]
    inside = np.full(shape, fill, np.uint8)
    middle = tuple(slice(None) if axis == "c" else slice(300, 400) for axis in axes)
    inside[middle] = noise(*inside[middle].shape)
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=3)
    chunks = [chunk[axis] for axis in axes]
    options = {"shards": [2 * n if n > 1 else n for n in chunks]} if shards else {}
    array = group.create_array(
        "0", shape=shape, dtype="uint8", chunks=chunks, fill_value=fill, **options
    )
    array[...] = inside
    multiscales = [{"axes": [{"name": axis} for axis in axes], "datasets": [{"path": "0"}]}]
    group.attrs.update({"ome": {"multiscales": multiscales}})
    source = open_slide(tmp_path / "a.zarr").level()
    background = source.background
    assert background is not None
    assert background.cell == (128 if shards else 64)
    check_background(source, 0.75)
    assert source.colour((290, 410), (290, 410)) is None
    colour = source.colour((0, 200), (0, 1000))
    assert colour is not None
    assert colour.tolist() == [fill] * source.shape[2]


def test_no_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small arrays have none, nor do those that store everything, have too many chunks, or a fill value of nan."""
    zarr.save(tmp_path / "small.zarr", np.zeros((64, 64), np.uint8))
    assert sources.open(tmp_path / "small.zarr").background is None
    zarr.save(tmp_path / "full.zarr", noise(1100, 1000))
    assert sources.open(tmp_path / "full.zarr").background is None
    for name, dtype, fill in (("nan", "float32", np.nan), ("zero", "float32", 0)):
        zarr.create_array(
            tmp_path / f"{name}.zarr",
            shape=(1100, 1000),
            dtype=dtype,
            chunks=(99, 99),
            fill_value=fill,
        )
    assert sources.open(tmp_path / "nan.zarr").background is None
    assert sources.open(tmp_path / "nan.zarr").colour((0, 9), (0, 9)) is None
    check_background(sources.open(tmp_path / "zero.zarr"), 1.0)
    monkeypatch.setattr(zarr_chunks, "MAX_LISTED", 100)
    assert sources.open(tmp_path / "zero.zarr").background is None

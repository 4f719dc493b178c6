"""Slides in zarr arrays and OME-Zarr groups."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr
from masked_images import check_background
from slide_files import noise

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


def test_damaged_chunk(tmp_path: Path) -> None:
    zarr.save(tmp_path / "a.zarr", noise(70, 50, 3))
    for chunk in (tmp_path / "a.zarr" / "c").rglob("*"):
        if chunk.is_file():
            chunk.write_bytes(b"torn")
    with pytest.raises(SourceError, match=r"a\.zarr: rows 0:9, columns 0:50 cannot be read"):
        sources.open(tmp_path / "a.zarr").read(0, 9)


@pytest.mark.parametrize("axes", ["yx", "cyx", "xyc"])
@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("fill", [0, 7])
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

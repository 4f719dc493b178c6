"""OME-Zarr that is written: equal to the image, and valid by the models of the specification."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import ome_zarr_models.v04
import ome_zarr_models.v05
import pytest
import zarr
from slide_files import noise
from streamed_pairs import slow

from tfbig import SourceError, sources
from tfbig.sources import open_slide
from tfbig.sources.slides import ome_tiff, ome_zarr

MODELS = {"0.4": ome_zarr_models.v04, "0.5": ome_zarr_models.v05}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ome_zarr, "CHUNK", 16)
    monkeypatch.setattr(ome_zarr, "SHARD", 64)
    monkeypatch.setattr(ome_zarr, "SMALLEST", 50)


@pytest.mark.parametrize("version", ["0.4", "0.5"])
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        *(("uint16", shape) for shape in [(150, 101, 2), (64, 128, 3), (3, 5, 1)]),
        *((dtype, (150, 101, 2)) for dtype in ("uint8", "float32")),
        *(slow(d, s) for d in ("uint8", "float32") for s in [(64, 128, 3), (3, 5, 1)]),
    ],
)
def test_round_trip(tmp_path: Path, version: str, shape: tuple[int, ...], dtype: str) -> None:
    image = noise(*shape).astype(dtype)
    source = sources.open(image)
    source.mpp = (0.5, 0.25)
    names = [f"stain {n}" for n in range(shape[2])]
    path = tmp_path / "a.zarr"
    ticks: list[tuple[int, int]] = []
    tick = lambda done, count: ticks.append((done, count))  # noqa: E731
    sources.write_ome_zarr(path, source, channel_names=names, ome_version=version, ticked=tick)
    slide = open_slide(path)
    assert slide.mpp == (0.5, 0.25) and slide.channel_names == tuple(names)
    assert slide.dtype == np.dtype(dtype) and ticks[-1][0] == ticks[-1][1]
    expected = image
    for level in range(len(slide.levels)):
        np.testing.assert_array_equal(slide.level(level).read(0, len(expected)), expected)
        expected = ome_tiff.halved(expected, False)
    assert max(slide.levels[-1]) <= 50
    model = MODELS[version].Image.from_zarr(zarr.open_group(path, mode="r"))
    assert [axis.name for axis in model.ome_attributes.multiscales[0].axes] == ["c", "y", "x"]
    assert zarr.open_group(path, mode="r").metadata.zarr_format == (2 if version == "0.4" else 3)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.zarr"]


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_labels_of_an_image(tmp_path: Path, version: str) -> None:
    path = tmp_path / "a.zarr"
    sources.write_ome_zarr(path, sources.open(noise(150, 101, 1)), ome_version=version)
    labels = np.random.default_rng(0).integers(0, 2**20, (150, 101), np.int32)
    for name, values in (("cells", labels), ("nuclei", labels + 1), ("cells", labels + 2)):
        source = sources.open(values)
        source.mpp = (0.5, 0.5)
        sources.write_ome_zarr_labels(path, name, source)
    for name, offset in (("cells", 2), ("nuclei", 1)):
        slide = open_slide(path / "labels" / name, reader="zarr")
        for level, step in ((0, 1), (1, 2)):
            rows = slide.level(level).read(0, -(-150 // step))
            np.testing.assert_array_equal(rows[..., 0], labels[::step, ::step] + offset)
        group = zarr.open_group(path / "labels" / name, mode="r")
        model = MODELS[version].ImageLabel.from_zarr(group)
        assert model.ome_attributes.image_label.source.image == "../../"
    MODELS[version].Labels.from_zarr(zarr.open_group(path / "labels", mode="r"))
    known = zarr.open_group(path / "labels", mode="r").attrs
    assert known.get("ome", known)["labels"] == ["nuclei", "cells"]
    np.testing.assert_array_equal(open_slide(path).read((0, 150), (0, 101)), noise(150, 101, 1))


def test_labels_without_an_image(tmp_path: Path) -> None:
    labels = np.eye(40, dtype=np.uint8)
    sources.write_ome_zarr_labels(tmp_path / "a.zarr", "tissue", sources.open(labels))
    found = open_slide(tmp_path / "a.zarr/labels/tissue", reader="zarr")
    np.testing.assert_array_equal(found.read((0, 40), (0, 40))[..., 0], labels)
    assert found.mpp is None
    with pytest.raises(SourceError, match=r"a\.zarr: holds labels tissue but no image"):
        open_slide(tmp_path / "a.zarr")


def test_chunks_of_zeros_are_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ome_zarr, "CHUNK", 128)
    monkeypatch.setattr(ome_zarr, "SHARD", 256)
    monkeypatch.setattr(ome_zarr, "SMALLEST", 1000)
    image = np.zeros((1200, 1000), np.uint16)
    image[600:700, 600:700] = 9
    sources.write_ome_zarr(tmp_path / "a.zarr", sources.open(image))
    background = open_slide(tmp_path / "a.zarr").level(0).background
    assert background is not None and background.share < 0.2


def test_mistakes(tmp_path: Path) -> None:
    image, labels = sources.open(noise(9, 9, 2)), sources.open(np.eye(9, dtype=np.uint8))
    sources.write_ome_zarr(tmp_path / "a.zarr", image)
    with pytest.raises(SourceError, match=r"a\.zarr: exists already"):
        sources.write_ome_zarr(tmp_path / "a.zarr", image)
    with pytest.raises(
        ValueError, match=r"b\.tif: OME-Zarr 0\.5; expected a name that ends in \.z"
    ):
        sources.write_ome_zarr(tmp_path / "b.tif", image)
    with pytest.raises(ValueError, match=r"OME-Zarr 0\.3; .* version 0\.4 or 0\.5"):
        sources.write_ome_zarr(tmp_path / "b.zarr", image, ome_version="0.3")
    with pytest.raises(ValueError, match=r"received 1 channel names, \['x'\]; expected 2"):
        sources.write_ome_zarr(tmp_path / "b.zarr", image, channel_names=["x"])
    with pytest.raises(SourceError, match="has 2 channels of uint8; expected labels"):
        sources.write_ome_zarr_labels(tmp_path / "a.zarr", "x", image)
    with pytest.raises(ValueError, match=r"labels '\.\./x'; expected a name without '/'"):
        sources.write_ome_zarr_labels(tmp_path / "a.zarr", "../x", labels)
    (tmp_path / "c.zarr").mkdir()
    with pytest.raises(SourceError, match=r"c\.zarr: is not an OME-Zarr folder"):
        sources.write_ome_zarr_labels(tmp_path / "c.zarr", "x", labels)
    zarr.create_array(tmp_path / "d.zarr", shape=(4, 4), dtype="u1")
    with pytest.raises(SourceError, match=r"d\.zarr: is not an OME-Zarr folder"):
        sources.write_ome_zarr_labels(tmp_path / "d.zarr", "x", labels)
    assert not list(tmp_path.rglob(".part-*"))

"""OME-TIFF: tifffile and `open_slide` read the pixels, levels and pixel size that were written."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import tifffile

from tfbig import SourceError
from tfbig.sources import ArraySource, Source, open_slide, write_ome_tiff


def image(*shape: int, dtype: str = "uint8") -> np.ndarray:
    numbers = np.random.default_rng(0).integers(0, 200, shape)
    return numbers.astype(dtype)


def source(array: np.ndarray, mpp: tuple[float, float] | None = None) -> Source:
    actual = ArraySource(array)
    actual.mpp = mpp
    return actual


def halved(array: np.ndarray) -> np.ndarray:
    padded = np.pad(array, [(0, n % 2) for n in array.shape[:2]] + [(0, 0)], mode="edge").astype(
        float
    )
    means = (padded[::2, ::2] + padded[1::2, ::2] + padded[::2, 1::2] + padded[1::2, 1::2]) / 4
    return np.floor(means + 0.5) if array.dtype.kind in "ui" else means


SHAPES = [
    ((1301, 700, 1), "uint8", "YX"),
    ((700, 1100, 3), "uint8", "YXS"),
    ((530, 1030, 2), "uint8", "SYX"),
    ((1100, 40, 3), "float32", "SYX"),
    ((100, 70, 1), "uint16", "YX"),
]


@pytest.mark.parametrize(
    ("shape", "dtype", "axes", "compression"),
    [
        # every shape with deflate and every compression on the smallest image; the others are slow
        pytest.param(
            *case,
            compression,
            marks=() if compression == "deflate" or case is SHAPES[-1] else pytest.mark.slow,
        )
        for compression in ("deflate", "zstd", "lzw", "none")
        for case in SHAPES
    ],
)
def test_round_trip(tmp_path: Path, shape: Any, dtype: str, axes: str, compression: str) -> None:
    array, path = image(*shape, dtype=dtype), tmp_path / "a.ome.tif"
    write_ome_tiff(path, source(array, (0.5, 0.25)), compression=compression)
    assert [p.name for p in tmp_path.iterdir()] == ["a.ome.tif"]
    with tifffile.TiffFile(path) as tiff:
        assert tiff.is_ome and tiff.is_bigtiff
        (series,) = tiff.series
        assert series.axes == axes
        assert {level.keyframe.tile for level in series.levels} == {(512, 512)}
        assert 'PhysicalSizeX="0.25"' in (tiff.ome_metadata or "")
        expected = array.astype("float64")
        for level in series.levels:
            actual = level.asarray()
            actual = (
                np.moveaxis(actual, 0, -1) if axes == "SYX" else actual.reshape(*expected.shape)
            )
            np.testing.assert_allclose(actual, expected, atol=1e-4)
            expected = halved(actual.astype(dtype)).astype("float64")
    slide = open_slide(path)
    assert slide.mpp == pytest.approx((0.5, 0.25))
    assert max(slide.levels[-1]) <= 1024
    np.testing.assert_array_equal(slide.read((0, shape[0]), (0, shape[1])), array)


def test_labels_are_not_averaged(tmp_path: Path) -> None:
    array = image(1400, 1300, 1)
    write_ome_tiff(tmp_path / "a.ome.tif", source(array), labels=True)
    slide = open_slide(tmp_path / "a.ome.tif")
    assert slide.mpp is None
    assert slide.levels == ((1400, 1300), (700, 650))
    np.testing.assert_array_equal(slide.level(1).read(0, 700), array[::2, ::2])


def test_jpeg(tmp_path: Path) -> None:
    smooth = np.fromfunction(lambda i, j, c: (i + j + 40 * c) / 8 % 200, (600, 500, 3)).astype(
        np.uint8
    )
    write_ome_tiff(tmp_path / "a.ome.tif", source(smooth), compression="jpeg")
    actual = open_slide(tmp_path / "a.ome.tif").read((0, 600), (0, 500))
    assert np.abs(actual.astype(int) - smooth).mean() < 3


def test_progress(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    write_ome_tiff(
        tmp_path / "a.ome.tif", source(image(1301, 90, 1)), ticked=lambda *n: calls.append(n)
    )
    assert calls == [(1, 3), (2, 3), (3, 3)]


def test_failed_write_leaves_old_file(tmp_path: Path) -> None:
    class DamagedSource(Source):
        def _read(self, start: int, stop: int) -> Any:
            if start:
                raise SourceError("torn: damaged")
            return np.zeros((stop - start, *self.shape[1:]), self.dtype)

    (tmp_path / "a.ome.tif").write_text("an older file")
    with pytest.raises(SourceError, match="torn: damaged"):
        write_ome_tiff(tmp_path / "a.ome.tif", DamagedSource((2000, 50), np.uint8, "torn"))
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a.ome.tif", "an older file")]
    with pytest.raises(SourceError, match=r"none/a\.ome\.tif: cannot be written"):
        write_ome_tiff(tmp_path / "none" / "a.ome.tif", source(image(9, 9, 1)))


def test_invalid_arguments(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.tif: expected a name that ends in \.ome\.tif"):
        write_ome_tiff(tmp_path / "a.tif", source(image(9, 9, 1)))
    for array, compression in (
        (image(9, 9, 1), "zip"),
        (image(9, 9, 2), "jpeg"),
        (image(9, 9, 1, dtype="uint16"), "jpeg"),
    ):
        with pytest.raises(
            ValueError, match=rf"compression='{compression}' for .* expected one of deflate"
        ):
            write_ome_tiff(tmp_path / "a.ome.tif", source(array), compression=compression)


@pytest.mark.parametrize(
    ("channels", "names"),
    [(1, ["class"]), (3, ["H&E"]), (3, ["glass", "stroma", "tumour"]), (4, ["a", "b", "c", "d"])],
)
def test_names_of_channels_and_creator(tmp_path: Path, channels: int, names: list[str]) -> None:
    path = tmp_path / "a.ome.tif"
    array = image(70, 50, channels)
    write_ome_tiff(path, source(array), channel_names=names)
    with tifffile.TiffFile(path) as tiff:
        root = ElementTree.fromstring(tiff.ome_metadata)
    assert root.attrib["Creator"].startswith("tfbig ")
    assert [e.attrib["Name"] for e in root.iter() if e.tag.endswith("}Channel")] == [
        ", ".join(names)
    ]
    np.testing.assert_array_equal(open_slide(path).read((0, 70), (0, 50)), array)


def test_wrong_number_of_names(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"received 2 channel names, \['a', 'b'\]; expected 3"):
        write_ome_tiff(tmp_path / "a.ome.tif", source(image(5, 5, 3)), channel_names=["a", "b"])

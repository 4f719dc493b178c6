"""Percentiles, and images between two of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

from tfbig import SourceError, sources
from tfbig.sources import intensity


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "bool", "float32", "int32"])
def test_percentiles_are_those_of_numpy(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intensity, "_BLOCK_BYTES", 1000)
    rng = np.random.default_rng(0)
    image = (rng.standard_normal((97, 31, 2)) * 60).astype(dtype)
    for low, high in ((1, 99.8), (0, 100), (50, 51)):
        found = sources.percentiles(sources.open(image), low, high)
        expected = np.percentile(
            image.astype(np.float64).reshape(-1, 2), [low, high], axis=0, method="inverted_cdf"
        )
        np.testing.assert_array_equal(found, expected)


def test_large_images_of_other_dtypes_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intensity, "_SAMPLED", 100)
    monkeypatch.setattr(intensity, "_BLOCK_BYTES", 7 * 60 * 4)
    image = np.random.default_rng(0).random((50, 60), np.float32)
    image[0, 0] = np.nan
    sampled = image[::6, ::6].astype(np.float64)
    expected = np.nanpercentile(sampled, [10, 90], method="inverted_cdf")
    np.testing.assert_array_equal(sources.percentiles(sources.open(image), 10, 90)[:, 0], expected)


def test_rescaled() -> None:
    image = np.arange(0, 60000, 7, dtype=np.uint16).reshape(1, -1)
    rescaled = sources.Rescaled(sources.open(image), [[5000], [40000]])
    exact = np.clip((image.astype(float) - 5000) / 35000, 0, 1) * 255
    assert rescaled.dtype == np.uint8
    np.testing.assert_array_equal(rescaled.read(0, 1)[..., 0], np.floor(exact + 0.5))
    flat = sources.Rescaled(sources.open(np.array([[6, 7, 8]], np.uint16)), [[7], [7]])
    assert flat.read(0, 1).ravel().tolist() == [0, 0, 255]
    odd = sources.Rescaled(sources.open(np.array([[np.nan, np.inf, -np.inf]])), [[0], [1]])
    assert odd.read(0, 1).ravel().tolist() == [0, 255, 0]


def test_mistakes() -> None:
    image = sources.open(np.zeros((4, 4), np.uint16))
    for low, high in ((5, 5), (-1, 9), (1, 101), (99, 1)):
        with pytest.raises(ValueError, match=r"received percentiles .* 0 to 100"):
            sources.percentiles(image, low, high)
    with pytest.raises(SourceError, match=r"expected two finite numbers for each of its 1 channel"):
        sources.Rescaled(image, [[0, 1], [2, 3]])
    empty = sources.open(np.full((4, 4), np.nan))
    with pytest.raises(SourceError, match="channel 0 has no finite value"):
        sources.percentiles(empty, 1, 99)


def test_slide_is_measured_at_the_coarsest_large_level(tmp_path: Path) -> None:
    """Here both levels have a value of their own, so that the percentiles say which was read."""
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=2)
    for number, side in enumerate((2048, 1024, 512)):
        values = np.tile(np.array([0, 1000 * (number + 1)], np.uint16), (side, side // 2))
        group.create_array(str(number), data=values, chunks=(512, 512))
    datasets = [{"path": str(number)} for number in range(3)]
    axes = [{"name": "y"}, {"name": "x"}]
    group.attrs["multiscales"] = [{"axes": axes, "datasets": datasets}]
    slide = sources.open_slide(tmp_path / "a.zarr", percentiles=(1, 99))
    assert slide.level(0).limits.ravel().tolist() == [0, 2000]
    assert slide.read((0, 1), (0, 2)).ravel().tolist() == [0, 128]
    assert slide.read((0, 1), (0, 2), level=1).ravel().tolist() == [0, 255]

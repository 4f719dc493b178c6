"""Volumes as a network reads them, against arrays, and masks back on the grid of the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from volume_files import OBLIQUE, SIZE, samples, write_nifti

from tfbig import sources
from tfbig.cli.data import prepared_volumes
from tfbig.cli.data.prepared_volumes import KnownLabels, Normalised, Preparation
from tfbig.errors import SourceError
from tfbig.sources import ArrayVolume, VoxelGrid

GRID = VoxelGrid.of_affine(OBLIQUE[:, [2, 1, 0, 3]])


def test_mean_and_deviation_of_each_channel() -> None:
    array = np.random.default_rng(0).normal(1e6, 3, (*SIZE, 2)).astype("float32")
    array[1, 2, 3, 0] = np.nan
    volume = ArrayVolume(array)
    mean, deviation = prepared_volumes.mean_and_deviation(volume)
    exact = array.astype("float64").reshape(-1, 2)
    np.testing.assert_allclose(mean, np.nanmean(exact, 0), rtol=1e-12)
    np.testing.assert_allclose(deviation, np.nanstd(exact, 0), rtol=1e-10)
    normalised = Normalised(volume, None).read(0, 5)
    assert normalised[1, 2, 3, 0] == 0
    expected = (array - np.nanmean(exact, 0)) / np.nanstd(exact, 0)
    np.testing.assert_allclose(normalised, np.nan_to_num(expected), rtol=1e-6, atol=1e-6)
    constant = Normalised(ArrayVolume(np.full(SIZE, 7, "float32")), None)
    assert not constant.read(0, 5).any()


def test_window() -> None:
    volume = ArrayVolume(np.array([-2000, -1000, 0, 500, 3000], "float32").reshape(5, 1, 1))
    values = Normalised(volume, (-1000.0, 1000.0)).read(0, 5).ravel()
    assert values.tolist() == [-1, -1, 0, 0.5, 1]
    assert Preparation(window=(0.0, 1.0)).fill == -1 and Preparation().fill == 0


@pytest.mark.parametrize("window", [None, (0.0, 100.0)])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_voxels_that_are_not_finite_become_0(
    value: float, window: tuple[float, float] | None
) -> None:
    array = samples("float32")
    array[2, 3, 4] = value
    normalised = Normalised(ArrayVolume(array), window).read(0, 5)[..., 0]
    known = np.isfinite(array)
    mean, deviation = (50, 50) if window else (array[known].mean(), array[known].std())
    expected = np.where(known, (array - mean) / deviation, 0)
    expected = np.clip(expected, -1, 1) if window else expected
    np.testing.assert_allclose(normalised, expected, rtol=1e-5, atol=1e-5)
    assert normalised[2, 3, 4] == 0


@pytest.mark.parametrize(("value", "text"), [(3, "3"), (-1, "-1"), (0.5, "0.5"), (np.nan, "nan")])
def test_unknown_labels(value: float, text: str) -> None:
    array = np.zeros(SIZE, "float32")
    array[2, 3, 4] = value
    labels = KnownLabels(ArrayVolume(array, "a/labels.nii"), 3)
    assert not labels.read(0, 2).any()
    with pytest.raises(SourceError, match=rf"labels\.nii: has the label {text}; expected 0 to 2"):
        labels.read(0, 5)


def test_labels_with_a_scale_of_float32() -> None:
    """0 and 255 with a slope of 1 / 255, as programs save masks; a scale that gives no classes is named."""
    array = np.array([0, 255, 255], "uint8").reshape(3, 1, 1)
    slope = float(np.float32(1 / 255))
    assert slope * 255 != 1
    labels = KnownLabels(ArrayVolume(array, scaling=(slope, 0.0)), 2)
    assert labels.read(0, 3).ravel().tolist() == [0, 1, 1]
    labels = KnownLabels(ArrayVolume(array, "a.nii", scaling=(0.01, 0.0)), 2)
    with pytest.raises(SourceError, match=r"label 2\.55, stored with slope 0\.01 and intercept 0;"):
        labels.read(0, 3)


def test_labels_with_a_scaling_and_channels() -> None:
    array = np.arange(3, dtype="uint8").reshape(3, 1, 1)
    labels = KnownLabels(ArrayVolume(array, scaling=(2.0, 0.0)), 5)
    assert labels.read(0, 3).ravel().tolist() == [0, 2, 4]
    with pytest.raises(SourceError, match="holds 2 channels; expected labels of one"):
        Preparation().labels(ArrayVolume(np.zeros((*SIZE, 2), "uint8")), 3)


@pytest.mark.parametrize("orientation", ["stored", "SAR", "RIA"])
@pytest.mark.parametrize("spacing", [None, (1.5, 0.9, 1.6)])
def test_masks_return_to_the_grid_of_the_file(
    orientation: str, spacing: tuple[float, float, float] | None
) -> None:
    """Labels in the voxels of the network, brought back, are those of the file where resampling keeps every voxel."""
    blocks = samples("uint8", (5, 3, 4)) % 3
    labels = blocks.repeat(2, 1).repeat(2, 2)  # 5 x 6 x 8, constant where voxels are merged
    grid = VoxelGrid.of_affine(
        np.array([[0, 0, -0.8, 0], [0, 0.9, 0, 0], [3.0, 0, 0, 0], [0, 0, 0, 1]])
    )
    stored = ArrayVolume(labels, grid=grid)
    if spacing is not None and orientation == "RIA":
        spacing = (1.6, 1.5, 0.9)
    preparation = Preparation(orientation, spacing, None, (4, 4, 4))
    read = preparation.padded(preparation.labels(stored, 3))
    assert all(n % 4 == 0 for n in read.shape[:3])
    prediction = ArrayVolume(read.read(0, read.shape[0]).astype("uint8"))
    restored = preparation.restored(prediction, stored)
    assert restored.shape == stored.shape
    np.testing.assert_array_equal(restored.read(0, 5), stored.read(0, 5))


def test_images_are_turned_and_resampled() -> None:
    stored = ArrayVolume(samples(), grid=GRID, scaling=(0.5, 3.0))
    image = Preparation("RAS", (1.6, 0.9, 1.5)).image(stored)
    normalised = Normalised(stored.values(), None)
    expected = sources.at_spacing(normalised.turned("RAS"), (1.6, 0.9, 1.5))
    assert image.orientation == "RAS" and image.shape == (4, 6, 10, 1)
    np.testing.assert_array_equal(image.read(0, 4), expected.read(0, 4))


def test_stacked_channels(tmp_path: Path) -> None:
    paths = [write_nifti(tmp_path / f"a_000{n}.nii.gz", samples("int16", seed=n)) for n in range(2)]
    volume = prepared_volumes.stacked(paths, "a", 2)
    expected = np.stack([samples("int16", seed=n) for n in range(2)], -1)
    np.testing.assert_array_equal(volume.read(0, 5), expected)
    assert volume.header == sources.open_volume(paths[0]).header
    with pytest.raises(SourceError, match="a: holds 2 channels; expected one volume"):
        prepared_volumes.stacked(paths, "a", 1)
    with pytest.raises(SourceError, match=r"holds 1 channel; expected 2 channels, \[D, H, W, 2\]"):
        prepared_volumes.stacked(paths[:1], "a", 2)
    write_nifti(paths[1], samples(shape=(5, 6, 8)))
    with pytest.raises(
        SourceError, match="is 5 x 6 x 8 voxels; expected 5 x 6 x 7, those of another"
    ):
        prepared_volumes.stacked(paths, "a", 2)


def test_strides_of_a_run() -> None:
    config = {"stage_filters": (4, 8), "strides": ("1x2x2",)}
    assert prepared_volumes.strides_of(config) == ((1, 1, 1), (1, 2, 2))
    default = {"stage_filters": (4, 8, 8), "strides": None}
    assert prepared_volumes.strides_of(default) == ((1, 1, 1), (2, 2, 2), (2, 2, 2))
    others = {"orientation": None, "spacing": None, "intensity_window": [0, 9]}
    expected = Preparation(window=(0, 9), stride=(4, 4, 4))
    assert prepared_volumes.of_config(default | others) == expected

"""Resampled, stacked and padded volumes, against dense computations."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from volume_files import OBLIQUE, SIZE, samples

from tfbig import sources
from tfbig.errors import SourceError
from tfbig.sources.volumes import views
from tfbig.sources.volumes.grid import VoxelGrid
from tfbig.sources.volumes.raw import ArrayVolume

GRID = VoxelGrid.of_affine(OBLIQUE[:, [2, 1, 0, 3]])


def weights(old: int, new: int) -> np.ndarray:
    """The triangle around the centre of each voxel of the result, voxels beyond the edge being that at the edge."""
    factor = old / new
    reach, matrix = max(factor, 1), np.zeros((new, old))
    for target, source in itertools.product(range(new), range(-3 * old - 9, 4 * old + 9)):
        distance = abs(source - ((target + 0.5) * factor - 0.5))
        matrix[target, min(max(source, 0), old - 1)] += max(1 - distance / reach, 0)
    return matrix / matrix.sum(1, keepdims=True)


@pytest.mark.parametrize("size", [(5, 6, 7), (10, 3, 9), (2, 11, 1), (7, 6, 4)])
def test_linear_against_a_dense_matrix(size: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).normal(size=(*SIZE, 2))
    resampled = sources.Resampled(ArrayVolume(array, grid=GRID), size)
    matrices = [weights(old, new) for old, new in zip(SIZE, size, strict=True)]
    expected = np.einsum("ad,bh,cw,dhwk->abck", *matrices, array)
    np.testing.assert_allclose(resampled.read(0, size[0]), expected, rtol=1e-12, atol=1e-12)
    assert resampled.spacing == pytest.approx(
        [s * old / new for s, old, new in zip(GRID.spacing, SIZE, size, strict=True)]
    )


@pytest.mark.parametrize("nearest", [False, True])
def test_no_voxel_depends_on_the_box(nearest: bool) -> None:
    array = np.random.default_rng(0).normal(size=SIZE).astype("float32")
    resampled = sources.Resampled(ArrayVolume(array), (8, 4, 9), nearest)
    whole = resampled.read(0, 8)
    for box in [((2, 5), (1, 2), (3, 9)), ((7, 8), (0, 4), (0, 1)), ((0, 1), (3, 4), (8, 9))]:
        part = resampled.read_box(*box)
        np.testing.assert_array_equal(part, whole[tuple(slice(*each) for each in box)])


def test_labels_take_the_nearest_voxel() -> None:
    labels = samples("uint8")
    resampled = sources.Resampled(ArrayVolume(labels), (10, 12, 7), nearest=True)
    np.testing.assert_array_equal(resampled.read(0, 10)[..., 0], labels.repeat(2, 0).repeat(2, 1))
    back = sources.Resampled(resampled, SIZE, nearest=True)
    np.testing.assert_array_equal(back.read(0, 5)[..., 0], labels)


def test_integers_are_rounded() -> None:
    volume = ArrayVolume(np.array([0, 3, 2, 0], "int16").reshape(4, 1, 1))
    assert sources.Resampled(volume, (2, 1, 1)).read(0, 2).ravel().tolist() == [1, 1]
    assert sources.Resampled(volume, (2, 1, 1)).dtype == "int16"


def test_spacing() -> None:
    volume = ArrayVolume(samples(), grid=GRID)
    resampled = sources.at_spacing(volume, (1.0, 1.8, 0.4))
    assert resampled.shape[:3] == (15, 3, 14)
    assert sources.at_spacing(volume, GRID.spacing) is volume


def test_stacked() -> None:
    one, two = (
        ArrayVolume(samples(), "one", GRID),
        ArrayVolume(samples("float32", seed=1), "two", GRID),
    )
    stacked = views.Stacked([one, two])
    np.testing.assert_array_equal(
        stacked.read_box((1, 3), (0, 6), (2, 4)),
        np.stack([samples(), samples("float32", seed=1)], -1)[1:3, :, 2:4],
    )
    assert stacked.dtype == "float32"
    with pytest.raises(SourceError, match="different scalings"):
        views.Stacked([one, ArrayVolume(samples(), "two", GRID, (2.0, 0.0))])


OTHERS: dict[str, tuple[Any, Any, str]] = {
    "shape": (
        samples(shape=(5, 6, 8)),
        GRID,
        r"labels: is 5 x 6 x 8 voxels; expected 5 x 6 x 7, those of the image, a",
    ),
    "place": (samples(), GRID.cropped((1, 0, 0)), r"labels: lies 3\.01 mm away from the image, a"),
    "turned": (
        samples(),
        GRID.turned((0, 1, 2), (False, True, False), SIZE),
        "orientations SAL and SPL",
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_another_grid(case: str) -> None:
    array, grid, message = OTHERS[case]
    image, labels = ArrayVolume(samples(), "a", GRID), ArrayVolume(array, "labels", grid)
    with pytest.raises(SourceError, match=message):
        views.check_same_grid(labels, image, "the image")
    rounded = VoxelGrid.of_affine(np.array(GRID.affine).astype("float32"))
    views.check_same_grid(ArrayVolume(samples(), "b", rounded), image, "the image")
    views.check_same_grid(ArrayVolume(samples(), "c"), image, "the image")


def test_padded_to_a_least_size() -> None:
    padded = views.PaddedVolume(ArrayVolume(samples()), (1, 1, 4), least=(9, 1, 1))
    assert padded.shape == (9, 6, 8, 1)

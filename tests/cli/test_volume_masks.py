"""Masks of whole volumes, for any budget those of the plain model, and their overlap with labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from volume_files import OBLIQUE, SIZE, samples

import tfbig
from tfbig.cli import volume_masks
from tfbig.cli.data.prepared_volumes import Preparation
from tfbig.errors import SourceError
from tfbig.sources import ArrayVolume, VoxelGrid

GRID = VoxelGrid.of_affine(OBLIQUE[:, [2, 1, 0, 3]])


def network(classes: int = 3, activation: Any = None) -> keras.Model:
    """Sums of integers, so that strips are exact."""
    inputs = keras.Input((None, None, None, 1))
    layer = keras.layers.Conv3D(classes, 3, padding="same", activation=activation)
    model = keras.Model(inputs, layer(inputs))
    rng = np.random.default_rng(0)
    model.set_weights([rng.integers(-3, 4, w.shape).astype("float32") for w in model.get_weights()])
    return model


def expected(model: keras.Model, volume: ArrayVolume) -> np.ndarray:
    image = Preparation().image(volume).read(0, SIZE[0])
    return model.predict(image[None], verbose=0)[0]


@pytest.mark.parametrize("rows", [1, 3, 50])
def test_any_strips_give_the_mask_of_the_plain_model(rows: int, tmp_path: Path) -> None:
    model, volume = network(), ArrayVolume(samples(), grid=GRID)
    big = tfbig.stream(model, strip_rows=rows, source_dtype="float32")
    mask = volume_masks.predict(big, volume, Preparation(), tmp_path / "m.npy")
    assert (mask.shape, mask.dtype) == ((*SIZE, 1), np.dtype("uint8"))
    np.testing.assert_array_equal(mask.read(0, 5)[..., 0], expected(model, volume).argmax(-1))


@pytest.mark.parametrize("probability", [False, True])
def test_one_output(probability: bool, tmp_path: Path) -> None:
    model, volume = network(1, "sigmoid" if probability else None), ArrayVolume(samples())
    mask = volume_masks.predict(model, volume, Preparation(), tmp_path / "m.npy", 0.7, probability)
    limit = 0.7 if probability else np.log(0.7 / 0.3)
    np.testing.assert_array_equal(mask.read(0, 5), expected(model, volume) > limit)


def test_turned_resampled_and_padded(tmp_path: Path) -> None:
    """A network that looks at one voxel: the mask is that of the resampled volume, back on the grid."""
    inputs = keras.Input((None, None, None, 1))
    layer = keras.layers.Conv3D(2, 1, use_bias=False)
    model = keras.Model(inputs, layer(inputs))
    layer.set_weights([np.array([0.0, 1.0], "float32").reshape(1, 1, 1, 1, 2)])
    array = np.zeros(SIZE, "int16")
    array[:, :, 4:] = 100
    volume = ArrayVolume(array, grid=GRID)
    preparation = Preparation("RAS", (0.4, 0.9, 3.0), None, (4, 4, 4))
    mask = volume_masks.predict(model, volume, preparation, tmp_path / "m.npy")
    np.testing.assert_array_equal(mask.read(0, 5)[..., 0], array > 0)


def test_a_network_that_crops(tmp_path: Path) -> None:
    inputs = keras.Input((None, None, None, 1))
    model = keras.Model(inputs, keras.layers.Conv3D(2, 3)(inputs))
    with pytest.raises(SourceError, match=r"maps \(5, 6, 7\) voxels to \(3, 4, 5\); expected as"):
        volume_masks.predict(model, ArrayVolume(samples()), Preparation(), tmp_path / "m.npy")


def test_compared() -> None:
    labels = np.array([0, 1, 1, 2, 0, 1]).reshape(2, 3, 1)
    mask = np.array([0, 1, 2, 2, 0, 0]).reshape(2, 3, 1)
    seen = volume_masks.compared(ArrayVolume(labels), ArrayVolume(mask), 4)
    assert seen.counts.tolist() == [[2, 0, 0, 0], [1, 1, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    assert seen.dice() == [4 / 5, 2 / 4, 2 / 3, None]

"""Maps of instances, and images that cannot be used."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import ndimage
from slide_files import noise

from tfbig import SourceError
from tfbig.cli.data import instance_images
from tfbig.cli.paths import FlagError


def settings(folder: Path, **changes: Any) -> Any:
    chosen = {"channels": None, "z": None, "percentiles": None, "crop": "32x32", "crops": None}
    chosen["depth"] = 4
    others = {"shares": (60, 20, 20), "seed": 0, "test_only": None, "confine": False}
    return Namespace(
        **{"data": str(folder), "augment": "flips", "batch_size": 2, **chosen, **others, **changes}
    )


def write(folder: Path, count: int = 5, dtype: str = "uint8", **labels: np.ndarray) -> Path:
    """Write images with two instances each."""
    (folder / "masks").mkdir(parents=True)
    for number in range(count):
        mask = np.zeros((40, 50), np.uint16)
        mask[3:20, 4 + number : 20], mask[3:20, 20:33] = 7, 300
        np.save(folder / f"{number}.npy", noise(40, 50, 3).astype(dtype) + number)
        np.save(folder / f"masks/{number}.npy", labels.get(f"mask_{number}", mask))
    return folder


def test_maps_are_distances_within_each_instance() -> None:
    rng = np.random.default_rng(0)
    labels = np.kron(rng.integers(0, 5, (6, 7)), np.ones((5, 5), int)) * 11
    found = instance_images.maps_of(labels)
    np.testing.assert_array_equal(found[..., 0], np.where(labels > 0, 255, 0))
    expected = np.zeros(labels.shape)
    for number in np.unique(labels[labels > 0]):
        distance = ndimage.distance_transform_edt(np.pad(labels == number, 1))[1:-1, 1:-1]
        expected += 255 * distance / distance.max()
    np.testing.assert_array_equal(found[..., 1], np.rint(expected))
    assert not instance_images.maps_of(np.zeros((3, 4), int)).any()
    assert instance_images.maps_of(np.full((3, 3), 9)).max() == 255


def test_crops_are_parts_of_the_images_and_maps_fit(tmp_path: Path) -> None:
    data = instance_images.load(settings(write(tmp_path / "data")))
    part = data.train
    assert instance_images.crops(part, settings(tmp_path)) == 40 * 50 * len(part.items) // 32**2
    whole = {each.image.read(0, 40).tobytes(): each for each in part.items}
    assert len(whole) == 3
    for image, maps in instance_images.drawn(part, settings(tmp_path, augment="none")):
        assert image.shape[1:] == (32, 32, 3) and maps.shape[1:] == (32, 32, 2)
        for pixels, values in zip(image.numpy(), maps.numpy(), strict=True):
            places = [
                (each, row, column)
                for each in part.items
                for row in range(9)
                for column in range(19)
                if (each.image.read(0, 40)[row : row + 32, column : column + 32] == pixels).all()
            ]
            ((each, row, column),) = places
            expected = each.maps[row : row + 32, column : column + 32] / np.float32(255)
            np.testing.assert_array_equal(values, expected)
    first = [image.numpy() for image, _ in instance_images.drawn(part, settings(tmp_path))]
    again = [image.numpy() for image, _ in instance_images.drawn(part, settings(tmp_path))]
    np.testing.assert_array_equal(first[0], again[0])
    ((image, maps),) = list(instance_images.whole(data.val, 16))
    assert image.shape == (1, 48, 64, 3) and maps.shape == (1, 48, 64, 2)
    assert not image[0, 40:].numpy().any() and not maps[0, :, 50:].numpy().any()


def test_one_line_for_each_mistake(tmp_path: Path) -> None:
    binary = np.zeros((40, 50), np.uint8)
    binary[2:9, 2:9], binary[20:30, 20:30] = 255, 255
    folder = write(tmp_path / "binary", **{f"mask_{n}": binary for n in range(5)})
    with pytest.raises(SourceError, match=r"has the same number, 255, in 2 separate regions"):
        instance_images.load(settings(folder))
    with pytest.raises(SourceError, match=r"has samples of uint16; .* Use --percentiles 1 99\.8"):
        instance_images.load(settings(write(tmp_path / "deep", dtype="uint16")))
    loaded = instance_images.load(settings(tmp_path / "deep", percentiles=(1, 99)))
    assert loaded.train.items[0].image.dtype == np.uint8
    with pytest.raises(FlagError, match=r"is 40 x 50 pixels, smaller than a crop"):
        instance_images.load(settings(tmp_path / "deep", percentiles=(1, 99), crop="64x32"))
    wrong = np.zeros((40, 49), np.uint8)
    folder = write(tmp_path / "size", **{f"mask_{n}": wrong for n in range(5)})
    with pytest.raises(SourceError, match=r"is 40 x 49 pixels of 1 channel of uint8; expected 40"):
        instance_images.load(settings(folder))
    np.save(tmp_path / "deep/0.npy", np.zeros((40, 50), np.uint8))
    with pytest.raises(SourceError, match=r"has images of 1 and 3 channels; expected one number"):
        instance_images.load(settings(tmp_path / "deep", percentiles=(1, 99)))

"""Bags in files: features, pictures, arrays, and files that are not bags."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch_saved
from bag_samples import features, tiles
from PIL import Image

from tfbig import SourceError
from tfbig.sources import FeatureBag, PictureBag, open_bag


def test_features_with_leading_axis(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["features"] = np.arange(21, dtype="float32").reshape(1, 3, 7)
        file["coords"] = np.zeros((3, 2))
    bag = FeatureBag(tmp_path / "a.h5")
    np.testing.assert_array_equal(bag.read(1, 3), np.arange(7, 21).reshape(2, 7))


def stamp(path: Path, coords: np.ndarray, **attributes: Any) -> FeatureBag:
    """Write features as STAMP does, in float16, and open them."""
    with h5py.File(path, "w") as file:
        file["coords"] = coords
        file["feats"] = np.arange(2 * len(coords)).reshape(len(coords), 2).astype("float16")
        file.attrs.update(attributes)
    return FeatureBag(path)


def test_features_of_stamp(tmp_path: Path) -> None:
    coords = np.array([[0, 0], [256, 0], [0, 512]], "float32")
    now = {"stamp_version": "2.4.0", "unit": "um", "tile_size_um": 256.0, "feat_type": "tile"}
    bag = stamp(tmp_path / "a.h5", coords, **now)
    assert (bag.shape, bag.dtype, bag.unit) == ((3, 2), np.float16, "um")
    np.testing.assert_array_equal(bag.coords, coords)
    np.testing.assert_array_equal(bag.read(1, 3), [[2, 3], [4, 5]])
    assert isinstance(open_bag(tmp_path / "a.h5"), FeatureBag)


def test_coordinates_of_old_files_of_stamp(tmp_path: Path) -> None:
    """Version 1 has tiles 224 apart, which are 256 micrometres; version 2 has the attribute `unit`."""
    grid = np.array([[0, 0], [224, 0], [0, 448]])
    for coords, attributes, expected, unit in (
        (grid, {}, grid / 224 * 256, "um"),
        (grid, {"unit": "um", "tile_size": 224.0}, grid, "um"),
        (grid * 2, {}, grid * 2, ""),
    ):
        bag = stamp(tmp_path / "a.h5", coords, **attributes)
        assert bag.unit == unit
        np.testing.assert_allclose(bag.coords, expected)


def test_features_truncated_after_opening(tmp_path: Path) -> None:
    bag = features(tmp_path)
    (tmp_path / "slide.h5").write_bytes((tmp_path / "slide.h5").read_bytes()[:700])
    with pytest.raises(SourceError, match=r"slide\.h5: is not a readable HDF5 file"):
        bag.read(0, 9)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("bag.h5", "'features'"),
        ("feats.h5", "'feats'"),
        ("bag.npy", "the array"),
        ("bag.pt", "the tensor"),
    ],
)
def test_numbers_that_are_not_finite(name: str, what: str, value: float, tmp_path: Path) -> None:
    array, path = np.ones((5, 2), "float32"), tmp_path / name
    array[3, 1] = value
    if name.endswith(".h5"):
        write(path, **{what.strip("'"): array, "coords": np.ones((5, 2))})
    elif name.endswith(".npy"):
        np.save(path, array)
    else:
        torch_saved.features(path, array)
    bag = open_bag(path)
    assert (bag.read(0, 3) == 1).all() and (bag.take([4]) == 1).all()
    message = rf"{name}: {what} has NaN or infinity in instance 3; expected finite numbers"
    with pytest.raises(SourceError, match=message):
        bag.read(2, 5)


def test_picture_sizes(tmp_path: Path) -> None:
    Image.fromarray(tiles()[0]).save(tmp_path / "0.png")
    Image.fromarray(tiles((6, 6, 3))).save(tmp_path / "1.png")
    paths = [tmp_path / "0.png", tmp_path / "1.png"]
    assert PictureBag(paths, "bag", size=(7, 8)).read(0, 2).shape == (2, 7, 8, 3)
    with pytest.raises(SourceError, match=r"1.png: is 6 x 6; expected 5 x 4, as the first"):
        PictureBag(paths, "bag").read(0, 2)


MODES = ("1", "L", "LA", "P", "RGBA", "CMYK")


@pytest.mark.parametrize("place", [0, 1, None])
@pytest.mark.parametrize("mode", MODES)
def test_pictures_are_rgb(tmp_path: Path, mode: str, place: int | None) -> None:
    """A picture of another mode is first, last or alone."""
    other = Image.fromarray(tiles()[0]).convert(mode)
    paths = [tmp_path / "0.jpg", tmp_path / "1.jpg"] if mode == "CMYK" else []
    paths = paths or [tmp_path / "0.png", tmp_path / "1.png"]
    for number, path in enumerate(paths):
        picture = other if place in (number, None) else Image.fromarray(tiles()[1])
        picture.save(path)
    bag = PictureBag(paths, "bag")
    assert (bag.shape, bag.dtype) == ((2, 5, 4, 3), np.uint8)
    for path, pixels in zip(paths, bag.read(0, 2), strict=True):
        stored = Image.open(path)
        stored = stored.convert("L") if stored.mode == "LA" else stored
        np.testing.assert_array_equal(pixels, np.asarray(stored.convert("RGB")))


@pytest.mark.parametrize("place", [0, 1])
def test_pictures_of_16_bits_are_refused(tmp_path: Path, place: int) -> None:
    for number in range(2):
        array = tiles()[number] if number != place else tiles()[number, ..., 0].astype("u2")
        Image.fromarray(array).save(tmp_path / f"{number}.png")
    message = rf"{place}\.png: has 1 channel of uint16; expected 1 or 3 channels of 8 bits"
    with pytest.raises(SourceError, match=message):
        open_bag(tmp_path).read(0, 2)


def write(path: Path, **datasets: Any) -> Path:
    with h5py.File(path, "w") as file:
        for key, data in datasets.items():
            file[key] = data
    return path


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: open_bag(f / "none.npy"), "none.npy: there is no such file"),
        (lambda f: open_bag(f), "has no pictures"),
        (lambda f: open_bag(f / "bag.mat"), "has an unknown format"),
        (lambda f: open_bag(write(f / "a.h5", features=np.ones((3, 2)))), "a.h5: has no 'coords'"),
        (lambda f: open_bag(write(f / "a.h5", coords=np.ones((3, 2)))), "has no 'features'"),
        (
            lambda f: open_bag(write(f / "a.h5", features=np.ones((3, 2)), coords=np.ones((2, 2)))),
            "a.h5: has coordinates of shape",
        ),
        (
            lambda f: stamp(f / "a.h5", np.zeros((3, 2)), feat_type="slide"),
            "a.h5: has 'feats' of slides; expected numbers",
        ),
        (
            lambda f: open_bag(write(f / "a.h5", features=["x"], coords=np.ones((1, 2)))),
            "a.h5: has 'features' of object; expected numbers",
        ),
        (lambda f: open_bag(f / "torn.h5"), "torn.h5: is not a readable HDF5 file"),
        (lambda f: open_bag(f / "torn.npy"), "torn.npy: is not a readable .npy file"),
    ],
)
def test_invalid_files(make: Callable[..., Any], message: str, tmp_path: Path) -> None:
    if "torn" in message:
        (tmp_path / message.split(":")[0]).write_bytes(b"nothing of the kind")
    with pytest.raises(SourceError, match=message):
        make(tmp_path)


def test_other_types() -> None:
    with pytest.raises(TypeError, match="received a bag of type int"):
        open_bag(3)

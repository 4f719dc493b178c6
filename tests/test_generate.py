"""Bags of digits, of pictures and of drawn shapes: keys only where they belong, the same again from the same seed."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tfbig import SourceError
from tfbig.mil import generate
from tfbig.sources import ArrayBag


def pool(count: int = 200, kinds: int = 4) -> tuple[ArrayBag, np.ndarray]:
    """Instances that hold their number and their class."""
    classes = np.random.default_rng(1).integers(kinds, size=count)
    tiles = np.stack([np.arange(count), classes], axis=-1).astype(np.uint8)
    return ArrayBag(tiles), classes


def test_keys_are_in_positive_bags_alone_and_each_instance_once() -> None:
    instances, classes = pool()
    found = generate.compose(instances, classes, 2, 6, 30, 0.2)
    assert found.labels.tolist() == [1, 0, 1, 0, 1, 0]
    for bag, label in zip(found.bags, found.labels, strict=True):
        tiles = bag.read(0, 30)
        assert len(set(tiles[:, 0])) == 30
        np.testing.assert_array_equal(bag.labels, tiles[:, 1] == 2)
        assert bag.labels.sum() == (6 if label else 0)
    assert not all(bag.labels[:6].all() for bag in found.bags[::2])  # not the first ones
    again = generate.compose(instances, classes, 2, 6, 30, 0.2)
    for a, b in zip(found.bags, again.bags, strict=True):
        np.testing.assert_array_equal(a.read(0, 30), b.read(0, 30))
    other = generate.compose(instances, classes, 2, 6, 30, 0.2, seed=1)
    assert (found.bags[0].read(0, 30) != other.bags[0].read(0, 30)).any()


@pytest.mark.parametrize(("instances", "share"), [(300, 0.1), (30, 0.0), (30, 1.5), (160, 0.9)])
def test_a_pool_with_too_few_instances(instances: int, share: float) -> None:
    with pytest.raises(ValueError, match=r"of class 2 .* the pool has"):
        generate.compose(*pool(), 2, 2, instances, share)


def write_idx(path: Path, array: np.ndarray) -> None:
    code = {"u1": 0x08, "i4": 0x0C}[array.dtype.str[1:]]
    head = bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    data = head + array.astype(array.dtype.newbyteorder(">")).tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def test_digits_of_mnist_and_of_qmnist(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 28, 28), np.uint8)
    classes = np.array([3, 1, 9, 9, 0], np.uint8)
    write_idx(tmp_path / "train-images-idx3-ubyte.gz", images)
    write_idx(tmp_path / "train-labels-idx1-ubyte", classes)
    write_idx(tmp_path / "qmnist-test-images-idx3-ubyte", images[:2])
    table = np.zeros((2, 8), np.int32)
    table[:, 0] = 4, 9
    write_idx(tmp_path / "qmnist-test-labels-idx2-int.gz", table)
    bag, labels = generate.digits(tmp_path, "train")
    np.testing.assert_array_equal(bag.read(0, 5), images[..., None])
    assert labels.tolist() == [3, 1, 9, 9, 0]
    bag, labels = generate.digits(tmp_path, "test")
    assert (bag.shape, labels.tolist()) == ((2, 28, 28, 1), [4, 9])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "train-images-idx3-ubyte").unlink(), "has no train-images-idx3-ubyte"),
        (lambda f: (f / "train-labels-idx1-ubyte").unlink(), "but no train-labels-idx1-ubyte"),
        (lambda f: (f / "train-images-idx3-ubyte").write_bytes(b"PNG"), "is no IDX file"),
        (
            lambda f: (f / "train-images-idx3-ubyte").write_bytes(
                (f / "train-images-idx3-ubyte").read_bytes()[:-9]
            ),
            "has 3927 bytes; an IDX file of .5, 28, 28. has 3936",
        ),
        (
            lambda f: write_idx(f / "train-labels-idx1-ubyte", np.zeros(4, np.uint8)),
            r"has shape \(5, 28, 28\) for 4 labels",
        ),
    ],
)
def test_digits_that_are_missing_or_damaged(damage: Any, message: str, tmp_path: Path) -> None:
    write_idx(tmp_path / "train-images-idx3-ubyte", np.zeros((5, 28, 28), np.uint8))
    write_idx(tmp_path / "train-labels-idx1-ubyte", np.zeros(5, np.uint8))
    damage(tmp_path)
    with pytest.raises(SourceError, match=message):
        generate.digits(tmp_path, "train")


def test_a_torn_gzip_is_named(tmp_path: Path) -> None:
    write_idx(tmp_path / "train-images-idx3-ubyte.gz", np.zeros((5, 28, 28), np.uint8))
    whole = (tmp_path / "train-images-idx3-ubyte.gz").read_bytes()
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(whole[:-10])
    write_idx(tmp_path / "train-labels-idx1-ubyte", np.zeros(5, np.uint8))
    with pytest.raises(SourceError, match=r"train-images-idx3-ubyte\.gz: cannot be read"):
        generate.digits(tmp_path, "train")


def test_pictures_in_folders_of_classes(tmp_path: Path) -> None:
    for name, color in (("golf", 200), ("church", 30), ("empty", None)):
        (tmp_path / name).mkdir()
        for i in range(3 if color else 0):
            tile = np.full((20 + i, 30, 3), color, np.uint8)
            Image.fromarray(tile).save(tmp_path / name / f"{i}.png")
    bag, classes, names = generate.pictures(tmp_path, (8, 8))
    assert (bag.shape, names) == ((6, 8, 8, 3), ("church", "golf"))
    np.testing.assert_array_equal(bag.read(0, 6).mean((1, 2, 3)), np.where(classes, 200, 30))
    with pytest.raises(SourceError, match="has 0 folders with pictures"):
        generate.pictures(tmp_path / "golf", (8, 8))


def test_drawn_shapes_differ_by_class_and_not_by_colour() -> None:
    bag, classes = generate.shapes(400, 24)
    again, _ = generate.shapes(400, 24)
    tiles = bag.read(0, 400)
    np.testing.assert_array_equal(tiles, again.read(0, 400))
    assert bag.shape == (400, 24, 24, 3)
    assert set(classes) == set(range(len(generate.SHAPES)))
    dark = (tiles[..., 1] < 130).mean((1, 2))
    ink = [dark[classes == kind].mean() for kind in range(4)]
    assert all(0.01 < share < 0.3 for share in ink)


def test_instances_of_another_size() -> None:
    bag, classes = generate.shapes(100, 16)
    made = generate.compose(bag, classes, 3, 2, 10, 0.3, size=(32, 32)).bags[0]
    assert (made.shape, made.labels.sum()) == ((10, 32, 32, 3), 3)

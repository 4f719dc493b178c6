"""Digits read from IDX files, and rendered digits."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfbig import SourceError
from tfbig.recipes.digits import drawn_digits, read_digits


def write_idx(path: Path, array: np.ndarray) -> None:
    code = {"u1": 0x08, "i4": 0x0C}[array.dtype.str[1:]]
    head = bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    data = head + array.astype(array.dtype.newbyteorder(">")).tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def test_read_mnist_and_qmnist(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 28, 28), np.uint8)
    classes = np.array([3, 1, 9, 9, 0], np.uint8)
    write_idx(tmp_path / "train-images-idx3-ubyte.gz", images)
    write_idx(tmp_path / "train-labels-idx1-ubyte", classes)
    write_idx(tmp_path / "qmnist-test-images-idx3-ubyte", images[:2])
    table = np.zeros((2, 8), np.int32)
    table[:, 0] = 4, 9
    write_idx(tmp_path / "qmnist-test-labels-idx2-int.gz", table)
    bag, labels = read_digits(tmp_path, "train")
    np.testing.assert_array_equal(bag.read(0, 5), images[..., None])
    assert labels.tolist() == [3, 1, 9, 9, 0]
    bag, labels = read_digits(tmp_path, "test")
    assert (bag.shape, labels.tolist()) == ((2, 28, 28, 1), [4, 9])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "train-images-idx3-ubyte").unlink(), "has no train-images-idx3-ubyte"),
        (lambda f: (f / "train-labels-idx1-ubyte").unlink(), "but no train-labels-idx1-ubyte"),
        (lambda f: (f / "train-images-idx3-ubyte").write_bytes(b"PNG"), "is not an IDX file"),
        (
            lambda f: (f / "train-images-idx3-ubyte").write_bytes(
                (f / "train-images-idx3-ubyte").read_bytes()[:-9]
            ),
            "has 3927 bytes; expected 3936 for the shape .5, 28, 28.",
        ),
        (
            lambda f: write_idx(f / "train-labels-idx1-ubyte", np.zeros(4, np.uint8)),
            r"has shape \(5, 28, 28\) for 4 labels",
        ),
    ],
)
def test_missing_or_damaged_files(damage: Any, message: str, tmp_path: Path) -> None:
    write_idx(tmp_path / "train-images-idx3-ubyte", np.zeros((5, 28, 28), np.uint8))
    write_idx(tmp_path / "train-labels-idx1-ubyte", np.zeros(5, np.uint8))
    damage(tmp_path)
    with pytest.raises(SourceError, match=message):
        read_digits(tmp_path, "train")


def test_truncated_gzip(tmp_path: Path) -> None:
    write_idx(tmp_path / "train-images-idx3-ubyte.gz", np.zeros((5, 28, 28), np.uint8))
    whole = (tmp_path / "train-images-idx3-ubyte.gz").read_bytes()
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(whole[:-10])
    write_idx(tmp_path / "train-labels-idx1-ubyte", np.zeros(5, np.uint8))
    with pytest.raises(SourceError, match=r"train-images-idx3-ubyte\.gz: cannot be read"):
        read_digits(tmp_path, "train")


def test_drawn_digits_are_reproducible_and_recognisable() -> None:
    """The nearest class mean of 300 other digits is right for more than half of them; chance is a tenth."""
    bag, classes = drawn_digits(300)
    tiles = bag.read(0, 300).astype(float)
    np.testing.assert_array_equal(drawn_digits(300)[0].read(0, 300), tiles)
    assert bag.shape == (300, 28, 28, 1)
    assert set(classes) == set(range(10))
    assert ((tiles > 128).mean((1, 2, 3)) > 0.02).all()
    assert tiles[:, [0, -1]].mean() < 1  # a black margin
    means = np.stack([tiles[classes == k].mean(0) for k in range(10)])
    other, labels = drawn_digits(100, seed=1)
    distances = ((other.read(0, 100)[:, None].astype(float) - means) ** 2).sum((2, 3, 4))
    assert (distances.argmin(1) == labels).mean() > 0.5

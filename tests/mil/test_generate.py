"""Bags of a pool, of pictures and of drawn shapes; equal seeds give equal bags."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tfbig import SourceError
from tfbig.mil import generate
from tfbig.sources import ArrayBag


def pool(count: int = 200, kinds: int = 4) -> tuple[ArrayBag, np.ndarray]:
    """Return instances that hold their number and their class, and the classes."""
    classes = np.random.default_rng(1).integers(kinds, size=count)
    tiles = np.stack([np.arange(count), classes], axis=-1).astype(np.uint8)
    return ArrayBag(tiles), classes


def test_compose() -> None:
    """Keys are in positive bags only, and no instance is twice in a bag."""
    instances, classes = pool()
    bag_set = generate.compose(instances, classes, 2, 6, 30, 0.2)
    assert bag_set.labels.tolist() == [1, 0, 1, 0, 1, 0]
    for bag, label in zip(bag_set.bags, bag_set.labels, strict=True):
        tiles = bag.read(0, 30)
        assert len(set(tiles[:, 0])) == 30
        np.testing.assert_array_equal(bag.labels, tiles[:, 1] == 2)
        assert bag.labels.sum() == (6 if label else 0)
    assert not all(bag.labels[:6].all() for bag in bag_set.bags[::2])  # not the first ones
    again = generate.compose(instances, classes, 2, 6, 30, 0.2)
    for a, b in zip(bag_set.bags, again.bags, strict=True):
        np.testing.assert_array_equal(a.read(0, 30), b.read(0, 30))
    other = generate.compose(instances, classes, 2, 6, 30, 0.2, seed=1)
    assert (bag_set.bags[0].read(0, 30) != other.bags[0].read(0, 30)).any()


@pytest.mark.parametrize(("instances", "share"), [(300, 0.1), (30, 0.0), (30, 1.5), (160, 0.9)])
def test_too_few_instances(instances: int, share: float) -> None:
    with pytest.raises(ValueError, match=r"the pool has .* instances of class 2"):
        generate.compose(*pool(), 2, 2, instances, share)


def test_pictures(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("first", ["L", "RGB", "I;16"])
def test_pictures_of_other_modes(tmp_path: Path, first: str) -> None:
    """The first picture is no pattern for the others, and one of 16 bits is named before bags are made."""
    modes = {"a": first, "b": "CMYK", "c": "I;16" if first == "I;16" else "LA"}
    for name, mode in modes.items():
        (tmp_path / name).mkdir()
        suffix = "jpg" if mode == "CMYK" else "png"
        Image.new(mode, (9, 8)).save(tmp_path / name / f"0.{suffix}")
    if first == "I;16":
        with pytest.raises(SourceError, match=r"a/0\.png: has 1 channel of uint16; expected"):
            generate.pictures(tmp_path, (8, 8))
        return
    assert generate.pictures(tmp_path, (8, 8))[0].read(0, 3).shape == (3, 8, 8, 3)


def test_shapes() -> None:
    """All classes have ink, and a seed draws the same tiles again."""
    bag, classes = generate.shapes(400, 24)
    again, _ = generate.shapes(400, 24)
    tiles = bag.read(0, 400)
    np.testing.assert_array_equal(tiles, again.read(0, 400))
    assert bag.shape == (400, 24, 24, 3)
    assert set(classes) == set(range(len(generate.SHAPES)))
    dark = (tiles[..., 1] < 130).mean((1, 2))
    ink = [dark[classes == kind].mean() for kind in range(4)]
    assert all(0.01 < share < 0.3 for share in ink)


def test_resized_instances() -> None:
    bag, classes = generate.shapes(100, 16)
    resized = generate.compose(bag, classes, 3, 2, 10, 0.3, size=(32, 32)).bags[0]
    assert (resized.shape, resized.labels.sum()) == ((10, 32, 32, 3), 3)


def test_instances_are_resized_bilinearly() -> None:
    """From 28 to 84 pixels, as QMNIST-bags: the mean of four pixels, weighted by distances of centres, rounded."""
    tiles = np.random.default_rng(3).integers(0, 256, (5, 28, 28, 1), np.uint8)
    bag = generate.compose(ArrayBag(tiles), np.arange(5) % 5, 4, 1, 1, 0.3, size=(84, 84)).bags[0]
    places = np.clip((np.arange(84) + 0.5) / 3 - 0.5, 0, 27)
    low = np.minimum(places.astype(int), 26)
    rest = places - low
    tile = tiles[4, ..., 0].astype(float)
    rows = tile[low] * (1 - rest)[:, None] + tile[low + 1] * rest[:, None]
    expected = rows[:, low] * (1 - rest) + rows[:, low + 1] * rest
    np.testing.assert_allclose(bag.read(0, 1)[0, ..., 0], expected, rtol=0, atol=1.01)

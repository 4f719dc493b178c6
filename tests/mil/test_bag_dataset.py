"""Bags that cannot be opened, tiles of background, samples and orders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mil_models import LABELS, SIDE, bags

import tfbig
from tfbig import SourceError, mil
from tfbig.sources import ArrayBag


def test_unusable_bags(tmp_path: Path) -> None:
    np.save(tmp_path / "good.npy", bags()[0].read(0, 7))
    np.save(tmp_path / "empty.npy", np.ones((0, SIDE, SIDE, 3), np.uint8))
    np.save(tmp_path / "wide.npy", np.ones((3, SIDE, SIDE + 1, 3), np.uint8))
    paths = [str(tmp_path / f"{n}.npy") for n in ("good", "empty", "none", "good", "wide")]
    result = mil.read_bags(paths, [1, 0, 0, 2, 0], classes=2)
    assert [bag.name for bag in result.bags] == paths[:1]
    assert result.labels.tolist() == [1]
    reasons = dict(result.failed)
    assert "empty bag" in reasons[paths[1]]
    assert "no such file" in reasons[paths[2]]
    assert "has instances of shape (9, 10, 3) uint8; expected (9, 9, 3) uint8" in reasons[paths[4]]
    assert "has label 2; expected an integer from 0 to 1 (2 classes)" in reasons[paths[3]]
    with pytest.raises(SourceError, match=r"none of 2 bags can be used\. The first: .*empty"):
        mil.read_bags(paths[1:3], [0, 0], classes=2)
    with pytest.raises(ValueError, match="3 labels for 1 bag"):
        mil.read_bags(paths[:1], [0, 1, 1], classes=2)


def test_foreground() -> None:
    """Shares of pixels between grey levels 3 and 230, both excluded: 1, 0.5, 0 (white), 0 (black), 0.75."""
    tiles = np.full((5, 2, 2, 3), 100, np.uint8)
    tiles[1, 0], tiles[2], tiles[3], tiles[4, 0, 0] = 231, 230, 3, 255
    bag = ArrayBag(tiles, coords=np.arange(10).reshape(5, 2))
    for share, kept in ((0.6, [0, 4]), (0.5, [0, 1, 4]), (1.0, [0]), (0.0, [0, 1, 2, 3, 4])):
        tiles_left = mil.foreground(bag, share)
        np.testing.assert_array_equal(tiles_left.read(0, tiles_left.shape[0]), tiles[kept])
        np.testing.assert_array_equal(tiles_left.coords[:, 0], 2 * np.array(kept))
    with pytest.raises(SourceError, match=r"none of 1 tiles has a share of 0\.6"):
        mil.foreground(ArrayBag(tiles[2:3]), 0.6)
    with pytest.raises(SourceError, match="expected tiles"):
        mil.foreground(ArrayBag(np.ones((3, 7))), 0.6)


@pytest.mark.parametrize("sample", [0, -1, 1.5, float("nan")])
def test_invalid_sample(sample: float) -> None:
    with pytest.raises(ValueError, match=f"sample={sample}: expected a number of instances"):
        mil.dataset(bags(), LABELS, sample=sample)


def test_samples_and_orders() -> None:
    """Samples and orders are new in every epoch, and the same again with the same seed."""

    def epochs() -> list[Any]:
        data = mil.dataset(opened, LABELS, sample=0.5, shuffle=True, seed=1)
        return [[(str(x.numpy()[0]), int(y[0])) for x, y in data] for _ in range(3)]

    opened = bags()
    first, second = epochs(), epochs()
    assert first == second
    assert len({tuple(epoch) for epoch in first}) == 3
    label = dict(zip((bag.handle.encode() for bag in opened), LABELS, strict=True))
    for epoch in first:
        assert sorted(y for _, y in epoch) == sorted(LABELS)
        for handle, y in epoch:
            name, _, query = handle[2:-1].partition("?")
            assert label[name.encode()] == y
            size = tfbig.sources.resolve(name).shape[0]
            assert f"count={round(size / 2)}&" in query


def test_augmentation_of_a_bag_or_of_each_instance() -> None:
    """Equal tiles stay equal within a bag, or differ; both change in every epoch."""
    tile = np.random.default_rng(0).integers(0, 256, (1, SIDE, SIDE, 3), np.uint8)
    for options, num_tiles in (({"augment": True}, 1), ({"augment_each": True}, 3)):
        data = mil.dataset([np.repeat(tile, 3, 0)], [1], dense=True, **options)
        epochs = [x.numpy()[0] for _ in range(2) for x, _ in data]
        assert [len({each.tobytes() for each in epoch}) for epoch in epochs] == [num_tiles] * 2
        assert (epochs[0] != epochs[1]).any()


def test_arrays_and_paths_are_bags(tmp_path: Path) -> None:
    arrays = [np.full((n, 4, 4, 3), n, np.uint8) for n in (2, 5)]
    np.save(tmp_path / "a.npy", arrays[1])
    read = list(mil.dataset([arrays[0], tmp_path / "a.npy"], [0, 1], dense=True))
    for (x, y), array, label in zip(read, arrays, (0, 1), strict=True):
        np.testing.assert_array_equal(x[0], array)
        assert int(y[0]) == label
    handles = [handle for handle, _ in mil.dataset(arrays, [0, 1])]  # nobody else keeps the bags
    assert len(handles) == 2
    with pytest.raises(SourceError):
        mil.dataset([np.zeros((2, 4, 4, 3), "uint8"), np.zeros((2, 5, 4, 3), "uint8")], [0, 1])

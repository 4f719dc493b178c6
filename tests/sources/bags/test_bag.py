"""Bags read slice by slice: from memory, files, pictures; samples of them; a model that takes their handles."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same
from keras import layers
from PIL import Image

import tfbig
from tfbig import SourceError, sources
from tfbig.sources import (
    ArrayBag,
    Augmentation,
    Augmented,
    FeatureBag,
    Filled,
    NpyBag,
    PictureBag,
    Resized,
    Subset,
    open_bag,
    resolve,
)

SHAPE = (9, 5, 4, 3)


def tiles(shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def in_memory(folder: Path) -> tfbig.sources.Bag:
    return ArrayBag(tiles())


def in_file(folder: Path) -> tfbig.sources.Bag:
    np.save(folder / "bag.npy", tiles())
    return NpyBag(folder / "bag.npy")


def mapped_rows(folder: Path) -> tfbig.sources.Bag:
    """A part of a larger file."""
    np.save(folder / "bag.npy", np.concatenate([tiles()[:2], tiles()]))
    return open_bag(np.load(folder / "bag.npy", mmap_mode="r")[2:])


def pictures(folder: Path) -> tfbig.sources.Bag:
    for i, tile in enumerate(tiles()):
        Image.fromarray(tile).save(folder / f"{i}.png")
    return open_bag(folder)


def features(folder: Path) -> tfbig.sources.Bag:
    with h5py.File(folder / "slide.h5", "w") as file:
        file["features"] = tiles()
        file["coords"] = np.arange(18).reshape(9, 2)
    return open_bag(folder / "slide.h5")


def part(folder: Path) -> tfbig.sources.Bag:
    twice = np.repeat(tiles(), 2, axis=0)
    return Subset(ArrayBag(twice), np.arange(1, 18, 2))


BAGS = [in_memory, in_file, mapped_rows, pictures, features, part]
every = pytest.mark.parametrize("make", BAGS)


@every
def test_slices_and_single_instances(make: Callable[..., Any], tmp_path: Path) -> None:
    bag = make(tmp_path)
    assert (bag.shape, bag.dtype) == (SHAPE, np.uint8)
    for start, stop in ((0, 9), (0, 1), (3, 7), (8, 9), (4, 4)):
        np.testing.assert_array_equal(bag.read(start, stop), tiles()[start:stop])
    for places in ([0], [8, 0, 3, 4, 5, 5], []):
        np.testing.assert_array_equal(bag.take(places), tiles()[places].reshape(-1, *SHAPE[1:]))
    with pytest.raises(IndexError, match="instances 3:10 were asked for, the bag has instances"):
        bag.read(3, 10)
    with pytest.raises(IndexError, match="instances 9 to 9 were asked for"):
        bag.take([9])


@every
def test_a_sample_has_its_instances_once_and_in_order(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    bag = make(tmp_path)
    drawn = bag.sample(4, seed=7).read(0, 4)
    places = [next(i for i in range(9) if (tiles()[i] == tile).all()) for tile in drawn]
    assert places == sorted(set(places))
    again = resolve(bag.drawn_handle(4, 7))
    np.testing.assert_array_equal(again.read(1, 3), drawn[1:3])
    assert bag.sample(9, seed=7) is bag
    bag.release()


@pytest.mark.skipif(sys.platform != "linux", reason="open files are counted in /proc")
@every
def test_files_are_open_only_while_they_are_read(make: Callable[..., Any], tmp_path: Path) -> None:
    """Thousands of bags, and a process may have 1024 files."""
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    bag = make(tmp_path)
    bag.read(0, 2)
    bag.take([4, 1])
    assert len(os.listdir("/proc/self/fd")) == before


def test_every_instance_is_drawn_as_often() -> None:
    bag = ArrayBag(np.arange(10)[:, None])
    found = [bag.sample(3, seed).read(0, 3) for seed in range(2000)]
    counts = np.bincount(np.ravel(found), minlength=10)
    assert abs(counts - 600).max() < 5 * (2000 * 0.3 * 0.7) ** 0.5


def test_a_sample_keeps_coordinates_and_labels() -> None:
    bag = ArrayBag(tiles(), coords=np.arange(18).reshape(9, 2), labels=np.arange(9))
    drawn = bag.sample(4, seed=1)
    np.testing.assert_array_equal(drawn.read(0, 4), tiles()[drawn.labels])
    np.testing.assert_array_equal(drawn.coords[:, 0], 2 * drawn.labels)


def test_features_of_clam_with_an_axis_in_front(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["features"] = np.arange(21, dtype="float32").reshape(1, 3, 7)
        file["coords"] = np.zeros((3, 2))
    bag = FeatureBag(tmp_path / "a.h5")
    np.testing.assert_array_equal(bag.read(1, 3), np.arange(7, 21).reshape(2, 7))


def test_features_that_are_torn_later(tmp_path: Path) -> None:
    bag = features(tmp_path)
    (tmp_path / "slide.h5").write_bytes((tmp_path / "slide.h5").read_bytes()[:700])
    with pytest.raises(SourceError, match=r"slide\.h5: is not a readable HDF5 file"):
        bag.read(0, 9)


def test_tiles_at_another_size() -> None:
    """A linear ramp stays linear inside; the size of now changes nothing."""
    ramp = np.broadcast_to(np.arange(0, 80, 10, dtype=np.uint8)[:, None], (2, 8, 4))[..., None]
    found = Resized(ArrayBag(ramp), (16, 8)).read(0, 2)
    assert found.shape == (2, 16, 8, 1)
    np.testing.assert_array_equal(found[0, 1:-1, 0, 0], np.arange(3, 70, 5))
    np.testing.assert_array_equal(Resized(ArrayBag(ramp), (8, 4)).take([1]), ramp[1:])


def test_a_bag_is_filled_up_with_white() -> None:
    bag = Filled(ArrayBag(tiles(), labels=np.ones(9)), 12)
    assert bag.shape == (12, *SHAPE[1:])
    np.testing.assert_array_equal(bag.labels, [1] * 9 + [0] * 3)
    for start, stop in ((0, 12), (8, 10), (9, 12), (0, 3)):
        whole = np.concatenate([tiles(), np.full((3, *SHAPE[1:]), 255)])
        np.testing.assert_array_equal(bag.read(start, stop), whole[start:stop])
    with pytest.raises(SourceError, match="has 9 instances, and cannot be filled up to 8"):
        Filled(ArrayBag(tiles()), 8)


def test_pictures_of_one_size_or_made_so(tmp_path: Path) -> None:
    Image.fromarray(tiles()[0]).save(tmp_path / "0.png")
    Image.fromarray(tiles((6, 6, 3))).save(tmp_path / "1.png")
    paths = [tmp_path / "0.png", tmp_path / "1.png"]
    assert PictureBag(paths, "bag", size=(7, 8)).read(0, 2).shape == (2, 7, 8, 3)
    with pytest.raises(SourceError, match=r"1.png: is \(6, 6, 3\) uint8, the first .* \(5, 4, 3\)"):
        PictureBag(paths, "bag").read(0, 2)


def write(path: Path, **datasets: Any) -> Path:
    with h5py.File(path, "w") as file:
        for key, data in datasets.items():
            file[key] = data
    return path


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: ArrayBag(np.ones((0, 4, 4, 3))), "array: is an empty bag"),
        (lambda f: ArrayBag(np.ones((3, 0))), "its instances are empty"),
        (lambda f: ArrayBag(np.ones(3)), r"has shape \(3,\); expected a bag \[n, ...\]"),
        (lambda f: ArrayBag(tiles(), coords=np.ones((8, 2))), "coordinates of shape .* 9 instan"),
        (lambda f: ArrayBag(tiles(), labels=np.ones(8)), "labels of shape"),
        (lambda f: open_bag(f / "none.npy"), "none.npy: there is no such file"),
        (lambda f: open_bag(f), "holds no pictures"),
        (lambda f: open_bag(f / "bag.pt"), "is no bag that is known"),
        (lambda f: open_bag(write(f / "a.h5", features=np.ones((3, 2)))), "a.h5: has no 'coords'"),
        (lambda f: open_bag(write(f / "a.h5", coords=np.ones((3, 2)))), "has no 'features'"),
        (
            lambda f: open_bag(write(f / "a.h5", features=np.ones((3, 2)), coords=np.ones((2, 2)))),
            "a.h5: has coordinates of shape",
        ),
        (lambda f: open_bag(f / "torn.h5"), "torn.h5: is not a readable HDF5 file"),
        (lambda f: open_bag(f / "torn.npy"), "torn.npy: is not a readable .npy file"),
    ],
)
def test_what_is_no_bag_is_named(make: Callable[..., Any], message: str, tmp_path: Path) -> None:
    if "torn" in message:
        (tmp_path / message.split(":")[0]).write_bytes(b"nothing of the kind")
    with pytest.raises(SourceError, match=message):
        make(tmp_path)


def test_neither_path_nor_array() -> None:
    with pytest.raises(TypeError, match="a bag was given as int"):
        open_bag(3)
    with pytest.raises(ValueError, match="count=0 instances"):
        ArrayBag(tiles()).sample(0, 1)


# ------------------------------------------------------------------------------ augmentation


def test_nothing_changes_by_default() -> None:
    np.testing.assert_array_equal(Augmentation()(tiles()[0]), tiles()[0])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"flip_rows": True}, lambda x: x[::-1]),
        ({"flip_columns": True}, lambda x: x[:, ::-1]),
        ({"quarter_turns": -1}, lambda x: np.rot90(x, -1)),
        ({"brightness": 0.5}, lambda x: x / 2),
        ({"saturation": 0.0}, lambda x: np.repeat((x @ [0.299, 0.587, 0.114])[..., None], 3, -1)),
        ({"contrast": 0.0}, lambda x: np.full_like(x, (x @ [0.299, 0.587, 0.114]).mean())),
        ({"hue": 1 / 3}, lambda x: x[..., [2, 0, 1]]),
    ],
)
def test_each_change_is_what_it_is_called(change: Any, expected: Callable[..., Any]) -> None:
    tile = tiles()[0]
    found = Augmentation(**change)(tile)
    assert abs(found - expected(tile.astype(float))).max() <= 0.51  # rounded


def test_blur_keeps_the_mean_and_smooths() -> None:
    tile = tiles((20, 20, 3))
    found = Augmentation(sigma=1.0)(tile).astype(float)
    assert abs(found.mean() - tile.mean()) < 3
    assert found.std() < 0.6 * tile.std()


def test_all_tiles_of_a_bag_are_changed_alike_and_anew_in_every_epoch() -> None:
    same = np.repeat(tiles((1, 6, 6, 3)), 4, axis=0)
    bag = ArrayBag(same)
    first, again, other = (
        resolve(bag.drawn_handle(4, seed, augmented=True)).read(0, 4) for seed in (1, 1, 2)
    )
    assert (first == first[:1]).all()
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert (first != same).any()
    taken = resolve(bag.drawn_handle(4, 1, augmented=True)).take([2])
    np.testing.assert_array_equal(taken[0], first[0])
    bag.release()


def test_features_cannot_be_augmented() -> None:
    with pytest.raises(SourceError, match="augmentation takes square tiles"):
        Augmented(ArrayBag(np.ones((3, 7))), Augmentation())


# ------------------------------------------------------------------------- models by handle


def bag_model() -> keras.Model:
    tile = keras.Input((None, None, 3))
    x = layers.BatchNormalization()(layers.Conv2D(4, 3)(layers.Rescaling(1 / 255)(tile)))
    encoder = keras.Model(tile, layers.GlobalAveragePooling2D()(x))
    bag = keras.Input((None, *SHAPE[1:]))
    pooled = layers.GlobalMaxPooling1D()(tfbig.layers.Instances(encoder)(bag))
    return keras.Model(bag, layers.Dense(2)(pooled))


@every
def test_a_model_takes_bags_by_handle(
    make: Callable[..., Any], tmp_path: Path, float64: None
) -> None:
    model, bag = bag_model(), make(tmp_path)
    big = tfbig.stream(model, strip_rows=2)
    handles = tf.constant([bag.handle, bag.handle])
    assert_same(big(handles), model(np.stack([tiles()] * 2).astype(float)), FLOAT64)
    sampled = bag.sample(4, seed=2)
    expected = model(sampled.read(0, 4)[None].astype(float))
    assert_same(big(tf.constant([bag.drawn_handle(4, 2)])), expected, FLOAT64)
    bag.release()


def test_a_model_learns_from_handles(tmp_path: Path, float64: None) -> None:
    models = [bag_model() for _ in range(2)]
    models[1].set_weights(models[0].get_weights())
    big = tfbig.stream(models[0], tfbig.Budget(device="100kB", host="1GB"))
    bags = [ArrayBag(tiles((n, *SHAPE[1:]))) for n in (4, 9, 6, 9)]
    y = np.array([0, 1, 1, 0])
    for model in (big, models[1]):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss)
    data = tf.data.Dataset.from_tensor_slices(([b.handle for b in bags], y)).batch(1)
    big.fit(data, epochs=2, shuffle=False, verbose=0)
    for _ in range(2):
        for bag, label in zip(bags, y, strict=True):
            models[1].train_on_batch(bag.read(0, bag.shape[0])[None].astype(float), label[None])
    assert_same(models[0].get_weights(), models[1].get_weights(), FLOAT64)
    for bag in bags:
        bag.release()


@pytest.mark.parametrize(
    ("made", "error", "message"),
    [
        (
            lambda: [tfbig.open(np.ones((9, 5, 3), np.uint8))],
            SourceError,
            r"is \(9, 5, 3\), expected \(None, 5, 4, 3\)",
        ),
        (lambda: [ArrayBag(tiles((3, 6, 4, 3)))], SourceError, r"bag array is \(3, 6, 4, 3\)"),
        (lambda: [ArrayBag(tiles(SHAPE).astype("float32"))], SourceError, "samples are float32"),
        (
            lambda: [ArrayBag(tiles()), ArrayBag(tiles((4, 5, 4, 3)))],
            ValueError,
            "the bags of a batch have different shapes",
        ),
    ],
)
def test_a_bag_that_does_not_suit_the_model(
    made: Callable[..., Any], error: type, message: str
) -> None:
    sources = made()
    with pytest.raises(error, match=message):
        tfbig.stream(bag_model(), strip_rows=2)(tf.constant([s.handle for s in sources]))
    for source in sources:
        source.release()


@pytest.mark.parametrize("shape", [(70, 70, 3), (70, 70, 1), (61, 83, 3)])
@pytest.mark.parametrize("seed", range(6))
def test_an_image_is_changed_alike_in_all_its_windows(shape, seed):
    """Any window is that of the whole image changed, blur and turn included."""
    rng = np.random.default_rng(seed)
    image = sources.ArraySource(rng.integers(0, 256, shape, np.uint8))
    changed = sources.AugmentedImage(image, Augmentation.draw(seed))
    assert changed.change.quarter_turns == 0 or shape[0] == shape[1]
    whole = changed.change(image.read(0, shape[0]), changed.mean)
    assert changed.shape == whole.shape == shape
    np.testing.assert_array_equal(changed.read(0, shape[0]), whole)
    for _ in range(20):
        (top, below), (left, right) = (np.sort(rng.choice(n + 1, 2, False)) for n in shape[:2])
        window = changed.read_window((int(top), int(below)), (int(left), int(right)))
        np.testing.assert_array_equal(window, whole[top:below, left:right])


def test_contrast_of_an_image_keeps_its_mean_luma():
    image = sources.ArraySource(np.full((900, 40, 3), 100, np.uint8))
    changed = sources.AugmentedImage(image, Augmentation(brightness=1.2, contrast=0.5))
    assert changed.mean == pytest.approx(120 / 255)
    assert (changed.read(0, 900) == 120).all()


def test_a_changed_image_has_a_handle_that_nothing_keeps():
    image = sources.ArraySource(np.random.default_rng(0).integers(0, 256, (30, 30, 3), np.uint8))
    with image.lent():
        found = sources.resolve(image.changed_handle(7))
        expected = sources.AugmentedImage(image, Augmentation.draw(7))
        np.testing.assert_array_equal(found.read(0, 30), expected.read(0, 30))
        assert (found.read(0, 30) != image.read(0, 30)).any()


def test_images_that_cannot_be_changed_are_refused():
    with pytest.raises(SourceError, match=r"augmentation takes images \[H, W, 1 or 3\] of uint8"):
        sources.AugmentedImage(sources.ArraySource(np.ones((4, 4, 2), np.uint8)), Augmentation())

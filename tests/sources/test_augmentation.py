"""Augmentation: every parameter, and equal parameters for a whole bag or image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from bag_samples import tiles
from hypothesis import given, settings
from hypothesis import strategies as st
from masked_images import Recording, check_background
from scipy import ndimage
from skimage import color
from slide_files import noise

from tfbig import SourceError, sources
from tfbig.geometry import cells
from tfbig.geometry.background import Background
from tfbig.sources import ArrayBag, Augmentation, Augmented, AugmentedEach, Masked, resolve


def test_default_changes_nothing() -> None:
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
def test_parameters(change: Any, expected: Callable[..., Any]) -> None:
    tile = tiles()[0]
    actual = Augmentation(**change)(tile)
    assert abs(actual - expected(tile.astype(float))).max() <= 0.51  # rounded


def test_blur() -> None:
    tile = tiles((20, 20, 3))
    actual = Augmentation(sigma=1.0)(tile).astype(float)
    assert abs(actual.mean() - tile.mean()) < 3
    assert actual.std() < 0.6 * tile.std()


def test_stains_are_those_of_scikit_image() -> None:
    """Hematoxylin, eosin and DAB are scaled and shifted as `rgb2hed` separates them, where none is negative."""
    rng = np.random.default_rng(0)
    stains = rng.uniform(0.05, 0.3, (20, 20, 3)) / -np.log(1e-6)
    tile = np.round(color.hed2rgb(stains * 3) * 255).astype("uint8")
    separated = color.rgb2hed(tile)
    scale, shift = (1.05, 0.95, 1.02), (0.02, -0.01, 0.03)
    changed = separated * scale + np.array(shift) / -np.log(1e-6)
    is_inside = (separated > 0).all(-1)
    assert is_inside.mean() > 0.5
    actual = Augmentation(stain_scale=scale, stain_shift=shift)(tile).astype(float)
    expected = np.clip(color.hed2rgb(changed) * 255, 0, 255)
    assert abs(actual - expected)[is_inside].max() <= 0.51  # rounded


def test_jitter_of_stains() -> None:
    """All tiles of a bag have the same stains, which depend on the seed; grey tiles have none."""
    same = np.repeat(tiles((1, 6, 6, 3)), 4, axis=0)
    bag = ArrayBag(same)
    first, again, other, strong = (
        resolve(bag.drawn_handle(4, seed, jitter=sigma)).read(0, 4)
        for seed, sigma in ((1, 0.05), (1, 0.05), (2, 0.05), (1, 0.2))
    )
    assert (first == first[:1]).all()
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert abs(first.astype(int) - same).mean() < abs(strong.astype(int) - same).mean()
    assert 0 < abs(first.astype(int) - same).mean() < 15
    grey = ArrayBag(tiles((2, 6, 6, 1)))
    unchanged = resolve(grey.drawn_handle(2, 1, jitter=0.05)).read(0, 2)
    np.testing.assert_array_equal(unchanged, grey.read(0, 2))
    each = resolve(bag.drawn_handle(4, 1, each=True, jitter=0.05)).read(0, 4)
    assert (each[0] != each[1]).any()
    drawn = Augmentation.draw(3)
    assert drawn.with_jitter(0, 3) == drawn
    jittered = drawn.with_jitter(0.05, 3)
    assert (jittered.sigma, jittered.hue) == (drawn.sigma, drawn.hue)
    assert all(0.95 <= factor <= 1.05 for factor in jittered.stain_scale)


def test_jitter_of_an_image() -> None:
    """Windows have the stains of the whole image, before contrast, whose mean luma is theirs."""
    image = sources.open(tiles((1, 40, 40, 3))[0])
    change = Augmentation(contrast=1.2).with_jitter(0.2, 5)
    view = sources.AugmentedImage(image, change)
    whole = change(image.read(0, 40), view.mean)
    np.testing.assert_array_equal(view.read(0, 40), whole)
    np.testing.assert_array_equal(view.read_window((3, 20), (5, 9)), whole[3:20, 5:9])
    assert view.mean == pytest.approx(
        replace(change, contrast=0.0)(image.read(0, 40)).mean() / 255, abs=0.02
    )
    handle = image.changed_handle(5, False, 0.2)
    expected = Augmentation().with_jitter(0.2, 5)(image.read(0, 40))
    np.testing.assert_array_equal(resolve(handle).read(0, 40), expected)


def test_bag_has_one_augmentation_per_seed() -> None:
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


def test_each_tile_has_its_own_augmentation() -> None:
    """It depends on the seed and on the place of the tile, not on what is read with it."""
    same = np.repeat(tiles((1, 6, 6, 3)), 4, axis=0)
    bag = ArrayBag(same)
    first, again, other = (
        resolve(bag.drawn_handle(4, seed, each=True)).read(0, 4) for seed in (1, 1, 2)
    )
    assert len({tile.tobytes() for tile in first}) == 4
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    changed = AugmentedEach(bag, 1)
    np.testing.assert_array_equal(changed.read(2, 4), first[2:])
    np.testing.assert_array_equal(changed.take([3, 1]), first[[3, 1]])
    np.testing.assert_array_equal(first[3], Augmentation.draw((1, 3))(same[3]))
    bag.release()


def test_features() -> None:
    for augment in (lambda bag: Augmented(bag, Augmentation()), lambda bag: AugmentedEach(bag, 1)):
        for shape in ((3, 7), (3, 6, 6, 2)):
            with pytest.raises(SourceError, match="augmentation expects square tiles"):
                augment(ArrayBag(np.ones(shape, np.uint8)))
    with pytest.raises(SourceError, match="augmentation expects square tiles"):
        AugmentedEach(ArrayBag(np.ones((3, 6, 7, 3), np.uint8)), 1)


@pytest.mark.parametrize("shape", [(70, 70, 3), (70, 70, 1), (61, 83, 3)])
@pytest.mark.parametrize("seed", range(6))
def test_windows_equal_whole_image(shape: tuple[int, ...], seed: int) -> None:
    """Windows equal those of the whole augmented image, including blur and rotation."""
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


def test_contrast_keeps_mean_luma() -> None:
    image = sources.ArraySource(np.full((900, 40, 3), 100, np.uint8))
    changed = sources.AugmentedImage(image, Augmentation(brightness=1.2, contrast=0.5))
    assert changed.mean == pytest.approx(120 / 255)
    assert (changed.read(0, 900) == 120).all()


def test_handle_of_augmented_image() -> None:
    image = sources.ArraySource(np.random.default_rng(0).integers(0, 256, (30, 30, 3), np.uint8))
    with image.lent():
        actual = sources.resolve(image.changed_handle(7))
        expected = sources.AugmentedImage(image, Augmentation.draw(7))
        np.testing.assert_array_equal(actual.read(0, 30), expected.read(0, 30))
        assert (actual.read(0, 30) != image.read(0, 30)).any()


def test_invalid_image() -> None:
    with pytest.raises(SourceError, match=r"augmentation expects images \[H, W, 1 or 3\] of uint8"):
        sources.AugmentedImage(sources.ArraySource(np.ones((4, 4, 2), np.uint8)), Augmentation())


def masked_array(shape: tuple[int, ...], cell: int, seed: int) -> Masked:
    """Noise whose background has a colour."""
    foreground = np.random.default_rng(seed).random(cells.num_cells(shape[:2], cell)) < 0.15
    foreground[0, -1] = True
    fill = (230, 225, 235)[: shape[2]]
    return Masked(sources.open(noise(*shape)), Background(foreground, cell), fill)


@pytest.mark.parametrize("shape", [(96, 96, 3), (81, 81, 1), (70, 101, 3)])
@given(cell=st.integers(1, 30), seed=st.integers(0, 500), data=st.data())
@settings(max_examples=30)
def test_background_is_moved_with_the_pixels(
    shape: tuple[int, ...], cell: int, seed: int, data: st.DataObject
) -> None:
    """It has one colour; all else is as without masks."""
    source = masked_array(shape, cell, seed)
    changed = sources.AugmentedImage(source, Augmentation.draw(seed))
    check_background(changed)
    array = source.read(0, shape[0])
    expected = sources.AugmentedImage(sources.open(array), Augmentation.draw(seed))
    rows, columns = (
        tuple(sorted(data.draw(st.lists(st.integers(0, n), min_size=2, max_size=2, unique=True))))
        for n in shape[:2]
    )
    actual, plain = (x.read_window(rows, columns).astype(int) for x in (changed, expected))
    assert abs(actual - plain).max() <= 1  # rounded
    assert changed.background is not None
    inside = cells.pixels(changed.background, rows, columns)
    np.testing.assert_array_equal(actual[inside], plain[inside])
    colour = changed.colour(rows, columns)
    assert (colour is None) == bool(inside.any())
    assert colour is None or (actual == colour).all()


@pytest.mark.parametrize(
    "change",
    [Augmentation(), Augmentation(flip_rows=True), Augmentation(quarter_turns=1, sigma=1.0)],
)
def test_background_is_moved_exactly(change: Augmentation) -> None:
    source = masked_array((96, 96, 3), 8, 3)
    background = sources.AugmentedImage(source, change).background
    assert background is not None
    assert source.background is not None
    before = source.background.foreground.repeat(8, 0).repeat(8, 1)
    if change.sigma:
        before = ndimage.binary_dilation(before, np.ones((3, 3), bool))
    before = before[::-1] if change.flip_rows else before
    after = cells.pixels(background, (0, 96), (0, 96))
    np.testing.assert_array_equal(after, np.rot90(before, change.quarter_turns))


def test_augmented_background_is_not_read() -> None:
    recording = Recording(noise(512, 512, 3))
    foreground = np.zeros((32, 32), bool)
    foreground[10:12, 20:23] = True
    source = Masked(recording, Background(foreground, 16), 255)
    with source.lent() as _:
        changed = resolve(source.changed_handle(5))
        assert isinstance(changed, sources.AugmentedImage)
        recording.windows.clear()
        for start in range(0, 512, 64):
            changed.read(start, start + 64)
    assert 32 * 48 <= recording.read_pixels() < 3 * 32 * 48
    assert changed.background is not None
    assert changed.background.share < 0.02


def test_background_is_moved_once_for_all_strips() -> None:
    source = masked_array((96, 96, 3), 8, 3)
    with source.lent():
        first, again = (resolve(source.changed_handle(5)) for _ in range(2))
        other = resolve(source.changed_handle(7))  # flipped otherwise
    assert isinstance(first, sources.AugmentedImage)
    assert isinstance(again, sources.AugmentedImage)
    assert isinstance(other, sources.AugmentedImage)
    assert first is not again
    assert first.background is again.background
    assert other.background != first.background

"""Tests of `tfbig.engine.backgrounds`."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import tfbig
from tfbig.engine import backgrounds
from tfbig.geometry.background import Background


def masked(mask: np.ndarray, seed: int = 0) -> tfbig.Source:
    noise = np.random.default_rng(seed).integers(0, 255, (*mask.shape, 3), dtype="uint8")
    return tfbig.masked(tfbig.open(noise), mask, (1, 2, 3))


def corner(row: int, column: int) -> np.ndarray:
    mask = np.zeros((12, 8), bool)
    mask[row : row + 2, column : column + 2] = True
    return mask


def test_handles_of_a_batch_share_what_they_have_in_common() -> None:
    sources = [masked(corner(0, 0)), masked(corner(6, 4))]
    handles = tf.constant([s.handle for s in sources])
    (background,) = backgrounds.expected({4: handles}).values()
    both = corner(0, 0) | corner(6, 4)
    pixels = np.kron(background.foreground, np.ones((background.cell,) * 2, bool))[:12, :8]
    assert (pixels >= both).all()
    assert not pixels.all()
    assert backgrounds.found({4: handles.numpy()}) == {4: background}


def test_images_without_background() -> None:
    plain = tfbig.open(np.zeros((12, 8, 3), "uint8"))
    handles = tf.constant([plain.handle])
    assert backgrounds.expected({0: handles, 1: tf.zeros((1, 12, 8, 1))}) == {}
    assert backgrounds.found({0: handles.numpy(), 1: np.zeros((1, 12, 8, 1))}) == {}
    one = tf.constant([plain.handle, masked(corner(0, 0)).handle])
    assert backgrounds.expected({0: one}) == {}


def test_labels_are_background_where_they_are_constant() -> None:
    labels = np.zeros((1, 12, 8, 1), "uint8")
    labels[0, 11, 7] = labels[0, 0, 0] = 1
    image = masked(corner(0, 0))
    handles = tf.constant([image.handle])
    expected = backgrounds.expected({0: handles, 1: tf.constant(labels)})
    assert expected[0] == expected[1]
    found = backgrounds.found({0: handles.numpy(), 1: labels})
    assert found[0] == expected[0]
    pixels = np.kron(found[1].foreground, np.ones((found[1].cell,) * 2, bool))
    assert pixels[11, 7]
    assert pixels[0, 0]
    assert not pixels.all()


def test_labels_behind_handles_are_compared_once(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    labels = tfbig.open(np.zeros((12, 8, 1), "uint8"))
    images = {
        0: np.array([masked(corner(0, 0)).handle.encode()], object),
        1: np.array([labels.handle.encode()], object),
    }
    first = backgrounds.found(images)
    monkeypatch.setattr(backgrounds, "constant_part", None)
    assert backgrounds.found(images) == first
    assert 1 in first


def test_images_of_other_sizes_share_nothing() -> None:
    handles = tf.constant([masked(corner(0, 0)).handle])
    assert list(backgrounds.expected({0: handles, 1: tf.zeros((1, 6, 4, 1))})) == [0]
    assert list(backgrounds.found({0: handles.numpy(), 1: np.zeros((1, 6, 4, 1))})) == [0]


def test_constant_part_is_found_in_bands(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(backgrounds, "BAND_BYTES", 1)
    image = np.zeros((2, 10, 7, 1))
    image[1, 9, 6] = 1
    foreground = np.zeros((5, 4), bool)
    foreground[0, 0] = True
    part = backgrounds.constant_part(
        lambda a, b: image[:, a:b], image.shape, Background(foreground, 2)
    )
    assert part is not None
    assert np.argwhere(part.foreground).tolist() == [[0, 0], [4, 3]]


def test_no_background_has_no_constant_part() -> None:
    image = np.zeros((1, 4, 4, 1))
    everything = Background(np.ones((4, 4), bool))
    assert backgrounds.constant_part(lambda a, b: image[:, a:b], image.shape, everything) is None

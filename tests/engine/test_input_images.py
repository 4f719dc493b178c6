"""Inputs of a model: tensors and files, read by rows and whole."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfbig import sources
from tfbig.engine.input_images import InputImage, SourceImages, input_image, known_batch
from tfbig.stores.image_store import StripPart
from tfbig.stores.transfers import Reads

SHAPE = (2, 9, 7, 3)


def images() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, SHAPE).astype(np.uint8)


def part(*intervals: tuple[int, int], ahead: bool = False) -> StripPart:
    rows = [(tf.constant(a), tf.constant(b)) for a, b in intervals]
    size, shape = [tf.constant(9), tf.constant(7)], [2, None, None, 3]
    following = [(tf.constant(7), tf.constant(9)), *rows[1:]]
    return StripPart(rows, size, shape, tf.uint8, ahead=(lambda: following) if ahead else None)


@pytest.mark.parametrize("in_files", [False, True])
@pytest.mark.parametrize("ahead", [False, True])
def test_parts_and_the_whole_image(in_files: bool, ahead: bool) -> None:
    array = images()
    readables = [sources.ArraySource(image) for image in array]
    tensor = tf.constant([each.handle for each in readables]) if in_files else tf.constant(array)
    source = input_image(tensor)
    assert isinstance(source, SourceImages if in_files else InputImage)

    @tf.function(autograph=False)
    def run() -> list[tf.Tensor]:
        parts = [part((2, 6), ahead=ahead), part((2, 6), (1, 5), ahead=ahead)]
        results = [source.read(Reads(), each)() for each in parts]
        return [*results, source.whole(tf.uint8, 4)]

    rows, tile, whole = run()
    np.testing.assert_array_equal(rows, array[:, 2:6])
    np.testing.assert_array_equal(tile, array[:, 2:6, 1:5])
    np.testing.assert_array_equal(whole, array)


@pytest.mark.parametrize(
    ("shape", "count"), [([5, None, None, 2], 5), ([None, None, None, 2], None), ([5], 5)]
)
def test_known_batch(shape: list[int | None], count: int | None) -> None:
    """A tensor without known axes is passed over."""
    counts = []

    @tf.function(input_signature=[tf.TensorSpec(None), tf.TensorSpec(shape)], autograph=False)
    def trace(unknown: tf.Tensor, image: tf.Tensor) -> None:
        counts.append(known_batch([unknown, image]))

    trace.get_concrete_function()
    assert counts == [count]

"""Threads read rows before the engine requests them: the right ones, once, and only a few strips."""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same

import tfbig
from tfbig import sources
from tfbig.engine import read_ahead
from tfbig.network.graph import AT_ONCE, IN_FLIGHT


class Recorded(sources.Source):
    """An array that records which thread reads which rows."""

    def __init__(self, array):
        super().__init__(array.shape, array.dtype, "recorded")
        self.array, self.reads = array, []

    def _read(self, start, stop):
        self.reads.append((threading.current_thread().name, start, stop))
        return self.array[start:stop]


@pytest.fixture
def image():
    return Recorded(np.random.default_rng(0).integers(0, 256, (64, 16, 3), np.uint8))


def rows(image, start, stop, ahead=None):
    """Read rows through the engine's operation and compare them with the array."""
    handles, soon = tf.constant([image.handle]), None if ahead is None else [ahead]
    result = read_ahead.read_source(handles, [(start, stop)], tf.uint8, soon)
    np.testing.assert_array_equal(result[0], image.array[start:stop])


def test_rows_ahead_are_read_once_by_a_thread(image):
    rows(image, 0, 10, (20, 30))
    rows(image, 10, 20)
    rows(image, 20, 30)
    rows(image, 20, 30)  # a second time they are read again
    ahead = [read for read in image.reads if read[0].startswith("tfbig-ahead")]
    assert [read[1:] for read in ahead] == [(20, 30)]
    assert sorted(read[1:] for read in image.reads) == [(0, 10), (10, 20), (20, 30), (20, 30)]


def test_rectangles():
    """Only the columns that are requested are read, ahead as well."""
    array = np.random.default_rng(1).integers(0, 256, (20, 30, 3), np.uint8)
    windows = []

    class Windows(tfbig.Source):
        def _read(self, start, stop):
            raise AssertionError

        def _read_window(self, start, stop, left, right):
            windows.append((start, stop, left, right))
            return array[start:stop, left:right]

    image = Windows(array.shape, array.dtype, "windows")
    parts = [[(0, 10), (5, 9)], [(0, 10), (9, 30)]]
    handles = tf.constant([image.handle])
    for part, ahead in zip(parts, [parts[1], None], strict=True):
        tile = read_ahead.read_source(handles, part, tf.uint8, ahead)
        np.testing.assert_array_equal(tile[0], array[:10, slice(*part[1])])
    assert sorted(windows) == [(0, 10, 5, 9), (0, 10, 9, 30)]


def test_empty_range_is_not_read(image):
    rows(image, 0, 10, (64, 64))
    assert [read[1:] for read in image.reads] == [(0, 10)]


def test_only_a_few_strips_are_held(image):
    for start in range(0, 40, 4):
        rows(image, 60, 64, (start, start + 4))
    begun = [key for key in read_ahead.AHEAD._begun if key[0] == (image.handle,)]
    assert [key[1][0][0] for key in begun] == [36 - 4 * n for n in reversed(range(IN_FLIGHT))]
    others = [Recorded(image.array) for _ in range(20)]
    for other in others:
        rows(other, 0, 4, (8, 12))
    assert len(read_ahead.AHEAD._begun) <= IN_FLIGHT + read_ahead.MAX_OTHERS


def test_error_ahead_is_raised_by_the_request(image):
    def broken(start, stop):
        raise tfbig.SourceError("slow: rows cannot be decoded")

    read, image._read = image._read, broken
    read_ahead.AHEAD.begin((image.handle,), [image], ((20, 30),))
    reading = read_ahead.AHEAD._begun[(image.handle,), ((20, 30),)]
    assert isinstance(reading.exception(timeout=60), tfbig.SourceError)
    image._read = read
    with pytest.raises(Exception, match="rows cannot be decoded"):
        rows(image, 20, 30)
    rows(image, 20, 30)


def test_next_step_drops_rows_of_a_failed_step(image):
    """The rows may be older than the image."""
    handles = tf.constant([image.handle])
    rows(image, 0, 10, (20, 30))
    image.array = image.array[::-1].copy()
    assert read_ahead.source_shape(handles).numpy().tolist() == [1, 64, 16, 3]
    rows(image, 20, 30)


def test_step_reads_ahead_all_strips_but_the_first(float64):
    """The step trains as on the tensor."""
    array = np.random.default_rng(1).integers(0, 256, (96, 16, 3), np.uint8)
    inputs = keras.Input((None, None, 3))
    x = keras.layers.Conv2D(4, 3, padding="same", activation="relu")(inputs)
    plain = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.GlobalAveragePooling2D()(x)))
    twin = keras.models.clone_model(plain)
    twin.set_weights(plain.get_weights())
    image = Recorded(array)
    big = tfbig.stream(plain, strip_rows=8)
    for model, x in ((big, tf.constant([image.handle])), (twin, array[None].astype("float64"))):
        model.compile(keras.optimizers.SGD(0.1), "mse")
        model.train_on_batch(x, np.ones((1, 2)))
    for actual, expected in zip(plain.get_weights(), twin.get_weights(), strict=True):
        assert_same(actual, expected, FLOAT64)
    ahead = [read[1:] for read in image.reads if read[0].startswith("tfbig-ahead")]
    every = [read[1:] for read in image.reads]
    assert len(ahead) == len(every) - 2 * AT_ONCE  # forward and backward
    assert len(set(every)) == 12

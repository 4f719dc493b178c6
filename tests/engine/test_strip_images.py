"""What strips read of the stores of a sweep, and the changes that they make there."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from exactness import integers

from tfbig.engine.input_images import InputImage
from tfbig.engine.strip_images import StripImages
from tfbig.engine.sweep_tensors import StripGeometry, SweepStores, TracedSweep
from tfbig.network import keras_reader
from tfbig.plan.canonical import Canonical
from tfbig.plan.sweeps import schedule
from tfbig.stores.image_store import StripPart

ROWS, STRIPS = 7, 3
CHANGES: Any = None
"""Stores of these tests are changed at once."""


class Record(NamedTuple):
    """A store that keeps what is done to it as its state."""

    state: tuple[Any, ...] = ()

    def with_state(self, state: tuple[Any, ...]) -> Record:
        return Record(state)

    def write(self, changes: Any, part: StripPart, rows: Any) -> Record:
        return self.add(changes, part, rows)

    def add(self, changes: Any, part: StripPart, rows: Any) -> Record:
        ((start, stop),) = part.intervals
        fresh = part.uninitialised and tuple(map(int, part.uninitialised))
        return Record((*self.state, (int(start), int(stop), fresh, rows)))


def strips_of(stores: dict[str, Any]) -> tuple[list[StripImages], int, int]:
    """Return the strips of a convolution of 3 x 3 pixels, and the positions of what it reads and computes."""
    image = keras.Input((None, None, 2))
    model = keras.Model(image, keras.layers.Conv2D(3, 3, padding="same")(image))
    graph = keras_reader.read(model, True)
    (sweep,) = schedule(graph)
    canonical = Canonical(graph, sweep)
    table = sweep.table(dict.fromkeys(range(len(graph.values)), ROWS), STRIPS)
    traced = TracedSweep(canonical.graph, canonical.sweep, batch=1)
    (read,), (computed,) = canonical.sweep.reads, canonical.sweep.observed
    given = {"images": read, "d_images": read, "targets": computed}
    empty = {key: {} for key in SweepStores._fields}
    groups = empty | {name: {given[name]: store} for name, store in stores.items()}
    extents = tf.constant([[ROWS, 5]] * len(canonical.ids))
    places = [StripGeometry.in_image(canonical.sweep, tf.constant(n), extents) for n in table]
    found = [StripImages(traced, SweepStores(**groups), place) for place in places]
    return found, read, computed


def test_strips_read_their_rows_and_a_halo() -> None:
    image = integers((1, ROWS, 5, 2))
    strips, read, _ = strips_of({"images": InputImage(tf.constant(image))})
    rows = [strip.read()[0][read].numpy() for strip in strips]
    for part, (start, stop) in zip(rows, [(0, 3), (1, 5), (3, 7)], strict=True):
        np.testing.assert_array_equal(part, image[:, start:stop])


def test_strips_write_what_they_own_in_order() -> None:
    strips, _, computed = strips_of({"targets": Record()})
    states: dict[int, Any] = {computed: ()}
    for number, strip in enumerate(strips):
        states = strip.write({computed: number}, states, CHANGES)
    assert states[computed] == ((0, 2, None, 0), (2, 4, None, 1), (4, 7, None, 2))


def test_gradients_are_added_where_rows_were_read() -> None:
    """An uninitialised store is told which rows have sums before the strip, and which have after it."""
    strips, read, _ = strips_of({"d_images": Record()})
    for fresh, known in ((frozenset({read}), [(0, 3), (3, 5), (5, 7)]), (frozenset(), [None] * 3)):
        states: dict[int, Any] = {read: ()}
        for number, strip in enumerate(strips):
            states = strip.add({read: number}, states, CHANGES, fresh)
        places = [(0, 3), (1, 5), (3, 7)]
        expected = [(*place, k, n) for n, (place, k) in enumerate(zip(places, known, strict=True))]
        assert list(states[read]) == expected

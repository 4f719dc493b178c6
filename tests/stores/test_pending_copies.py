"""Copies in the background: their order, their number, and that each sweep gets its own errors, with many threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from tfbig.stores import host_store, pending_copies, transfers
from tfbig.stores.pending_copies import MAX_PENDING, PendingCopies


def test_copies_are_made_in_order() -> None:
    copies, made = PendingCopies(), list[int]()
    key = copies.begin()
    for number in range(50):
        copies.submit(key, lambda number=number: made.append(number))
    copies.finish(key)
    assert made == list(range(50))
    assert len(copies) == 0


def test_a_sweep_waits_for_its_earlier_copies() -> None:
    copies, go, asked = PendingCopies(), threading.Event(), threading.Event()
    key = copies.begin()
    for _ in range(MAX_PENDING):
        copies.submit(key, lambda: go.wait(10) and None)

    def one_more() -> None:
        copies.submit(key, lambda: None)
        asked.set()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(one_more)
        assert not asked.wait(0.05)
        go.set()
        assert asked.wait(10)
    copies.finish(key)


def test_threads_of_one_sweep() -> None:
    """All copies of several devices are made, and none is lost between two threads."""
    copies, made = PendingCopies(), list[int]()
    key = copies.begin()

    def device(number: int) -> None:
        for _ in range(200):
            copies.submit(key, lambda: made.append(number))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(device, range(8)))
    copies.finish(key)
    assert sorted(made) == sorted([*range(8)] * 200)


def test_each_sweep_gets_its_own_error() -> None:
    """Eight sweeps at once, of which every other one fails: `submit` or `finish` raises its error, and no other."""
    copies = PendingCopies()

    def fail(key: int) -> None:
        raise ValueError(str(key))

    def sweep(fails: bool) -> tuple[int, str]:
        key = copies.begin()
        try:
            for number in range(100):
                copies.submit(key, (lambda: fail(key)) if fails and number == 50 else int)
            copies.finish(key)
        except ValueError as error:
            return key, str(error)
        return key, ""

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(sweep, [True, False] * 8))
    assert [text for _, text in results] == [
        str(k) if n % 2 == 0 else "" for n, (k, _) in enumerate(results)
    ]
    assert len(copies) == 0


def test_errors_that_nobody_takes_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that has ended by another error does not ask for them."""
    monkeypatch.setattr(pending_copies, "MAX_ERRORS", 2)
    copies, keys = PendingCopies(), list[int]()
    for number in range(5):
        keys.append(copies.begin())
        copies.submit(keys[-1], lambda number=number: [][number])
    last = copies.begin()
    copies.submit(last, int)
    copies.finish(last)
    assert len(copies) == 2
    with pytest.raises(IndexError):
        copies.finish(keys[-1])
    copies.finish(keys[0])


def test_a_failing_step_does_not_end_another_one() -> None:
    """Through the store: rows that are too wide fail in their own graph, however the two are interleaved."""
    rows = tf.reshape(tf.range(8.0), [1, 4, 2, 1])

    @tf.function(autograph=False)
    def step(width: tf.Tensor) -> tf.Tensor:
        store = host_store.copy(tf.zeros([1, 4, 2, 1]))
        done = transfers.begin(width)
        for first in range(4):
            band = tf.tile(rows[:, first : first + 1], [1, 1, width, 1])
            label, index = tf.constant("sweep"), tf.constant(first)
            changes = transfers.Changes(done, label, index, tf.constant(4))
            changes.request(host_store._write, [store, band, index])
            done = changes.make()
        return tf.identity(transfers.after([store], transfers.finish(done))[0])

    def run(width: int) -> np.ndarray | None:
        try:
            return step(tf.constant(width)).numpy()
        except tf.errors.OpError:
            return None

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(run, [1, 2] * 20))
    assert all(result is None for result in results[1::2])
    for result in results[::2]:
        np.testing.assert_array_equal(result, rows)
    assert len(transfers.COPIES) == 0

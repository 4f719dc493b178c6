"""Rows on their way to a device; `test_strip_step.py` and the tests of devices read them."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfbig.engine.strip_reader import StripReader
from tfbig.stores.host_memory import HostMemory


@pytest.mark.parametrize("can_lock", [True, False])
@pytest.mark.parametrize("device", [None, "/CPU:0", "/GPU:0"])
def test_rows_are_staged_for_a_gpu_unless_stores_are_page_locked(
    device: str | None, can_lock: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostMemory, "can_lock", lambda memory: can_lock)
    rows = tf.ones((1, 4, 2, 3))
    is_gpu = device == "/GPU:0"
    sent, staged = StripReader.sent(rows, device), StripReader.staged(rows, device)
    assert (sent is rows) == (can_lock or not is_gpu)
    assert (staged is rows) == (not is_gpu)
    tf.debugging.assert_equal(sent, rows)

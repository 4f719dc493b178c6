"""Exchange between workers: here with one device; between processes in test_replicas.py."""

import numpy as np
import pytest
import tensorflow as tf

from tfbig.errors import WorkerError
from tfbig.training.collective import Alone, Collective

ARRAYS = {
    "weights": np.arange(6, dtype="float32").reshape(2, 3) - 0.1,
    "odd bytes": np.array([1, 255, 7], "uint8"),
    "nothing": np.zeros((0, 2)),
    "count": np.array(2**62 + 1),
}


@pytest.fixture
def collective():
    """Take the way over the strategy, as if there were other workers."""
    one = Collective(tf.distribute.OneDeviceStrategy("CPU:0"))
    assert (one.replicas, one.local_replicas, one.chief) == (1, range(1), True)
    assert one.single_worker
    one.single_worker = False
    return one


def test_broadcast_returns_what_the_chief_sends(collective):
    for workers in (collective, Alone()):
        text, arrays = workers.broadcast("text ü", ARRAYS)
        assert text == "text ü"
        assert list(arrays) == list(ARRAYS)
        for name, array in arrays.items():
            assert array.dtype == ARRAYS[name].dtype
            np.testing.assert_array_equal(array, ARRAYS[name])


def test_flags_and_totals(collective):
    assert collective.any(True, False) == Alone().any(True, False) == (True, False)
    for array in ARRAYS.values():
        np.testing.assert_array_equal(collective.total(array), array)
    total, count = collective.sum([[tf.constant([1.5]), tf.constant(3)]])
    assert (total.numpy(), count.numpy()) == ([1.5], 3)


def test_lost_workers_are_an_error(collective, monkeypatch):
    def fail(_):
        raise tf.errors.UnavailableError(None, None, "Collective ops is aborted")

    monkeypatch.setattr(collective, "_sum", fail)
    with pytest.raises(WorkerError, match="lost the other workers"):
        collective.any(True)
    collective.single_worker = True
    with pytest.raises(tf.errors.UnavailableError):
        collective.sum([[tf.constant(1.0)]])

"""The retry after running out of memory; for errors of callbacks see `test_callbacks`."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

import tfbig
from tfbig.system import callbacks, tf_errors


def failing(times, kind=None):
    """Return a function that runs out of memory a number of times, then returns 7."""
    left = [times]
    kind = kind or (lambda text: tf.errors.ResourceExhaustedError(None, None, text))

    def work():
        left[0] -= 1
        if left[0] >= 0:
            raise kind("OOM when allocating a tensor")
        return 7

    return work


def test_retries_once_with_less_memory(capsys):
    model = SimpleNamespace(name="a", use_less=lambda: 512)
    assert tf_errors.retry_with_less_memory(model, failing(1)) == 7
    expected = "out of memory: OOM when allocating a tensor; trying again with 512 bytes for strips"
    assert expected in capsys.readouterr().err
    with pytest.raises(tfbig.BudgetError, match="'a': out of memory, even with 512 bytes"):
        tf_errors.retry_with_less_memory(model, failing(2))


def test_retries_after_a_memory_error_of_python(capsys):
    model = SimpleNamespace(name="a", use_less=lambda: 512)
    assert tf_errors.retry_with_less_memory(model, failing(1, MemoryError)) == 7
    expected = "out of memory: MemoryError: OOM when allocating a tensor; trying again with 512"
    assert expected in capsys.readouterr().err


def test_retries_after_a_memory_error_inside_a_graph(capsys):
    model, work = SimpleNamespace(name="a", use_less=lambda: 512), failing(1, MemoryError)

    @tf.function
    def graph():
        return callbacks.numpy_function(lambda: np.int64(work()), [], tf.int64)

    assert tf_errors.retry_with_less_memory(model, graph) == 7
    assert "out of memory: MemoryError: OOM when allocating" in capsys.readouterr().err


def test_model_that_cannot_use_less_memory():
    expected = re.escape("'a': out of memory: OOM when allocating a tensor. Use smaller images")
    with pytest.raises(tfbig.BudgetError, match=expected):
        tf_errors.retry_with_less_memory(SimpleNamespace(name="a"), failing(1))

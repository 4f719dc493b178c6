"""Errors of tfbig inside TensorFlow graphs, and the retry after running out of memory."""

import re
from types import SimpleNamespace

import pytest
import tensorflow as tf

import tfbig
from tfbig.system import tf_errors


def quoted(text):
    return tf.errors.UnknownError(None, None, f"x: {text}\nTraceback: /tfbig/sources/a.py, line 1")


def test_unwrapped_raises_the_original_error():
    def fail(error):
        raise error

    with pytest.raises(tfbig.SourceError, match=r"^a\.tif: is truncated\.$"):
        tf_errors.unwrapped(fail)(quoted("SourceError: a.tif: is truncated."))
    with pytest.raises(tf.errors.UnknownError):
        tf_errors.unwrapped(fail)(quoted("KeyError: 'a'"))


def failing(times):
    """Return a function that runs out of memory a number of times, then returns 7."""
    left = [times]

    def work():
        left[0] -= 1
        if left[0] >= 0:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating a tensor")
        return 7

    return work


def test_retries_once_with_less_memory(capsys):
    model = SimpleNamespace(name="a", use_less=lambda: 512)
    assert tf_errors.retry_with_less_memory(model, failing(1)) == 7
    expected = "out of memory: OOM when allocating a tensor; trying again with 512 bytes for strips"
    assert expected in capsys.readouterr().err
    with pytest.raises(tfbig.BudgetError, match="'a': out of memory, even with 512 bytes"):
        tf_errors.retry_with_less_memory(model, failing(2))


def test_model_that_cannot_use_less_memory():
    expected = re.escape("'a': out of memory: OOM when allocating a tensor. Use smaller images")
    with pytest.raises(tfbig.BudgetError, match=expected):
        tf_errors.retry_with_less_memory(SimpleNamespace(name="a"), failing(1))

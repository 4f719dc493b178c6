"""Python functions inside graphs: their errors come out as the objects that were raised."""

from __future__ import annotations

import gc
import re
import traceback
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfbig
from tfbig.system import callbacks, tf_errors


@pytest.fixture(autouse=True)
def no_errors_of_earlier_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "ERRORS", callbacks.Errors())


class UsersError(Exception):
    """Error that takes two arguments and has an attribute."""

    def __init__(self, message: str, page: int) -> None:
        super().__init__(message)
        self.page = page


def failing_graph(error: BaseException) -> Callable[..., Any]:
    """Return a graph whose callback raises an error."""

    def fail(_: np.ndarray) -> np.ndarray:
        raise error

    return tf.function(lambda x: callbacks.numpy_function(fail, [x], tf.float32), autograph=False)


def raised_by(graph: Callable[..., Any], *arguments: Any) -> BaseException:
    """Return what a graph raises to its caller."""
    with pytest.raises(BaseException) as raised:
        tf_errors.unwrapped(graph)(*(arguments or (tf.constant(1.0),)))
    return raised.value


@pytest.mark.parametrize(
    "error",
    [
        tfbig.BudgetError("too small", need_bytes=77),
        tfbig.SourceError("a.tif: is truncated."),
        tfbig.Stopped("stopped by SIGTERM"),
        MemoryError("no memory is left"),
        UsersError("torn", page=3),
        KeyError("a"),
        StopIteration(),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_same_object_is_raised(error: BaseException) -> None:
    assert raised_by(failing_graph(error)) is error
    assert len(callbacks.ERRORS) == 0


def test_errors_of_others_are_unchanged() -> None:
    """Also those that look as if they came from tfbig."""

    def fail(_: np.ndarray) -> np.ndarray:
        raise ValueError("/tfbig/a.py: SourceError: [tfbig-error-" + 32 * "0" + "]")

    graph = tf.function(lambda x: tf.numpy_function(fail, [x], tf.float32), autograph=False)
    error = raised_by(graph)
    assert isinstance(error, tf.errors.InvalidArgumentError)
    assert "/tfbig/a.py: SourceError: [tfbig-error-000" in str(error)


def test_traceback_leads_from_the_call_to_the_callback() -> None:
    error = raised_by(failing_graph(UsersError("torn", 3)))
    names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert names[0] == "raised_by"
    assert names[-1] == "fail"
    assert isinstance(error.__cause__, tf.errors.OpError)


def test_cause_of_an_error_is_kept() -> None:
    def fail(_: np.ndarray) -> np.ndarray:
        try:
            raise OSError("no such device")
        except OSError as error:
            raise tfbig.SourceError("a.tif: cannot be read.") from error

    graph = tf.function(lambda x: callbacks.numpy_function(fail, [x], tf.float32), autograph=False)
    assert isinstance(raised_by(graph).__cause__, OSError)


def test_text_for_callers_that_do_not_take_the_error() -> None:
    graph = failing_graph(tfbig.BudgetError("too small"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="BudgetError: too small"):
        graph(tf.constant(1.0))
    graph = failing_graph(MemoryError("no memory is left"))
    with pytest.raises(tf.errors.ResourceExhaustedError, match="MemoryError: no memory is left"):
        graph(tf.constant(1.0))


def test_eager_calls_raise_as_python_does() -> None:
    error = UsersError("torn", 3)

    def fail(_: np.ndarray) -> np.ndarray:
        raise error

    with pytest.raises(UsersError) as raised:
        callbacks.numpy_function(fail, [tf.constant(1.0)], tf.float32)
    assert raised.value is error


def test_threads_get_their_own_errors() -> None:
    """One graph for all threads, which fail again and again at the same time."""
    errors = [UsersError("torn", page) for page in range(200)]

    def fail(page: np.ndarray) -> np.ndarray:
        raise errors[int(page)]

    graph = tf.function(
        lambda x: callbacks.numpy_function(fail, [x], tf.int32, stateful=False),
        input_signature=[tf.TensorSpec([], tf.int32)],
        autograph=False,
    )
    with ThreadPoolExecutor(8) as pool:
        pages = range(len(errors))
        raised = list(pool.map(lambda page: raised_by(graph, tf.constant(page)), pages))
    assert raised == errors
    assert len(callbacks.ERRORS) == 0


def test_graph_inside_a_callback() -> None:
    """An error of the inner graph is taken there; what its caller raises comes out of the outer graph."""
    inner, outer = UsersError("inner", 1), UsersError("outer", 2)

    def fail(_: np.ndarray) -> np.ndarray:
        assert raised_by(failing_graph(inner)) is inner
        raise outer

    graph = tf.function(lambda x: callbacks.numpy_function(fail, [x], tf.float32), autograph=False)
    assert raised_by(graph) is outer

    def pass_on(_: np.ndarray) -> np.ndarray:
        return tf_errors.unwrapped(failing_graph(inner))(tf.constant(1.0)).numpy()

    graph = tf.function(
        lambda x: callbacks.numpy_function(pass_on, [x], tf.float32), autograph=False
    )
    assert raised_by(graph) is inner
    assert len(callbacks.ERRORS) == 0


def test_one_of_several_errors_is_raised() -> None:
    errors = [UsersError("torn" * 3000, page) for page in range(6)]

    def fail(page: np.ndarray) -> np.ndarray:
        raise errors[int(page)]

    def both() -> list[tf.Tensor]:
        pages = range(len(errors))
        return [callbacks.numpy_function(fail, [p], tf.int32, stateful=False) for p in pages]

    assert raised_by(lambda _: tf.function(both, autograph=False)()) in errors


def test_errors_that_nobody_takes_do_not_pile_up() -> None:
    table = callbacks.Errors(limit=3)
    errors = [ValueError(n) for n in range(5)]
    keys = [table.put(error) for error in errors]
    assert len(table) == 3
    assert [table.take(key) for key in keys] == [None, None, *errors[2:]]
    assert len(table) == 0


def test_all_errors_that_a_text_names_are_removed() -> None:
    table = callbacks.Errors()
    errors = [ValueError(n) for n in range(3)]
    keys = [table.put(error) for error in errors]
    assert table.take(f"2 root errors: {keys[1]}, {keys[0]}") is errors[1]
    assert len(table) == 1
    assert table.take(keys[0]) is None


def test_error_that_waits_holds_no_strips() -> None:
    strips: list[Any] = []

    class Strip(np.ndarray):
        """Array that can be referenced weakly."""

    def fail(x: np.ndarray) -> np.ndarray:
        strip = np.zeros(8).view(Strip)
        strips.append(weakref.ref(strip))
        raise UsersError("torn", 3)

    graph = tf.function(lambda x: callbacks.numpy_function(fail, [x], tf.float32), autograph=False)
    gc.freeze()  # the objects of earlier tests are left out of the collection
    with pytest.raises(tf.errors.UnknownError) as raised:
        graph(tf.constant(1.0))
    gc.collect()
    assert strips[0]() is None
    (key,) = set(re.findall("tfbig-error-[0-9a-f]{32}", str(raised.value)))
    assert isinstance(callbacks.ERRORS.take(key), UsersError)

"""Loops over slices of the items of a tensor `[N, n, ...]`: the instances of bags, or the patches of images.

A slice is a range of the second axis. Sizes of slices may differ, so results are joined along the first axis of a
TensorArray, which needs the two axes the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import tensorflow as tf

OfSlice = Callable[[tf.Tensor, Any], tuple[Any, Any]]
"""Function `(number of the slice, state) -> (result, new state)`."""


def joined(
    function: OfSlice,
    num_slices: Any,
    dtype: Any,
    state: Any = (),
    *,
    device: str | None = None,
    at_once: int = 1,
) -> tuple[tf.Tensor, Any]:
    """Return the results of all slices as one tensor `[N, n, ...]`, and the last state.

    They are gathered on `device`. Up to `at_once` slices run at the same time, so that the next is read ahead.
    """

    def place() -> Any:
        return nullcontext() if device is None else tf.device(device)

    def add(index: tf.Tensor, results: tf.TensorArray, state: Any) -> Any:
        result, state = function(index, state)
        with place():
            return results.write(index, tf.einsum("ab...->ba...", result)), state

    with place():
        results = tf.TensorArray(dtype, num_slices, infer_shape=False)
    results, state = _loop(add, num_slices, results, state, at_once)
    with place():
        return tf.einsum("ab...->ba...", results.concat()), state


def summed(
    function: OfSlice,
    num_slices: Any,
    zeros: Sequence[tf.Tensor],
    state: Any = (),
    *,
    at_once: int = 1,
) -> list[tf.Tensor]:
    """Return the sums over slices of lists of tensors, such as gradients."""

    def add(index: tf.Tensor, sums: list[tf.Tensor], state: Any) -> Any:
        results, state = function(index, state)
        return [s + r for s, r in zip(sums, results, strict=True)], state

    sums, _ = _loop(add, num_slices, list(zeros), state, at_once)
    return sums


def merged(items: tf.Tensor) -> tf.Tensor:
    """Return items `[N, k, ...]` as one batch `[N * k, ...]`."""
    flat = tf.reshape(items, tf.concat([[-1], tf.shape(items)[2:]], 0))
    return tf.ensure_shape(flat, [None, *items.shape[2:]])


def divided(results: tf.Tensor, items: tf.Tensor) -> tf.Tensor:
    """Return results `[N * k, ...]` of merged items as `[N, k, ...]`."""
    shape = tf.concat([tf.shape(items)[:2], tf.shape(results)[1:]], 0)
    divided = tf.reshape(results, shape)
    return tf.ensure_shape(divided, [*items.shape[:2], *results.shape[1:]])


def _loop(
    body: Callable[[tf.Tensor, Any, Any], Any],
    num_slices: Any,
    results: Any,
    state: Any,
    at_once: int,
) -> Any:
    def step(index: tf.Tensor, results: Any, state: Any) -> Any:
        return (index + 1, *body(index, results, state))

    _, results, state = tf.while_loop(
        lambda index, *_: index < num_slices,
        step,
        (tf.constant(0), results, state),
        parallel_iterations=at_once,
    )
    return results, state

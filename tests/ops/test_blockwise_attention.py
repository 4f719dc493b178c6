"""Blockwise attention matches softmax attention in float64, forward and backward, and stores no blocks."""

import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same
from samples import ENVIRONMENT, PROGRAMS

from tfbig.ops.blockwise_attention import Pairs, blockwise_attention

WIDTHS = (4, 4, 5)
"""Sizes of a query, a key and a value."""


def plain(q, k, v):
    scores = tf.matmul(q, k, transpose_b=True) / q.shape[-1] ** 0.5
    return tf.matmul(tf.nn.softmax(scores), v)


def blocks(block):
    return lambda q, k, v: blockwise_attention(q, k, v, block)


def inputs(queries=13, keys=13, dtype="float64"):
    """Return q, k, v and a gradient of the output."""
    rng = np.random.default_rng(0)
    rows = zip((queries, keys, keys, queries), (*WIDTHS, WIDTHS[-1]), strict=True)
    return [tf.constant(rng.normal(size=(2, 3, n, d)), dtype) for n, d in rows]


def with_gradients(function, q, k, v, dy):
    with tf.GradientTape() as tape:
        tape.watch([q, k, v])
        y = function(q, k, v)
    return [y, *tape.gradient(y, [q, k, v], dy)]


@pytest.mark.parametrize(
    "block", [3, 4, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 13, 64))]
)
@pytest.mark.parametrize(
    ("queries", "keys"), [(13, 13), (12, 12), (1, 1), (7, 20), (20, 7), (1, 9)]
)
def test_matches_softmax(queries, keys, block):
    arguments = inputs(queries, keys)
    expected = with_gradients(plain, *arguments)
    assert_same(with_gradients(blocks(block), *arguments), expected, FLOAT64)


@pytest.mark.parametrize("block", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 64))])
def test_matches_softmax_in_graph_of_unknown_sizes(block):
    signature = [tf.TensorSpec([None, None, None, d], "float64") for d in WIDTHS]

    @tf.function(input_signature=signature)
    def run(q, k, v):
        return blockwise_attention(q, k, v, block)

    @tf.function(input_signature=[*signature, tf.TensorSpec([None, None, None, 5], "float64")])
    def both(*arguments):
        return with_gradients(blocks(block), *arguments)

    assert run.get_concrete_function().structured_outputs.shape[1:] == [None, None, 5]
    for sizes in [(13, 13), (1, 1), (7, 20)]:
        arguments = inputs(*sizes)
        expected = with_gradients(plain, *arguments)
        assert_same(with_gradients(run, *arguments), expected, FLOAT64)
        assert_same(both(*arguments), expected, FLOAT64)


def test_large_scores_do_not_overflow():
    q, *others = inputs()
    arguments = [1000 * q, *others]
    assert_same(with_gradients(blocks(3), *arguments), with_gradients(plain, *arguments), FLOAT64)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "rtol"), [("float32", 2e-6), ("float16", 4 * 2**-11), ("bfloat16", 4 * 2**-8)]
)
def test_16_bit_inputs_are_summed_in_float32(dtype, rtol):
    """The error is that of rounding the output, and of the backward pass reading the rounded output."""
    arguments = inputs(100, 100, dtype)
    expected = with_gradients(plain, *[tf.cast(x, "float64") for x in arguments])
    actual = with_gradients(blocks(7), *arguments)
    assert all(x.dtype == dtype for x in actual)
    assert_same([tf.cast(x, "float64") for x in actual], expected, rtol)


def test_gradient_of_single_input():
    q, k, v, dy = inputs()
    for position, arguments in enumerate((q, k, v)):
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            y = blockwise_attention(q, k, v, 3)
        expected = with_gradients(plain, q, k, v, dy)[1 + position]
        assert_same(tape.gradient(y, arguments, dy), expected, FLOAT64)


@pytest.mark.parametrize("graph", [False, True])
def test_second_derivative_is_an_error(graph):
    q, k, v, dy = inputs()

    def twice(q, k, v):
        with tf.GradientTape() as outer:
            outer.watch(q)
            with tf.GradientTape() as tape:
                tape.watch(q)
                y = blockwise_attention(q, k, v, 3)
            gradient = tape.gradient(y, q, dy)
        return outer.gradient(gradient, q)

    with pytest.raises(tf.errors.InvalidArgumentError, match="differentiable once"):
        (tf.function(twice) if graph else twice)(q, k, v)


@pytest.mark.slow
def test_persistent_tape():
    q, k, v, dy = inputs()
    run = tf.function(blocks(3))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(q)
        y = run(q, k, v)
    expected = with_gradients(plain, q, k, v, dy)[1]
    for _ in range(2):
        assert_same(tape.gradient(y, q, dy), expected, FLOAT64)


def test_invalid_shapes():
    q, k, v, _ = inputs()
    with pytest.raises(ValueError, match="block=0: expected at least 1"):
        blockwise_attention(q, k, v, 0)
    for wrong in [(q[0], k, v), (q, k[:1], v), (q, k[:, :1], v), (q, k[..., :3], v)]:
        with pytest.raises(ValueError, match=r"expected \[N, heads, n, d\]"):
            blockwise_attention(*wrong)
    for wrong in [(q, k[:, :, :2], v), (q, k[:, :, :0], v[:, :, :0])]:
        with pytest.raises(ValueError, match="m at least 1"):
            blockwise_attention(*wrong)


def operations(function):
    """Return the operation types of a concrete function and of all functions that it calls."""
    graph = function.graph.as_graph_def()
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    return {node.op for node in nodes}


def test_graph_stores_no_history_of_loops():
    """A loop that TensorFlow differentiates pushes intermediate results of each iteration on a list."""

    def step(attention):
        run = tf.function(lambda *x: with_gradients(attention, *x), autograph=False)
        return operations(run.get_concrete_function(*inputs()))

    def looped(q, k, v):
        return tf.map_fn(lambda each: plain(*each), (q, k, v), fn_output_signature=tf.float64)

    assert "TensorListPushBack" in step(looped)
    in_blocks = step(blocks(3))
    assert {"While", "StatelessWhile"} & in_blocks
    assert "TensorListPushBack" not in in_blocks


@pytest.mark.memory
@pytest.mark.parametrize("kind", ["eager", "nested", "graph"])
def test_memory_is_limited_by_blocks(kind):
    """The matrix of scores would take 2 x 8000 x 8000 x 4 bytes."""
    command = [sys.executable, str(PROGRAMS / "attention_memory.py"), kind]
    result = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert json.loads(result.stdout.splitlines()[-1]) < 2 * 8000 * 8000 * 4 / 4


def masks(queries, keys):
    """Return masks of pairs as functions of positions: some of them leave a query without keys."""
    rng = np.random.default_rng(1)
    table = tf.constant(rng.random((2 * 3, queries, keys)) < 0.5)
    return {
        "causal": lambda r, c: r[:, None] >= c,
        "near": lambda r, c: tf.abs(r[:, None] - c) < 2,
        "of each head": lambda r, c: tf.gather(tf.gather(table, r, axis=1), c, axis=2),
        "none of the first": lambda r, c: (r[:, None] > 1) & (c < 4),
    }


@pytest.mark.parametrize("block", [3, 64])
@pytest.mark.parametrize("name", masks(1, 1))
def test_masks_and_dropout_match_softmax(name, block):
    arguments = inputs(7, 11)
    factors = tf.constant(np.random.default_rng(2).integers(0, 3, (6, 7, 11)), "float64")
    mask = masks(7, 11)[name]

    def expected(q, k, v):
        scores = 0.3 * tf.matmul(q, k, transpose_b=True)
        kept = tf.broadcast_to(mask(tf.range(7), tf.range(11)), (6, 7, 11))
        scores = tf.where(tf.reshape(kept, scores.shape), scores, -1e300)
        return tf.matmul(tf.nn.softmax(scores) * tf.reshape(factors, scores.shape), v)

    def some(r, c):
        return tf.gather(tf.gather(factors, r, axis=1), c, axis=2)

    def blockwise(q, k, v):
        return blockwise_attention(q, k, v, block, 0.3, Pairs(mask, some))

    assert_same(
        with_gradients(blockwise, *arguments), with_gradients(expected, *arguments), FLOAT64
    )

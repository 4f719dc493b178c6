"""Attention in blocks: equal to the plain softmax in float64, forward and backward, and no block outlives its turn."""

import json
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from equations import bag, close, dense, softmax
from exactness import FLOAT64, assert_same
from samples import ROOT

from tfbig.models.self_attention import SelfAttention, SelfAttentionMIL
from tfbig.ops.blockwise_attention import blockwise_attention

WIDTHS = (4, 4, 5)
"""Of a query, a key and a value."""


def plain(q, k, v):
    scores = tf.matmul(q, k, transpose_b=True) / q.shape[-1] ** 0.5
    return tf.matmul(tf.nn.softmax(scores), v)


def blocks(block):
    return lambda q, k, v: blockwise_attention(q, k, v, block)


def inputs(queries=13, keys=13, dtype="float64"):
    """q, k, v and a gradient of the output."""
    rng = np.random.default_rng(0)
    rows = zip((queries, keys, keys, queries), (*WIDTHS, WIDTHS[-1]), strict=True)
    return [tf.constant(rng.normal(size=(2, 3, n, d)), dtype) for n, d in rows]


def with_gradients(function, q, k, v, dy):
    with tf.GradientTape() as tape:
        tape.watch([q, k, v])
        y = function(q, k, v)
    return [y, *tape.gradient(y, [q, k, v], dy)]


@pytest.mark.parametrize("block", [1, 3, 64, 4, 13])
@pytest.mark.parametrize(
    ("queries", "keys"), [(13, 13), (12, 12), (1, 1), (7, 20), (20, 7), (1, 9)]
)
def test_it_is_the_softmax(queries, keys, block):
    given = inputs(queries, keys)
    expected = with_gradients(plain, *given)
    assert_same(with_gradients(blocks(block), *given), expected, FLOAT64)


@pytest.mark.parametrize("block", [1, 3, 64])
def test_it_is_the_softmax_in_a_graph_of_unknown_sizes(block):
    signature = [tf.TensorSpec([None, None, None, d], "float64") for d in WIDTHS]

    @tf.function(input_signature=signature)
    def run(q, k, v):
        return blockwise_attention(q, k, v, block)

    @tf.function(input_signature=[*signature, tf.TensorSpec([None, None, None, 5], "float64")])
    def both(*given):
        return with_gradients(blocks(block), *given)

    assert run.get_concrete_function().structured_outputs.shape[1:] == [None, None, 5]
    for sizes in [(13, 13), (1, 1), (7, 20)]:
        given = inputs(*sizes)
        expected = with_gradients(plain, *given)
        assert_same(with_gradients(run, *given), expected, FLOAT64)
        assert_same(both(*given), expected, FLOAT64)


def test_scores_of_thousands_do_not_overflow():
    q, *others = inputs()
    given = [1000 * q, *others]
    assert_same(with_gradients(blocks(3), *given), with_gradients(plain, *given), FLOAT64)


@pytest.mark.parametrize(
    ("dtype", "rtol"), [("float32", 2e-6), ("float16", 4 * 2**-11), ("bfloat16", 4 * 2**-8)]
)
def test_sums_of_short_numbers_are_float32(dtype, rtol):
    """Off by what their last bit rounds: the output, and once more where the backward reads it."""
    given = inputs(100, 100, dtype)
    expected = with_gradients(plain, *[tf.cast(x, "float64") for x in given])
    found = with_gradients(blocks(7), *given)
    assert all(x.dtype == dtype for x in found)
    assert_same([tf.cast(x, "float64") for x in found], expected, rtol)


def test_the_gradient_of_one_input_alone():
    q, k, v, dy = inputs()
    for position, given in enumerate((q, k, v)):
        with tf.GradientTape() as tape:
            tape.watch(given)
            y = blockwise_attention(q, k, v, 3)
        expected = with_gradients(plain, q, k, v, dy)[1 + position]
        assert_same(tape.gradient(y, given, dy), expected, FLOAT64)


@pytest.mark.parametrize("graph", [False, True])
def test_it_is_differentiable_once(graph):
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


def test_a_persistent_tape_needs_no_second_gradient():
    q, k, v, dy = inputs()
    run = tf.function(blocks(3))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(q)
        y = run(q, k, v)
    expected = with_gradients(plain, q, k, v, dy)[1]
    for _ in range(2):
        assert_same(tape.gradient(y, q, dy), expected, FLOAT64)


def test_shapes_that_do_not_go_together():
    q, k, v, _ = inputs()
    with pytest.raises(ValueError, match="block=0; expected at least 1"):
        blockwise_attention(q, k, v, 0)
    for wrong in [(q[0], k, v), (q, k[:1], v), (q, k[:, :1], v), (q, k[..., :3], v)]:
        with pytest.raises(ValueError, match=r"expected \[N, heads, n, d\]"):
            blockwise_attention(*wrong)
    for wrong in [(q, k[:, :, :2], v), (q, k[:, :, :0], v[:, :, :0])]:
        with pytest.raises(ValueError, match="m at least 1"):
            blockwise_attention(*wrong)


def operations(function):
    """Types of the operations of a concrete function and of those that it calls."""
    graph = function.graph.as_graph_def()
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    return {node.op for node in nodes}


def test_the_graph_keeps_no_history_of_its_loops():
    """A loop that TensorFlow differentiates pushes what it needs of each turn on a list."""

    def step(attention):
        run = tf.function(lambda *x: with_gradients(attention, *x), autograph=False)
        return operations(run.get_concrete_function(*inputs()))

    def looped(q, k, v):
        return tf.map_fn(lambda each: plain(*each), (q, k, v), fn_output_signature=tf.float64)

    assert "TensorListPushBack" in step(looped)
    found = step(blocks(3))
    assert {"While", "StatelessWhile"} & found
    assert "TensorListPushBack" not in found


CHILD = """
import json, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
sys.path.insert(0, ROOT)
import tensorflow as tf
from tfbig.ops.blockwise_attention import blockwise_attention
from tfbig.results.run_folder import memory_bytes

def step(q):
    with tf.GradientTape() as tape:
        tape.watch(q)
        y = blockwise_attention(q, q, q, 256)
    return tape.gradient(y, q, y)

def nested(q):
    with tf.GradientTape() as outer:
        outer.watch(q)
        return step(q)

run = {"eager": step, "nested": nested, "graph": tf.function(step)}[sys.argv[1]]
run(tf.random.normal([1, 2, 300, 8]))
base, _ = memory_bytes()
run(tf.random.normal([1, 2, 8000, 8]))
print(json.dumps(memory_bytes()[1] - base))
"""


@pytest.mark.memory
@pytest.mark.parametrize("kind", ["eager", "nested", "graph"])
def test_memory_is_that_of_blocks(kind):
    """One matrix of scores takes 2 x 8000 x 8000 x 4 bytes."""
    words = [sys.executable, "-c", CHILD.replace("ROOT", repr(str(ROOT))), kind]
    found = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert json.loads(found.splitlines()[-1]) < 2 * 8000 * 8000 * 4 / 4


# ------------------------------------------------------------------------------ the aggregator


def small(depth=2, **options):
    return SelfAttentionMIL(3, width=16, heads=2, depth=depth, block=4, **options)


def normal(layer, x):
    """Layer normalisation."""
    gamma, beta = (w.numpy().astype("float64") for w in layer.weights)
    x = x - x.mean(-1, keepdims=True)
    return gamma * x / np.sqrt((x * x).mean(-1, keepdims=True) + layer.epsilon) + beta


def oracle(layer, x):
    """Tokens at the end, and how much each looks at the others in the last block, `[N, heads, n, n]`."""
    x = np.maximum(dense(layer.embed, x.astype("float64")), 0)
    token = np.broadcast_to(layer.token.numpy(), (len(x), 1, layer.width))
    x = np.concatenate([token, x], 1)
    for norm, block in zip(layer.norms, layer.blocks, strict=False):
        parts = np.split(dense(block.qkv, normal(norm, x)), 3, -1)
        shape = (*x.shape[:2], layer.heads, -1)
        q, k, v = (p.reshape(shape).transpose(0, 2, 1, 3) for p in parts)
        a = softmax(q @ k.transpose(0, 1, 3, 2) / np.sqrt(layer.width / layer.heads), -1)
        x = x + dense(block.out, (a @ v).transpose(0, 2, 1, 3).reshape(x.shape))
    return normal(layer.norms[-1], x), a


def randomised(layer, x):
    """Built, with weights that are neither 0 nor 1."""
    layer(x)
    rng = np.random.default_rng(1)
    layer.set_weights([w + rng.normal(size=w.shape, scale=0.3) for w in layer.get_weights()])
    return layer


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 3, 11])
def test_it_is_its_equations(depth, count):
    x = bag(count=count)
    layer = randomised(small(depth), x)
    tokens, a = oracle(layer, x)
    close(layer(x), dense(layer.head, tokens[:, 0]))
    close(layer.scores(x), dense(layer.head, tokens[:, 1:]))
    seen = a[:, :, 0, 1:].mean(1)
    close(layer.attention(x), seen / seen.sum(1, keepdims=True))
    close(layer.attention(x).numpy().sum(1), [1, 1])


def test_neither_order_nor_the_other_bags_matter():
    x = bag()
    layer = randomised(small(), x)
    order = np.random.default_rng(1).permutation(x.shape[1])
    close(layer(x[:1]), layer(x)[:1])
    close(layer(x[:, order]), layer(x))
    close(layer.attention(x[:, order]), layer.attention(x).numpy()[:, order])
    close(layer.scores(x[:, order]), layer.scores(x).numpy()[:, order])


def test_bags_of_any_size_and_saved_with_its_model(tmp_path):
    layer, features = small(), keras.Input((None, 6))
    model = keras.Model(features, layer(features))
    assert model.output_shape == (None, 3)
    for count in (1, 2, 16, 30):
        close(model.predict(bag(count=count), verbose=0), layer(bag(count=count)))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    close(again(bag()), model(bag()), 0)
    assert again.layers[1].get_config() == layer.get_config()


def test_every_weight_learns():
    model = keras.Sequential([keras.Input((None, 6)), small()])
    before = [w.numpy() for w in model.trainable_variables]
    model.compile(keras.optimizers.SGD(1.0), "mse")
    model.train_on_batch(bag(), np.ones((2, 3)))
    changed = [
        (w.numpy() != b).any() for w, b in zip(model.trainable_variables, before, strict=True)
    ]
    assert all(changed)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy):
    x = bag()
    layer = small(dtype=policy)
    logits = tf.cast(layer(x), "float64")
    assert layer.attention(x).dtype == "float32"
    close(logits, dense(layer.head, oracle(layer, x)[0][:, 0]), 0.05)


def test_heads_divide_the_width():
    with pytest.raises(ValueError, match="heads=3; expected a divisor of width=16"):
        SelfAttention(16, heads=3)
    with pytest.raises(ValueError, match="depth=0; expected at least 1"):
        small(depth=0)

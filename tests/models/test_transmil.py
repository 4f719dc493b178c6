"""TransMIL and Nystroem attention against their equations and the published number of parameters."""

import keras
import numpy as np
import pytest
from aggregator_checks import (
    check_any_size,
    check_bags_are_independent,
    check_outputs,
    check_saving,
)
from equations import bag, close, dense, softmax
from keras import ops

from tfbig.models.transmil import NystromAttention, TransMIL


def test_parameters():
    layer = TransMIL(2)
    layer.build((None, None, 1024))
    assert layer.count_params() == 2_672_146


def test_outputs():
    check_outputs(TransMIL(3, width=16))


def test_bags_are_independent():
    check_bags_are_independent(TransMIL(3, width=16))


@pytest.mark.slow
@pytest.mark.parametrize(
    "counts", [(1, 300), pytest.param((2, 16, 256, 1000), marks=pytest.mark.slow)]
)
def test_any_bag_size(counts):
    check_any_size(TransMIL(3, width=16), counts)


def test_saving(tmp_path):
    check_saving(TransMIL(3, width=16), tmp_path / "model.keras")


def heads_of(layer, x):
    """Return q, k and v, `[N, heads, n, size]` in float64, with q scaled."""
    size = layer.width // layer.heads
    parts = dense(layer.qkv, x).reshape(*x.shape[:2], 3, layer.heads, size)
    q, k, v = parts.transpose(2, 0, 3, 1, 4)
    return q * size**-0.5, k, v


def near(layer, v):
    """Return the convolution of v along the tokens, one filter per head, zeros outside."""
    filters = layer.near.weights[0].numpy()[:, 0, :, 0]  # [kernel, heads]
    reach = len(filters) // 2
    padded = np.pad(v, [(0, 0), (0, 0), (reach, reach), (0, 0)])
    return sum(
        filters[i][None, :, None, None] * padded[:, :, i : i + v.shape[2]]
        for i in range(len(filters))
    )


def test_one_landmark_per_token():
    """Attention with a landmark per token is exact: `A pinv(A) A = A`.

    More iterations than published, so that the inverse converges.
    """
    layer = NystromAttention(16, heads=2, landmarks=8, iterations=40, kernel=5)
    x = bag(count=8, width=16)
    actual = layer(x)
    q, k, v = heads_of(layer, x.astype("float64"))
    a = softmax(q @ k.transpose(0, 1, 3, 2), -1)
    expected = (a @ v + near(layer, v)).transpose(0, 2, 1, 3).reshape(x.shape)
    close(actual, dense(layer.out, expected), 1e-3)  # the inverse is ill-conditioned


@pytest.mark.parametrize("count", [5, 8, 13])
def test_landmarks_and_padding(count):
    layer = NystromAttention(16, heads=2, landmarks=4, kernel=5)
    x = bag(count=count, width=16)
    actual = layer(x)
    filled = np.pad(x.astype("float64"), [(0, 0), (-count % 4, 0), (0, 0)])
    q, k, v = heads_of(layer, filled)
    ql, kl = (t.reshape(2, 2, 4, -1, 8).mean(3) for t in (q, k))
    first, middle, last = (
        softmax(a @ b.transpose(0, 1, 3, 2), -1) for a, b in ((q, kl), (ql, kl), (ql, k))
    )
    z = middle.transpose(0, 1, 3, 2) / (
        middle.sum(-1).max((1, 2)) * middle.sum(-2).max((1, 2))
    ).reshape(2, 1, 1, 1)
    one = np.eye(4)
    for _ in range(6):
        az = middle @ z
        z = 0.25 * z @ (13 * one - az @ (15 * one - az @ (7 * one - az)))
    expected = (first @ z @ (last @ v) + near(layer, v)).transpose(0, 2, 1, 3).reshape(filled.shape)
    close(actual, dense(layer.out, expected)[:, -count:], 1e-4)


def test_positional_encoding():
    layer, x = TransMIL(2, width=16), bag(count=11)
    layer(x)
    square = layer._encode_positions(x).numpy()
    assert square.shape == (2, 1 + 16, 16)
    for block in layer.blocks:  # switch attention off, so that only positions are left
        block.out.set_weights([0 * w for w in block.out.get_weights()])
    tokens = np.maximum(dense(layer.embed, x.astype("float64")), 0)
    tokens = np.concatenate([tokens, tokens[:, :5]], 1).reshape(2, 4, 4, 16)
    expected = tokens.copy()
    for conv in layer.places:
        kernel, bias = (w.numpy().astype("float64") for w in conv.weights)
        reach = len(kernel) // 2
        padded = np.pad(tokens, [(0, 0), (reach, reach), (reach, reach), (0, 0)])
        expected += bias + sum(
            kernel[i, j, :, 0] * padded[:, i : i + 4, j : j + 4]
            for i in range(len(kernel))
            for j in range(len(kernel))
        )
    actual = layer._encode_positions(x)
    close(actual[:, 1:], expected.reshape(2, 16, 16))
    close(actual[:, :1], np.broadcast_to(layer.token.numpy(), (2, 1, 16)), 0)


def test_every_weight_is_trained():
    layer, x = TransMIL(2, width=16), bag()
    model = keras.Sequential([keras.Input((None, 6)), layer])
    before = [w.numpy() for w in model.trainable_variables]
    model.compile(keras.optimizers.SGD(1.0), "mse", run_eagerly=True)
    model.train_on_batch(x, np.ones((2, 2)))
    changed = [
        bool(ops.any(w != b)) for w, b in zip(model.trainable_variables, before, strict=True)
    ]
    assert all(changed)


@pytest.mark.parametrize(("width", "landmarks"), [(512, 256), (128, 64)])
def test_landmarks(width, landmarks):
    """Half of the width, as in the code of TransMIL; Big-Layers has 128 and 64."""
    assert {block.landmarks for block in TransMIL(2, width).blocks} == {landmarks}


def test_landmarks_are_saved():
    layer = TransMIL.from_config(TransMIL(2, 16, landmarks=5).get_config())
    assert {block.landmarks for block in layer.blocks} == {5}


def test_layers_saved_without_landmarks_had_256():
    layer = TransMIL.from_config({"classes": 2, "width": 16})
    assert {block.landmarks for block in layer.blocks} == {256}

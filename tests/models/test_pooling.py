"""From a bag of features to logits: parameters as published, numbers as the equations say."""

import keras
import numpy as np
import pytest
from equations import bag, close, dense, softmax
from keras import ops

from tfbig.models.pooling import ABMIL, MaxPooling, MeanPooling
from tfbig.models.transmil import NystromAttention, TransMIL

AGGREGATORS = {
    "mean": lambda: MeanPooling(3),
    "max": lambda: MaxPooling(3),
    "abmil": lambda: ABMIL(3, hidden=8),
    "gated": lambda: ABMIL(3, hidden=8, gated=True),
    "transmil": lambda: TransMIL(3, width=16),
}
every = pytest.mark.parametrize("name", AGGREGATORS)


@pytest.mark.parametrize(
    ("layer", "width", "count"),
    [
        (lambda: TransMIL(2), 1024, 2_672_146),
        (lambda: ABMIL(1), 500, 500 * 128 + 128 + 128 + 1 + 501),
        (lambda: ABMIL(2, gated=True), 512, 131_457 + 1_026),
    ],
)
def test_parameters_are_as_published(layer, width, count):
    made = layer()
    made.build((None, None, width))
    assert made.count_params() == count


@every
def test_a_bag_gives_logits_attention_and_scores(name):
    layer, x = AGGREGATORS[name](), bag()
    assert layer(x).shape == (2, 3)
    assert layer.compute_output_shape((2, None, 6)) == (2, 3)
    attention = layer.attention(x).numpy()
    assert attention.shape == (2, 11)
    assert (attention >= 0).all()
    close(attention.sum(1), [1, 1])
    assert layer.scores(x).shape == (2, 11, 3)


@every
def test_bags_of_a_batch_do_not_see_each_other(name):
    layer = AGGREGATORS[name]()
    x = bag()
    close(layer(x)[:1], layer(x[:1]))


@every
def test_bags_of_any_size_and_one_instance(name):
    layer = AGGREGATORS[name]()
    image = keras.Input((None, 6))
    model = keras.Model(image, layer(image))
    for count in (1, 2, 16, 300):
        x = bag(count=count)
        close(model.predict(x, verbose=0), layer(x))


@every
def test_it_is_saved_with_its_model(name, tmp_path):
    inputs = keras.Input((None, 6))
    model = keras.Model(inputs, AGGREGATORS[name]()(inputs))
    model.save(tmp_path / "model.keras")
    close(keras.saving.load_model(tmp_path / "model.keras")(bag()), model(bag()), 0)


@pytest.mark.parametrize("name", ["mean", "max", "abmil", "gated"])
def test_order_does_not_matter(name):
    layer, x = AGGREGATORS[name](), bag()
    order = np.random.default_rng(1).permutation(x.shape[1])
    close(layer(x[:, order]), layer(x))
    close(layer.attention(x[:, order]), layer.attention(x).numpy()[:, order])


@pytest.mark.parametrize("gated", [False, True])
def test_abmil_is_its_equation(gated):
    layer, x = ABMIL(2, hidden=8, gated=gated), bag()
    found, x = layer(x), x.astype("float64")
    inner = np.tanh(dense(layer.gate.v, x))
    if gated:
        inner = inner / (1 + np.exp(-dense(layer.gate.u, x)))
    a = softmax(dense(layer.gate.w, inner), 1)
    close(layer.attention(bag()), a[..., 0])
    close(found, dense(layer.head, (a * x).sum(1)))


def test_equal_maxima_share_attention():
    layer = MaxPooling(1)
    x = np.array([[[1.0, 5.0], [1.0, 2.0], [0.0, 2.0]]], "float32")
    layer(x)
    close(layer.attention(x), [[(0.5 + 1) / 2, 0.5 / 2, 0]])


# ---------------------------------------------------------------------------------- TransMIL


def heads_of(layer, x):
    """q, k, v `[N, heads, n, each]` in float64, q scaled."""
    each = layer.width // layer.heads
    parts = dense(layer.qkv, x).reshape(*x.shape[:2], 3, layer.heads, each)
    q, k, v = parts.transpose(2, 0, 3, 1, 4)
    return q * each**-0.5, k, v


def near(layer, v):
    """The convolution of v along the tokens, one filter a head, zeros outside."""
    filters = layer.near.weights[0].numpy()[:, 0, :, 0]  # [kernel, heads]
    reach = len(filters) // 2
    padded = np.pad(v, [(0, 0), (0, 0), (reach, reach), (0, 0)])
    return sum(
        filters[i][None, :, None, None] * padded[:, :, i : i + v.shape[2]]
        for i in range(len(filters))
    )


def test_one_landmark_a_token_is_exact_attention():
    """`A pinv(A) A = A`; more iterations than published, so that the inverse is one."""
    layer = NystromAttention(16, heads=2, landmarks=8, iterations=40, kernel=5)
    x = bag(count=8, width=16)
    found = layer(x)
    q, k, v = heads_of(layer, x.astype("float64"))
    a = softmax(q @ k.transpose(0, 1, 3, 2), -1)
    made = (a @ v + near(layer, v)).transpose(0, 2, 1, 3).reshape(x.shape)
    close(found, dense(layer.out, made), 1e-3)  # the inverse is ill-conditioned


@pytest.mark.parametrize("count", [5, 8, 13])
def test_landmarks_are_means_and_zeros_come_first(count):
    layer = NystromAttention(16, heads=2, landmarks=4, kernel=5)
    x = bag(count=count, width=16)
    found = layer(x)
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
    made = (first @ z @ (last @ v) + near(layer, v)).transpose(0, 2, 1, 3).reshape(filled.shape)
    close(found, dense(layer.out, made)[:, -count:], 1e-4)


def test_places_are_a_square_that_the_first_tokens_fill():
    layer, x = TransMIL(2, width=16), bag(count=11)
    layer(x)
    square = layer._middle(x).numpy()
    assert square.shape == (2, 1 + 16, 16)
    for block in layer.blocks:  # without attention, and with the places alone
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
    found = layer._middle(x)
    close(found[:, 1:], expected.reshape(2, 16, 16))
    close(found[:, :1], np.broadcast_to(layer.token.numpy(), (2, 1, 16)), 0)


def test_every_weight_of_transmil_learns():
    layer, x = TransMIL(2, width=16), bag()
    model = keras.Sequential([keras.Input((None, 6)), layer])
    before = [w.numpy() for w in model.trainable_variables]
    model.compile(keras.optimizers.SGD(1.0), "mse")
    model.train_on_batch(x, np.ones((2, 2)))
    changed = [
        bool(ops.any(w != b)) for w, b in zip(model.trainable_variables, before, strict=True)
    ]
    assert all(changed)

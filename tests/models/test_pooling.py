"""Mean, max and attention pooling against their equations."""

import math

import numpy as np
import pytest
from aggregator_checks import (
    check_any_size,
    check_bags_are_independent,
    check_outputs,
    check_saving,
)
from equations import bag, close, dense, softmax

from tfbig.models.pooling import ABMIL, MaxPooling, MeanPooling

AGGREGATORS = {
    "abmil_relu": lambda: ABMIL(3, 4, activation="relu"),
    "abmil_gelu": lambda: ABMIL(3, 4, activation="gelu", widths=(7, 3)),
    "mean": lambda: MeanPooling(3),
    "max": lambda: MaxPooling(3),
    "abmil": lambda: ABMIL(3, hidden=8),
    "gated": lambda: ABMIL(3, hidden=8, gated=True),
}
every_aggregator = pytest.mark.parametrize("name", AGGREGATORS)


@pytest.mark.parametrize(
    ("layer", "width", "count"),
    [
        (lambda: ABMIL(1), 500, 500 * 128 + 128 + 128 + 1 + 501),
        (lambda: ABMIL(2, gated=True), 512, 131_457 + 1_026),
    ],
)
def test_parameters(layer, width, count):
    """The published numbers."""
    layer = layer()
    layer.build((None, None, width))
    assert layer.count_params() == count


@every_aggregator
def test_outputs(name):
    check_outputs(AGGREGATORS[name]())


@every_aggregator
def test_bags_are_independent(name):
    check_bags_are_independent(AGGREGATORS[name]())


@every_aggregator
def test_any_bag_size(name):
    check_any_size(AGGREGATORS[name]())


@every_aggregator
def test_saving(name, tmp_path):
    check_saving(AGGREGATORS[name](), tmp_path / "model.keras")


@every_aggregator
def test_order_does_not_matter(name):
    layer, x = AGGREGATORS[name](), bag()
    order = np.random.default_rng(1).permutation(x.shape[1])
    close(layer(x[:, order]), layer(x))
    close(layer.attention(x[:, order]), layer.attention(x).numpy()[:, order])


@pytest.mark.parametrize("gated", [False, True])
def test_abmil_matches_its_equation(gated):
    layer, x = ABMIL(2, hidden=8, gated=gated), bag()
    logits, x = layer(x), x.astype("float64")
    inner = np.tanh(dense(layer.gate.v, x))
    if gated:
        inner = inner / (1 + np.exp(-dense(layer.gate.u, x)))
    a = softmax(dense(layer.gate.w, inner), 1)
    close(layer.attention(bag()), a[..., 0])
    close(logits, dense(layer.head, (a * x).sum(1)))


def test_equal_maxima_share_attention():
    layer = MaxPooling(1)
    x = np.array([[[1.0, 5.0], [1.0, 2.0], [0.0, 2.0]]], "float32")
    layer(x)
    close(layer.attention(x), [[(0.5 + 1) / 2, 0.5 / 2, 0]])


def gelu(x):
    """Return x times the distribution function of a standard normal, as torch computes GELU."""
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / 2**0.5))


def test_heads_of_big_layers():
    """256 and 128 units with GELU, then attention with GELU, as in its code; sizes here are smaller."""
    layer, x = (
        ABMIL(2, 4, activation="gelu", widths=(7, 3)),
        np.random.default_rng(0).normal(size=(1, 5, 6)),
    )
    logits = layer(x.astype("float32"))
    arrays = {w.path.split("/", 1)[-1]: w.numpy().astype("float64") for w in layer.weights}

    def dense(name, h):
        (kernel,) = (a for key, a in arrays.items() if key.endswith(f"{name}/kernel"))
        (bias,) = (a for key, a in arrays.items() if key.endswith(f"{name}/bias"))
        return h @ kernel + bias

    h = gelu(dense("reduce1", gelu(dense("reduce0", x[0]))))
    weights = np.exp(dense("w", gelu(dense("v", h)))[:, 0])
    weights /= weights.sum()
    np.testing.assert_allclose(logits[0], dense("head", weights @ h), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(layer.attention(x.astype("float32"))[0], weights, rtol=1e-5)
    assert layer.scores(x.astype("float32")).shape == (1, 5, 2)


def test_parameters_of_the_heads_of_big_layers():
    """The heads have 512 features for CAMELYON, and 32768 numbers of the last map for PANDA."""
    counts = {}
    for classes, width, options in (
        (2, 512, {"activation": "gelu", "widths": (256, 128)}),
        (6, 32768, {"activation": "relu"}),
    ):
        layer = ABMIL(classes, 128, **options)
        layer.build((1, None, width))
        counts[width] = layer.count_params()
    attention = 129
    gelu_head = (512 + 1) * 256 + (256 + 1) * 128 + (128 + 1) * 128 + attention + (128 + 1) * 2
    relu_head = (32768 + 1) * 128 + attention + (32768 + 1) * 6
    assert counts == {512: gelu_head, 32768: relu_head}


class Scaled(MeanPooling):
    """Aggregator of a user, whose constructor passes on the arguments of its base."""

    def __init__(self, *args, scale=1.0, **options):
        super().__init__(*args, **options)
        self.scale = scale

    def call(self, bag):
        return self.scale * super().call(bag)


def test_a_config_has_the_arguments_of_all_constructors():
    layer = Scaled(2, scale=3.0, name="scaled")
    config = layer.get_config()
    assert config.keys() == {"name", "trainable", "dtype", "classes", "scale"}
    assert Scaled.from_config(config).get_config() == config

"""Mean, max and attention pooling against their equations."""

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

"""ABMILX against its published code, and what holds for every aggregator."""

import keras
import numpy as np
import pytest
from aggregator_checks import (
    check_any_size,
    check_bags_are_independent,
    check_outputs,
    check_saving,
)
from equations import bag, close, softmax
from mil_models import check_training, entropy
from published_weights import PublishedWeights

from tfbig.models.abmilx import ABMILX

VARIANTS = {
    "default": {},
    "mlp": {"mlp": True},
    "without norm": {"mlp": True, "normalise": False},
    "without plus": {"plus": False},
}
PARAMETERS = {
    "default": 801_473,
    "mlp": 2_901_185,
    "without norm": 2_900_673,
    "without plus": 793_152,
}
RECORDED = {
    "default": (
        [-0.121640083, -0.40669528, -0.091811909],
        [0.09111008, 0.091006695, 0.090598344],
    ),
    "mlp": (
        [0.445608269, -0.089278004, -0.011940051],
        [0.090545707, 0.091089463, 0.091250223],
    ),
    "without norm": (
        [-0.220888942, -0.390927898, -0.297164636],
        [0.088830192, 0.093610202, 0.091466911],
    ),
    "without plus": (
        [0.08973748, 0.524027539, 0.297029434],
        [0.090826827, 0.091107279, 0.091553733],
    ),
}
"""Logits that the published code gives, and the mean attention of all heads to the first three instances."""
OTHERS = [name for name in VARIANTS if name != "default"]
every_variant = pytest.mark.parametrize("name", VARIANTS)


def small(**options):
    return ABMILX(3, **{"width": 16, "heads": 4, "block": 8} | options)


def published(options):
    """Return a layer with the weights of the recorded module."""
    layer = small(dtype="float64", **options)
    layer.build((None, None, 6))
    weights = PublishedWeights()
    if layer.plus:
        weights.dense(layer.qk)
        weights.dense(layer.v)
        weights.norm(layer.plus_norm)
    if layer.mlp:
        if not layer.normalise:
            weights.norm(layer.mlp_norm)
        weights.dense(layer.wide)
        weights.dense(layer.narrow)
    if layer.normalise:
        weights.norm(layer.norms[1])
        weights.norm(layer.norms[0])
    weights.dense(layer.embed)
    for part in (*layer.gate, layer.project, layer.head):
        weights.dense(part)
    return layer


@every_variant
def test_parameters(name):
    layer = ABMILX(2, **VARIANTS[name])
    layer.build((None, None, 1024))
    assert layer.count_params() == PARAMETERS[name]


@every_variant
def test_published_code(name):
    """Logits and the attention that the published code gives for the same weights."""
    logits, attention = RECORDED[name]
    layer, x = published(VARIANTS[name]), bag()[:1].astype("float64")
    close(layer(x)[0], logits, 1e-8)
    close(layer.attention(x)[0, :3], attention, 1e-8)


def test_attention_plus():
    """Attention is added to the mean of that of all instances, weighted by their similarity."""
    layer, x = small(), bag()
    layer(x)
    h = layer._split(layer._embed(x))
    a = layer.gate[1](layer.gate[0](h)).numpy()[..., 0]
    q, k = np.split(layer.qk(layer.plus_norm(h)).numpy(), 2, -1)
    similar = softmax(q @ k.transpose(0, 1, 3, 2) / 2, -1)  # four features each
    a = a + float(layer.v.kernel[0, 0]) * (similar @ a[..., None])[..., 0]
    close(layer.attention(x), softmax(a, -1).mean(1))


def test_scores_are_those_of_single_instances():
    layer, x = small(mlp=True), bag()
    layer(x)
    scores = layer.scores(x)
    for number in (0, 5):
        close(layer(x[:, number : number + 1]), scores[:, number])


@every_variant
def test_outputs(name):
    check_outputs(small(**VARIANTS[name]))


@pytest.mark.parametrize(
    "name", ["default", *(pytest.param(n, marks=pytest.mark.slow) for n in OTHERS)]
)
def test_any_bag_size(name):
    check_any_size(small(**VARIANTS[name]), (1, 2, 16, 50))


def test_saving_and_bags(tmp_path):
    check_saving(small(mlp=True, normalise=False), tmp_path / "model.keras")
    check_bags_are_independent(small())


def test_order_does_not_matter():
    layer, x = small(), bag()
    order = np.random.default_rng(1).permutation(x.shape[1])
    close(layer(x[:, order]), layer(x))
    close(layer.attention(x[:, order]), layer.attention(x).numpy()[:, order])


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy):
    layer, x = small(mlp=True, dtype=policy), bag()
    assert layer(x).dtype == policy.removeprefix("mixed_")
    assert layer.attention(x).dtype == "float32"


def test_every_weight_is_trained():
    model = keras.Sequential([keras.Input((None, 6)), small(mlp=True, rate=0.0)])
    before = [w.numpy() for w in model.trainable_variables]
    model.compile(keras.optimizers.SGD(1.0), "mse")
    model.train_on_batch(bag(), np.ones((2, 3)))
    changed = [
        (w.numpy() != b).any() for w, b in zip(model.trainable_variables, before, strict=True)
    ]
    assert all(changed)


def test_invalid_heads():
    with pytest.raises(ValueError, match="heads=3; expected a divisor of width=16"):
        small(heads=3)


@pytest.mark.slow
def test_end_to_end_training(float64):
    """The encoder is trained as in the plain model, in slices of three instances."""
    check_training(lambda: ABMILX(2, 8, 2, mlp=True, rate=0.0), entropy())

"""Every loss of `keras.losses` on masks equals that of the plain model, or is refused, in each element type."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from exactness import FLOAT64, assert_same
from streamed_pairs import both, segmenter, slow

import tfbig
from tfbig.network import losses

KINDS = {
    kind.__name__: kind
    for name, kind in vars(keras.losses).items()
    if isinstance(kind, type) and issubclass(kind, keras.losses.Loss) and name == kind.__name__
}
del KINDS["Loss"]
REFUSED = {kind.__name__ for kind in losses.OF_BATCHES}
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "logits": ("BinaryCrossentropy", {"from_logits": True, "label_smoothing": 0.1}),
    "focal": ("BinaryFocalCrossentropy", {"apply_class_balancing": True, "label_smoothing": 0.2}),
    "smoothed classes": ("CategoricalCrossentropy", {"label_smoothing": 0.1}),
    "focal logits": ("CategoricalFocalCrossentropy", {"from_logits": True}),
    "ignored": ("SparseCategoricalCrossentropy", {"ignore_class": 1}),
    "ignored logits": ("SparseCategoricalCrossentropy", {"from_logits": True, "ignore_class": 0}),
    "huber": ("Huber", {"delta": 0.3, "reduction": "sum"}),
    "noise": ("CategoricalGeneralizedCrossEntropy", {"q": 0.7}),
    "dice": ("Dice", {"axis": (1, 2, 3)}),
    "tversky": ("Tversky", {"alpha": 0.3, "beta": 0.7}),
    "weighted mean": ("KLDivergence", {"reduction": "mean_with_sample_weight"}),
    "sum": ("CategoricalHinge", {"reduction": "sum"}),
}
SHAPE = (3, 7, 7)


def masks(name: str) -> np.ndarray:
    """Return class indices `[N, H, W]`, or one-hot masks `[N, H, W, 3]`."""
    indices = np.random.default_rng(1).integers(0, 3, SHAPE)
    of_indices = name in ("SparseCategoricalCrossentropy", "CategoricalGeneralizedCrossEntropy")
    return indices.astype("int32") if of_indices else np.eye(3)[indices]


def weights_for(name: str) -> np.ndarray:
    """Return a weight for each pixel, or for each image, in float64."""
    shape = SHAPE[:1] if name in ("Dice", "Tversky") else SHAPE
    return np.random.default_rng(2).uniform(0.5, 2.0, shape)


def assert_trains_alike(
    name: str, options: dict[str, Any], weighted: bool = True, fit: bool = False
) -> None:
    """Compare losses and weights after two steps; the loss counts as reported, in the type of Keras' mean."""
    x = np.random.default_rng(0).normal(size=(*SHAPE, 2))
    y, weights = masks(name), weights_for(name) if weighted else None
    activation = None if options.get("from_logits") else "softmax"
    results = []
    for model in both(segmenter, 3, activation):
        # a percentage of a label of zero is in the millions, and so is its gradient
        rate = 1e-9 if name == "MeanAbsolutePercentageError" else 0.1
        model.compile(keras.optimizers.SGD(rate), KINDS[name](**options))
        if fit:
            history = model.fit(x, y, 3, 2, sample_weight=weights, shuffle=False, verbose=0).history
            reported = history["loss"]
        else:
            reported = [model.train_on_batch(x, y, sample_weight=weights) for _ in range(2)]
        results.append((np.float64(reported), model.get_weights()))
    (streamed, new), (plain, expected) = results
    float32_mean = keras.config.floatx() == "float32"
    np.testing.assert_allclose(streamed, plain, rtol=2**-23 if float32_mean else FLOAT64)
    assert_same(new, expected, FLOAT64)


def test_all_are_found() -> None:
    """Keras has 22 losses; one that a new version adds is compared, or fails, in the tests below."""
    assert {"Dice", "Circle", "CategoricalGeneralizedCrossEntropy"} <= set(KINDS)
    assert len(KINDS) >= 22
    assert set(KINDS) >= REFUSED


FAST = {"Tversky"}


@pytest.mark.parametrize(
    "name", [n if n in FAST else slow(n) for n in sorted(set(KINDS) - REFUSED)]
)
def test_every_loss_in_float64(name: str, float64: None) -> None:
    assert_trains_alike(name, {})


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("case", OPTIONS)
def test_options_in_float64(case: str, weighted: bool, float64: None) -> None:
    assert_trains_alike(*OPTIONS[case], weighted)


@pytest.mark.parametrize("fit", [False, slow(True)])
@pytest.mark.parametrize(
    "name", [n if n == "LogCosh" else slow(n) for n in sorted(set(KINDS) - REFUSED)]
)
def test_float64_policy(name: str, fit: bool) -> None:
    """`fit` casts arrays to float32, and `train_on_batch` does not, but `keras.Input` is float32 by default."""
    keras.config.set_dtype_policy("float64")
    assert_trains_alike(name, {"dtype": "float64"}, fit=fit)


def test_float32_loss_of_a_float64_model(float64: None) -> None:
    """Keras rounds each pixel to float32 and adds up in float32, in another order: 147 positive numbers."""
    x, y = np.random.default_rng(0).normal(size=(*SHAPE, 2)), masks("MeanSquaredError")
    reported = []
    for model in both(segmenter, 3, "softmax"):
        model.compile("sgd", keras.losses.MeanSquaredError(dtype="float32"))
        reported.append(float(model.test_on_batch(x, y)))
    assert reported[0] == pytest.approx(reported[1], rel=147 * 2**-24)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_losses_of_batches_are_refused(name: str) -> None:
    """Keras cannot compute them for masks either."""
    x, y = np.zeros((*SHAPE, 2)), masks("Dice")
    streamed, plain = both(segmenter, 3, "softmax")
    streamed.compile("sgd", KINDS[name]())
    with pytest.raises(tfbig.UnsupportedLayerError, match=rf"\({name}\) .* one value per pixel"):
        streamed.train_on_batch(x, y)
    plain.compile("sgd", KINDS[name]())
    with pytest.raises(ValueError, match=r"Dimensions must be equal|Targets `y_true`"):
        plain.train_on_batch(x, y)


@pytest.mark.plain
@pytest.mark.parametrize("channels", [False, True])
def test_indices_without_channels_in_plain_keras(channels: bool, float64: None) -> None:
    """A small image runs in plain Keras, whose generalized crossentropy expects `[N, H, W]`."""
    name = "CategoricalGeneralizedCrossEntropy"
    x, y = np.random.default_rng(0).normal(size=(*SHAPE, 2)), masks(name)
    twin = segmenter(3, "softmax")
    expected = np.float64(KINDS[name]()(y, twin(x, training=False)))
    small = tfbig.stream(twin)
    small.compile("sgd", KINDS[name]())
    result = np.float64(small.test_on_batch(x, y[..., None] if channels else y))
    assert_same(result, expected, FLOAT64)

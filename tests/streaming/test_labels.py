"""Targets and sample weights of all shapes give the losses and metrics of the plain model."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import assert_same
from streamed_pairs import (
    LOSS,
    both,
    classes,
    classifier,
    data,
    images,
    named_maps,
    numbers,
    same_logs,
    segmenter,
    slow,
)

import tfbig


@pytest.mark.slow
def test_labels_need_no_channel_axis(float64: None) -> None:
    x, y = images(2), classes(2, 7, 6)

    def run(model: Any) -> dict[str, Any]:
        loss = keras.losses.SparseCategoricalCrossentropy(name="named")
        model.compile("sgd", loss, metrics=["accuracy"])
        return model.evaluate(x, y, verbose=0, return_dict=True)

    same_logs(both(segmenter, 3, "softmax"), run)


SHAPES = {"image": (3,), "pixel": (3, 7, 6), "pixel and channel": (3, 7, 6, 1)}


WEIGHTED = {
    "mean": (lambda: keras.losses.BinaryCrossentropy(), 1, "sigmoid"),
    "sum": (lambda: keras.losses.MeanSquaredError(reduction="sum"), 2, None),
    "by weights": (
        lambda: keras.losses.CategoricalCrossentropy(True, reduction="mean_with_sample_weight"),
        3,
        None,
    ),
}


def expand_for_plain(weights: np.ndarray) -> np.ndarray:
    """Expand weights for the plain model: Keras multiplies `[N]` with the last axis of `[N, H, W]`."""
    return np.broadcast_to(weights[:, None, None], (3, 7, 6)) if weights.ndim == 1 else weights


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "case"),
    [
        ("image", "mean"),
        ("pixel", "mean"),
        ("pixel and channel", "sum"),
        ("image", "by weights"),
        ("pixel", "by weights"),
    ],
)
def test_sample_weights_of_images(shape: str, case: str, float64: None) -> None:
    make, filters, activation = WEIGHTED[case]
    y = np.eye(3)[classes(3, 7, 6)][..., :filters]
    weights = abs(numbers(*SHAPES[shape], seed=4))

    def run(model: Any) -> dict[str, Any]:
        sample_weight = (
            weights if isinstance(model, tfbig.StreamedModel) else expand_for_plain(weights)
        )
        model.compile(
            keras.optimizers.SGD(1e-3), make(), metrics=["mae"], weighted_metrics=["mse", "acc"]
        )
        logs = [
            model.train_on_batch(images(3), y, sample_weight, return_dict=True) for _ in range(2)
        ]
        model.reset_metrics()
        logs.append(model.test_on_batch(images(3), y, sample_weight, return_dict=True))
        return {f"{name} {i}": v for i, step in enumerate(logs) for name, v in step.items()}

    same_logs(both(segmenter, filters, activation), run)


@pytest.mark.slow
@pytest.mark.parametrize("reduction", [slow("sum_over_batch_size"), "mean_with_sample_weight"])
def test_sample_weights_of_dice_loss(reduction: str, float64: None) -> None:
    """The Dice loss of each image has the weight of the image; metrics are unweighted."""

    def run(model: Any) -> dict[str, Any]:
        loss = keras.losses.Dice(axis=(1, 2, 3), reduction=reduction)
        model.compile(keras.optimizers.SGD(0.5), loss, metrics=["mae"])
        x, y = data(segmenter, 3)
        return model.fit(x, y, sample_weight=np.array([1.0, 0.2, 3.0]), epochs=2, verbose=0).history

    same_logs(both(segmenter), run)


@pytest.mark.slow
def test_sample_weights_of_several_outputs(float64: None) -> None:
    """Each output has its own weights."""
    x, y = data(named_maps, 3)
    weights = {"small": abs(numbers(3, 3, 3)), "wide": abs(numbers(3, 7, 6, seed=1))}

    def run(model: Any) -> dict[str, Any]:
        model.compile("sgd", {"wide": "mse", "small": "mae"}, weighted_metrics={"wide": ["mae"]})
        return model.evaluate(x, y, sample_weight=weights, verbose=0, return_dict=True)

    same_logs(both(named_maps), run)


@pytest.mark.slow
def test_sample_weights_by_handle(float64: None) -> None:
    x, y = images(2), classes(2, 7, 6, 1, count=2).astype("uint8")
    weights = np.random.default_rng(3).integers(0, 4, (2, 7, 6, 1), np.uint8)
    sources = [[tfbig.open(image) for image in batch] for batch in (y, weights)]
    labels, handles = (tf.constant([s.handle for s in each]) for each in sources)
    results = []
    for target, sample_weight in ((y, weights.astype("float64")), (labels, handles)):
        big = both(segmenter)[0]
        big.twin.set_weights([numbers(*w.shape) ** 2 for w in big.get_weights()])
        big.compile("sgd", "binary_crossentropy", weighted_metrics=["accuracy"])
        dataset = tf.data.Dataset.from_tensors((x, target, sample_weight))
        history = big.fit(dataset, shuffle=False, verbose=0).history
        results.append([*history.values(), *big.get_weights()])
    assert_same(*results)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["class_weight", slow("sample_weight")])
def test_sample_and_class_weights_of_vectors(kind: str, float64: None) -> None:
    x, y = data(classifier, 5)
    weights = {
        "class_weight": {0: 0.5, 1: 2.0, 2: 3.0},
        "sample_weight": abs(numbers(5)),
    }[kind]

    def run(model: Any) -> dict[str, Any]:
        model.compile("sgd", LOSS[classifier], weighted_metrics=["accuracy"])
        return model.fit(x, y, batch_size=2, shuffle=False, verbose=0, **{kind: weights}).history

    same_logs(both(classifier), run)


@pytest.mark.parametrize("shape", [(2, 7), (2, 7, 6, 2), (2, 7, 6, 1, 1)])
def test_sample_weights_of_wrong_shape(shape: tuple[int, ...]) -> None:
    big, _ = both(segmenter)
    big.compile("sgd", "mse")
    x, y = data(segmenter, 2)
    message = r"have shape \(2, 7.*expected one per image, \[N\], or one per pixel, \[N, H, W\] or"
    with pytest.raises(ValueError, match=message):
        big.train_on_batch(x, y, np.ones(shape))


def test_pixel_weights_of_ratio_loss_are_an_error() -> None:
    big, _ = both(segmenter)
    big.compile("sgd", keras.losses.Tversky())
    x, y = data(segmenter, 2)
    with pytest.raises(tfbig.UnsupportedLayerError, match=r"'tversky' is computed .* accepts one"):
        big.train_on_batch(x, y, np.ones((2, 7, 6)))


def test_missing_targets_or_loss() -> None:
    big, _ = both(segmenter)
    big.compile("sgd", "mse")
    with pytest.raises(ValueError, match="received no targets; its loss needs them"):
        big.train_on_batch(images(2))
    big, _ = both(segmenter)
    big.compile("sgd")
    with pytest.raises(ValueError, match=r"no loss to train with; pass `loss=` to compile"):
        big.train_on_batch(*data(segmenter, 2))

"""Dice of several classes, against scikit-learn, in strips and in a streamed model."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from sklearn.metrics import f1_score

import tfbig
from tfbig.metrics import ClassDice


def pair(shape: tuple[int, ...] = (2, 5, 6, 7), classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.integers(0, classes, (*shape, 1)), rng.normal(size=(*shape, classes)).astype(
        "float32"
    )


def test_is_the_mean_f1_score_of_the_foreground() -> None:
    labels, logits = pair()
    metric = ClassDice(4)
    metric.update_state(labels, logits)
    scores = f1_score(labels.ravel(), logits.argmax(-1).ravel(), labels=[1, 2, 3], average=None)
    assert float(metric.result()) == pytest.approx(scores.mean(), rel=1e-6)
    strips = ClassDice(4)
    for row in range(5):
        strips.update_state(labels[:, row : row + 1].astype("float32"), logits[:, row : row + 1])
    np.testing.assert_array_equal(strips.counts, metric.counts)
    assert ClassDice.from_config(metric.get_config()).classes == 4


def test_classes_that_do_not_occur() -> None:
    labels, predicted = np.array([[0, 1, 1, 0]]), np.eye(4)[[[0, 1, 0, 0]]]
    metric = ClassDice(4)
    assert float(metric.result()) == 1.0
    metric.update_state(labels, predicted)
    assert float(metric.result()) == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="does not support sample weights"):
        metric.update_state(labels, predicted, 1)
    with pytest.raises(ValueError, match="classes is 1, expected 2 or more"):
        ClassDice(1)


@pytest.mark.slow
def test_streamed_equals_plain() -> None:
    labels, _ = pair()
    inputs = keras.Input((None, None, None, 2))
    model = keras.Model(inputs, keras.layers.Conv3D(4, 3, padding="same")(inputs))
    x = np.random.default_rng(1).integers(-3, 4, (2, 5, 6, 7, 2)).astype("float32")
    big = tfbig.stream(model, strip_rows=2)
    results = []
    for each in (model, big):
        each.compile(
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[ClassDice(4)],
        )
        results.append(each.evaluate(x, labels, verbose=0, return_dict=True)["dice"])
    assert results[0] == results[1]

"""A loss of sums: plain, and streamed on strips of one row."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from exactness import FLOAT64, assert_same
from keras import ops
from streamed_pairs import slow

import tfbig


class Contrast(tfbig.losses.LossOfSums):
    """Squared mean error of each image over its mean squared label."""

    def sums(self, y_true: Any, y_pred: Any) -> tuple[Any, ...]:
        axes = tuple(range(1, len(y_pred.shape)))
        return ops.sum(y_pred - y_true, axes), ops.sum(y_true**2, axes)

    def of_sums(self, sums: tuple[Any, ...]) -> Any:
        return sums[0] ** 2 / sums[1]


class OwnCall(Contrast):
    def call(self, y_true: Any, y_pred: Any) -> Any:
        return 2 * super().call(y_true, y_pred)


def model() -> keras.Model:
    keras.utils.set_random_seed(0)
    image = keras.Input((None, None, 2))
    return keras.Model(image, keras.layers.Conv2D(2, 3, padding="same")(image))


def test_value() -> None:
    y, p = np.array([[[1.0]], [[2.0]]]), np.array([[[3.0]], [[5.0]]])
    assert float(Contrast()(y, p)) == (2**2 / 1 + 3**2 / 4) / 2


@pytest.mark.parametrize(
    "reduction", [slow("sum"), slow("sum_over_batch_size"), "mean_with_sample_weight"]
)
def test_streamed_equals_plain(reduction: str, float64: None) -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(3, 5, 4, 2)), random.normal(size=(3, 5, 4, 2))
    results = []
    for each in (tfbig.stream(model(), strip_rows=1), model()):
        each.compile(keras.optimizers.SGD(0.01), Contrast(reduction=reduction))
        weights = np.array([1.0, 0.5, 3.0])
        losses = [np.float64(each.train_on_batch(x, y, weights)) for _ in range(2)]
        results.append([*losses, *each.get_weights()])
    assert_same(*results, FLOAT64)


def test_own_call_is_refused() -> None:
    big = tfbig.stream(model(), strip_rows=1)
    big.compile("sgd", OwnCall())
    x = np.ones((1, 5, 4, 2), "float32")
    with pytest.raises(tfbig.UnsupportedLayerError, match=r"or a tfbig\.losses\.LossOfSums"):
        big.train_on_batch(x, x)

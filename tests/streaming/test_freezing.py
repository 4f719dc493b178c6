"""`trainable = False` between `compile` and a later step: a streamed model freezes at once, as Keras does eagerly."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from exactness import FLOAT64, assert_same
from streamed_pairs import both, data, segmenter, slow

import tfbig

FROZEN = ["first", "norm", "model"]


def freeze(model: Any, name: str) -> None:
    (model if name == "model" else model.get_layer(name)).trainable = False


def train(model: Any, way: str) -> None:
    x, y = data(segmenter, 4)
    if way == "fit":
        model.fit(x, y, batch_size=4, verbose=0)
    else:
        model.train_on_batch(x, y)


def compiled(model: Any, **options: Any) -> Any:
    model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", **options)
    return model


def assert_freezes_like_eager_keras(streamed: Any, plain: Any, name: str, way: str) -> None:
    """Compare weights after a step, after a step with frozen weights, and after another one."""
    compiled(plain, run_eagerly=True)
    compiled(streamed)
    for step in range(3):
        for model in (streamed, plain):
            if step:
                getattr(model, "twin", model).trainable = True
                freeze(getattr(model, "twin", model), name)
            train(model, way)
        assert_same(streamed.get_weights(), plain.get_weights(), FLOAT64)


@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights")
@pytest.mark.parametrize("way", ["batch", slow("fit")])
@pytest.mark.parametrize("name", [slow("first"), "norm", slow("model")])
def test_freezes_at_once(name: str, way: str, float64: None) -> None:
    """A frozen BatchNormalization uses its moving statistics, which stay."""
    assert_freezes_like_eager_keras(*both(segmenter), name, way)


@pytest.mark.plain
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights")
@pytest.mark.parametrize("name", FROZEN)
def test_small_images_freeze_at_once(name: str, float64: None) -> None:
    streamed, plain = both(segmenter)
    assert_freezes_like_eager_keras(tfbig.stream(streamed.twin), plain, name, "batch")


@pytest.mark.slow
def test_traced_keras_freezes_with_the_next_trace() -> None:
    """Why a streamed model, whose images have many sizes, does not do the same: each size is traced by itself."""
    x, y = (array.astype("float32") for array in data(segmenter, 4))
    model = compiled(both(segmenter)[1])
    model.train_on_batch(x, y)
    freeze(model, "first")

    def moves(images: Any, labels: Any) -> bool:
        before = model.get_layer("first").get_weights()
        model.train_on_batch(images, labels)
        after = model.get_layer("first").get_weights()
        return any(np.any(a != b) for a, b in zip(before, after, strict=True))

    assert moves(x, y)  # the traced step goes on
    assert not moves(x[:, :6], y[:, :6])  # another size is traced, with the frozen layer
    assert moves(x, y)

"""Targets and sample weights of another size than their output are refused before a step runs."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers
from streamed_pairs import both, same_logs, segmenter

import tfbig

X = np.random.default_rng(0).normal(size=(3, 8, 6, 1))
Y = {"mask": np.ones((3, 8, 6, 1)), "label": np.ones((3, 1))}
WEIGHTS = np.array([1.0, 0.2, 3.0])


def mask_and_label() -> keras.Model:
    image = keras.Input((None, None, 1))
    x = layers.Conv2D(3, 3, padding="same")(image)
    mask = layers.Conv2D(1, 1, activation="sigmoid", name="mask")(x)
    label = layers.Dense(1, activation="sigmoid", name="label")(layers.GlobalAveragePooling2D()(x))
    return keras.Model(image, {"mask": mask, "label": label})


@pytest.mark.slow
@pytest.mark.parametrize("weights", [WEIGHTS, {"mask": WEIGHTS, "label": WEIGHTS}])
def test_one_weight_for_each_image_with_a_mask_and_a_label(weights: Any, float64: None) -> None:
    """Results are those of plain Keras with the weight of an image at each of its pixels."""
    pixels = np.broadcast_to(WEIGHTS[:, None, None], (3, 8, 6))

    def run(model: Any) -> dict[str, Any]:
        loss = {"mask": "mse", "label": "binary_crossentropy"}
        model.compile(keras.optimizers.SGD(0.1), loss)
        streams = isinstance(model, tfbig.StreamedModel)
        given = weights if streams else {"mask": pixels, "label": WEIGHTS}
        return model.fit(X, Y, sample_weight=given, epochs=2, verbose=0).history

    same_logs(both(mask_and_label), run)


@pytest.mark.parametrize(
    ("y", "weights", "message"),
    [
        (
            Y | {"mask": np.ones((3, 7, 6, 1))},
            None,
            r"output 'mask.*: targets have shape \(3, 7, 6, 1\); expected \[3, 8, 6, C\]",
        ),
        (Y | {"label": np.ones((2, 1))}, None, r"output 'label': targets have shape \(2, 1\)"),
        (
            Y,
            {"mask": np.ones((3, 7, 6)), "label": WEIGHTS},
            r"output 'mask.*: sample weights have shape \(3, 7, 6\); expected \[3, 8, 6, 1\], or \[3\], one for each",
        ),
        (Y, WEIGHTS[:2], r"sample weights have shape \(2,\); expected \[3"),
    ],
)
def test_other_sizes_with_a_mask_and_a_label(y: Any, weights: Any, message: str) -> None:
    model = tfbig.stream(mask_and_label(), strip_rows=4)
    model.compile("sgd", {"mask": "mse", "label": "mse"})
    with pytest.raises(ValueError, match=message):
        model.train_on_batch(X, y, weights)


def test_other_sizes_of_masks() -> None:
    model = tfbig.stream(segmenter(), strip_rows=3)
    model.compile("sgd", "mse")
    x = np.zeros((1, 8, 6, 2))
    with pytest.raises(
        ValueError, match=r"targets have shape \(1, 6, 6, 1\); expected \[1, 8, 6, C\]"
    ):
        model.train_on_batch(x, np.ones((1, 6, 6)))
    small = tfbig.open(np.zeros((8, 5, 1), "float32"))
    with small.lent() as handle, pytest.raises(ValueError, match=r"shape \(1, 8, 5, 1\)"):
        model.train_on_batch(x, np.array([handle]))
    with pytest.raises(ValueError, match=r"sample weights have shape \(1, 8, 5, 1\)"):
        model.train_on_batch(x, np.ones((1, 8, 6, 1)), np.ones((1, 8, 5)))

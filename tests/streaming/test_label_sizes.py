"""Targets and sample weights of another size than their output are refused before a step runs."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from streamed_pairs import both, same_logs, segmenter

import tfbig
from tfbig.streaming import label_sizes

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


def rest_in_keras(label: bool) -> tfbig.StreamedModel:
    """A model whose last layers run on whole tensors: a mask of twice the size, or a label."""
    image = keras.Input((None, None, 1))
    x = layers.Conv2D(2, 3, padding="same", name="front")(image)
    mask = layers.Conv2DTranspose(1, 2, strides=2, name="last")(x)
    twin = keras.Model(
        image, layers.Dense(1, name="last")(layers.GlobalMaxPooling2D()(x)) if label else mask
    )
    model = tfbig.stream(twin, upto="front", strip_rows=3)
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize("size", [(3, 15, 12), (3, 16, 11), (1, 16, 12), (3, 1, 12), (3, 16, 1)])
def test_other_sizes_after_the_last_layer_that_streams(size: tuple[int, ...]) -> None:
    """Targets of length 1, which plain Keras repeats, are refused too."""
    message = rf"output 'last': targets have shape \({', '.join(map(str, size))}, 1\); expected \["
    model = rest_in_keras(label=False)
    with pytest.raises(ValueError, match=message + r"3, 16, 12, C\]"):
        model.train_on_batch(X, np.ones((*size, 1)))
    with pytest.raises(ValueError, match=message):
        model.test_on_batch(X, np.ones((*size, 1)))
    model.train_on_batch(X, np.ones((3, 16, 12, 1)))


def test_other_numbers_of_labels_after_the_last_layer_that_streams() -> None:
    model = rest_in_keras(label=True)
    for count in (1, 2):
        with pytest.raises(ValueError, match=rf"shape \({count}, 1\); expected \[3, C\]"):
            model.train_on_batch(X, np.ones((count, 1)))
    with pytest.raises(ValueError, match=r"sample weights have shape \(2,\); expected \[3"):
        model.train_on_batch(X, np.ones((3, 1)), np.ones(2))
    model.train_on_batch(X, np.ones((3, 1)), WEIGHTS)


def test_other_numbers_of_labels_of_bags() -> None:
    encoder = tfbig.models.encoders.make("small", (32, 32, 3), latent=8)
    model = tfbig.mil.MIL(encoder, tfbig.mil.ABMIL(classes=2), instances_at_once=2)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    bag = np.zeros((1, 3, 32, 32, 3), "uint8")
    with pytest.raises(ValueError, match=r"targets have shape \(2,\); expected \[1, C\]"):
        model.train_on_batch(bag, np.array([0, 1]))
    model.train_on_batch(bag, np.array([1]))


def test_lengths_that_are_not_known_are_not_compared() -> None:
    output = label_sizes.Output("mask", (2, None, 6))
    targets = [tf.TensorSpec(shape) for shape in ([2, 7, 6, 1], [None, 9, 6, 1], None)]
    label_sizes.check("m", [output], [(0, each, None) for each in targets])
    with pytest.raises(ValueError, match=r"shape \(2, 7, 5, 1\); expected \[2, \?, 6, C\]"):
        label_sizes.check("m", [output], [(0, tf.TensorSpec([2, 7, 5, 1]), None)])
    model = tfbig.stream(segmenter(), strip_rows=3)
    graph = model._programs.read(training=True)
    (found,) = label_sizes.outputs_of_graph(graph, [tf.TensorSpec([4, None, 6, 2])])
    assert found.size == (4, None, None)
    assert label_sizes.outputs_of_graph(graph, [tf.TensorSpec(None)]) == []

"""Class weights of masks equal the weights of their pixels in plain Keras."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same
from streamed_pairs import both, classes, images, same_logs, segmenter, slow

import tfbig

WEIGHTS = {0: 0.5, 1: 3.0}
"""By class; the third has none, so its weight is 1."""
FORMS = {
    "indices": lambda y: y,
    "one channel": lambda y: y[..., None],
    "float": lambda y: y[..., None].astype("float32"),
    "one-hot": lambda y: np.eye(3)[y],
}


def pair(y: np.ndarray) -> tuple[Any, Any]:
    kind = "categorical" if y.shape[-1] == 3 else "sparse_categorical"
    models = both(segmenter, 3, "softmax")
    for model in models:
        model.compile(keras.optimizers.SGD(0.1), f"{kind}_crossentropy", weighted_metrics=["acc"])
    return models


def maps(y: np.ndarray) -> np.ndarray:
    return np.choose(y, [0.5, 3.0, 1.0])


@pytest.mark.parametrize(
    "way", [slow("arrays"), slow("split"), slow("positions"), "dataset", slow("batch")]
)
@pytest.mark.parametrize("form", [slow("indices"), slow("one channel"), slow("float"), "one-hot"])
def test_equal_the_weights_of_pixels(form: str, way: str, float64: None) -> None:
    """`validation_split` holds out images whose pixels count alike."""
    x, y = images(4), classes(4, 7, 6)
    labels = FORMS[form](y)
    split = {"validation_split": 0.25} if way == "split" else {}

    def run(model: Any) -> dict[str, Any]:
        if model is streamed and way == "batch":
            return model.train_on_batch(x, labels, class_weight=WEIGHTS, return_dict=True)
        if model is streamed and way == "positions":
            settings = (2, 1, 0, None, 0.0, None, False, WEIGHTS)
            return model.fit(x, labels, *settings).history
        if model is streamed and way == "dataset":
            data = tf.data.Dataset.from_tensor_slices((x, labels)).batch(2)
            return model.fit(data, class_weight=WEIGHTS, verbose=0).history
        if model is streamed:
            return model.fit(
                x, labels, 2, class_weight=WEIGHTS, shuffle=False, verbose=0, **split
            ).history
        if way == "batch":
            return model.train_on_batch(x, labels, maps(y), return_dict=True)
        if way == "split":
            held_out = x[3:], labels[3:]
            return model.fit(
                *(x[:3], labels[:3], 2),
                sample_weight=maps(y)[:3],
                validation_data=held_out,
                shuffle=False,
                verbose=0,
            ).history
        return model.fit(x, labels, 2, sample_weight=maps(y), shuffle=False, verbose=0).history

    streamed, plain = pair(labels)
    same_logs((streamed, plain), run)


@pytest.mark.plain
def test_of_small_images_in_plain_keras(float64: None) -> None:
    x, y = images(4), classes(4, 7, 6)
    streamed, plain = pair(y)
    small = tfbig.stream(streamed.twin)
    small.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    plain.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    small.fit(x, y, 4, class_weight=WEIGHTS, shuffle=False, verbose=0)
    plain.fit(x, y, 4, sample_weight=maps(y), shuffle=False, verbose=0)
    assert_same(small.get_weights(), plain.get_weights(), FLOAT64)


class Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return images(4), classes(4, 7, 6)


def test_what_is_refused() -> None:
    """Labels behind handles, and datasets of other data than one mask."""
    x, y = images(4), classes(4, 7, 6)
    model, _ = pair(y)
    sources = [tfbig.open(mask[..., None].astype("uint8")) for mask in y]
    handles = tf.constant([source.handle for source in sources])
    with pytest.raises(ValueError, match=r"labels behind handles.* Pass sample_weight instead"):
        model.train_on_batch(x, handles, class_weight=WEIGHTS)
    with pytest.raises(ValueError, match=r"labels behind handles.* Pass sample_weight instead"):
        model.fit(x, handles, class_weight=WEIGHTS, verbose=0)
    data = tf.data.Dataset.from_tensors((x, handles))
    with pytest.raises(ValueError, match=r"labels behind handles"):
        model.fit(data, class_weight=WEIGHTS, verbose=0)
    weighted = tf.data.Dataset.from_tensors((x, y, maps(y)))
    with pytest.raises(ValueError, match="received sample weights too"):
        model.fit(weighted, class_weight=WEIGHTS, verbose=0)
    with pytest.raises(ValueError, match="masks from a PyDataset"):
        model.fit(Batches(), class_weight=WEIGHTS, verbose=0)
    with pytest.raises(ValueError, match=r"`sample_weight`"):
        model.fit(x, y, sample_weight=maps(y), class_weight=WEIGHTS, verbose=0)
    with pytest.raises(ValueError, match=r"`sample_weight`"):
        model.train_on_batch(x, y, maps(y), WEIGHTS)

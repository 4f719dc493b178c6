"""Predictions of sources, and predictions written to files, equal those of arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import assert_same
from streamed_pairs import both, classifier, photographs, scaled, segmenter, two_maps

import tfbig


@pytest.mark.slow
def test_handles_equal_arrays() -> None:
    x, y = photographs(4)
    sources = [[tfbig.open(image) for image in images] for images in (x, y)]
    handles = tuple(tf.constant([s.handle for s in each]) for each in sources)
    model = scaled()
    start, results = model.get_weights(), []
    for data in ((x, y), handles):
        model.set_weights(start)
        big = tfbig.stream(model, strip_rows=3)
        big.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", metrics=["accuracy"])
        dataset = tf.data.Dataset.from_tensor_slices(data).batch(2)
        logs = big.fit(dataset, epochs=2, shuffle=False, verbose=0).history
        evaluated = big.evaluate(dataset, verbose=0, return_dict=True)
        predicted = big.predict(dataset.map(lambda x, y: x), verbose=0)
        results.append([logs, evaluated, predicted, *model.get_weights()])
    assert_same(*results)


def test_predict_to_equals_predict(tmp_path: Any) -> None:
    (x,), _ = photographs(1)
    np.save(tmp_path / "image.npy", x)
    big = tfbig.stream(scaled(3), strip_rows=2)
    expected = big.predict(x[None], verbose=0)[0]
    for image in (x, tfbig.open(x), str(tmp_path / "image.npy")):
        written = big.predict_to(image, str(tmp_path / "prediction.npy"))
        assert (written.shape, written.dtype) == ((11, 9, 3), "float32")
        assert_same(np.load(tmp_path / "prediction.npy"), expected)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["image.npy", "prediction.npy"]
    assert_same(expected, scaled_prediction(big, x), 2.0**-20)  # a sum of 36 products in float32


def scaled_prediction(big: Any, image: np.ndarray) -> np.ndarray:
    return big.twin.predict(image[None], verbose=0)[0]


@pytest.mark.parametrize("dtype", [None, "float16"])
def test_convert_predictions(dtype: str | None, tmp_path: Path) -> None:
    big, twin = both(segmenter)
    x = np.random.default_rng(0).integers(0, 255, (9, 6, 2)).astype("uint8")
    convert = None if dtype is None else lambda rows: rows.astype(dtype)
    written = big.predict_to(x, str(tmp_path / "y.npy"), convert)
    expected = twin(x[None].astype("float32")).numpy()[0].astype(dtype or "float32")
    assert written.dtype == expected.dtype
    assert_same(np.load(tmp_path / "y.npy"), expected, 2e-3 if dtype else 1e-5)
    best = big.predict_to(x, str(tmp_path / "z.npy"), lambda rows: rows.argmax(2)[..., None])
    assert best.shape == (*expected.shape[:2], 1)
    np.testing.assert_array_equal(best.read(0, 9), written.read(0, 9).argmax(2)[..., None])


@pytest.mark.parametrize("build", [classifier, two_maps])
def test_predict_to_needs_one_image_output(build: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="predict_to expects one image"):
        both(build)[0].predict_to(np.zeros((7, 6, 2), np.uint8), str(tmp_path / "y.npy"))

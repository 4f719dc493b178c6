"""PatchGD for masks: equal to plain training with all patches; Z and the mask are filled as in appendix E."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same
from keras import layers, ops

import tfbig
from tfbig import SourceError
from tfbig.patchgd import PatchGDSegmentation
from tfbig.patchgd.segmentation import Mask, Windows, assembled

PATCH = 4


def encoder(vector: bool = False) -> keras.Model:
    """Return an encoder of patches of 4 x 4 to maps of 2 x 2, or to codes."""
    keras.utils.set_random_seed(3)
    patch = keras.Input((PATCH, PATCH, 2))
    x = ops.tanh(layers.Conv2D(5, 2, 2)(patch))
    return keras.Model(patch, layers.Dense(3)(layers.Flatten()(x)) if vector else x, name="encoder")


def decoder(context: int = 0, vector: bool = False) -> keras.Model:
    keras.utils.set_random_seed(4)
    across = 1 + 2 * context
    if vector:
        window = keras.Input((across, across, 3))
        x = layers.Conv2DTranspose(4, PATCH, PATCH)(window)
    else:
        window = keras.Input((2 * across, 2 * across, 5))
        x = layers.Conv2DTranspose(4, 3, 2, padding="same")(window)
    x = layers.Conv2D(1, 3, padding="same", activation="sigmoid")(ops.tanh(x))
    return keras.Model(window, x, name="decoder")


def data(count: int = 4, rows: int = 12, columns: int = 16) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(count, rows, columns, 2))
    return x.astype(keras.config.floatx()), (x[..., :1] > 0).astype(keras.config.floatx())


def make(context: int = 0, vector: bool = False, **options: Any) -> PatchGDSegmentation:
    return PatchGDSegmentation(
        encoder(vector), decoder(context, vector), PATCH, context=context, **options
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("context", "vector", "fill_mask"),
    [
        (1, False, True),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [(0, True, False), (0, False, True), (1, True, True), (1, False, False)]
        ),
    ],
)
def test_all_patches_equal_plain_training(
    context: int, vector: bool, fill_mask: bool, float64: None
) -> None:
    x, y = data()
    model = make(context, vector, sampling=1.0, fill_mask=fill_mask)
    plain = make(context, vector).twin
    losses = []
    for each in (model, plain):
        each.compile("adam", "binary_crossentropy", metrics=["mae"], run_eagerly=each is plain)
        logs = each.fit(x, y, batch_size=2, epochs=2, shuffle=False, verbose=0).history
        losses.append((logs["loss"], each.evaluate(x, y, verbose=0)[0]))
    assert_same(losses[0], losses[1], FLOAT64)
    variables = [v.numpy() for v in model.trainable_variables]
    assert_same(variables, [v.numpy() for v in plain.trainable_variables], FLOAT64)
    assert_same(model.predict(x, verbose=0), plain.predict(x, verbose=0), FLOAT64)


@pytest.mark.parametrize("fill_mask", [True, False])
def test_eager_steps_with_context(fill_mask: bool) -> None:
    """The decoder is never called without patches, which Conv2DTranspose refuses in float32."""
    x, y = data(2)
    model = make(1, sampling=4, fill_mask=fill_mask)
    model.compile("sgd", "binary_crossentropy", run_eagerly=True)
    assert model.train_on_batch(x, y) > 0


@pytest.mark.slow
def test_loss_of_the_whole_mask(float64: None) -> None:
    """Dice is not a sum over pixels; the filled mask has all of them."""
    x, y = data()
    models = [make(1, sampling=1.0), make(1).twin]
    for model in models:
        model.compile("sgd", keras.losses.Dice(), run_eagerly=model is models[1])
        model.fit(x, y, batch_size=2, shuffle=False, verbose=0)
    weights = [[v.numpy() for v in model.trainable_variables] for model in models]
    assert_same(weights[0], weights[1], FLOAT64)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [0.25, 5])
def test_scale(sampling: Any, float64: None) -> None:
    """The unbiased gradient of a mean over pixels is exact without context, the published one is one share of it.

    Compared by the weights after one step of SGD.
    """
    x, y = data()
    moved = {}
    for name, options in {
        "unbiased": {"sampling": sampling, "scale": "unbiased", "accumulate": None},
        "published": {"sampling": sampling, "accumulate": None},
        "exact": {"sampling": 1.0},
    }.items():
        model = make(**options)
        before = [v.numpy() for v in model.trainable_variables]
        model.compile(keras.optimizers.SGD(1.0), "mse", run_eagerly=True)
        model.train_on_batch(x, y)
        moved[name] = [
            v.numpy() - b for v, b in zip(model.trainable_variables, before, strict=True)
        ]
    num_sets = {0.25: 4, 5: 3}[sampling]
    assert_same(moved["unbiased"], moved["exact"], FLOAT64)
    assert_same(moved["published"], [m / num_sets for m in moved["exact"]], FLOAT64)


def test_windows() -> None:
    z = np.arange(2 * 3 * 4 * 2 * 2 * 1.0).reshape(2, 3, 4, 2, 2, 1)
    image = np.moveaxis(z, 3, 2).reshape(2, 6, 8, 1)  # cells and maps as one map
    padded = np.pad(image, ((0, 0), (2, 2), (2, 2), (0, 0)))
    windows = Windows(tf.constant(z), 2, 1).take(tf.constant([[0, 5, 11], [3, 6, 6]]))
    assert windows.shape == (2, 3, 6, 6, 1)
    for n, indices in enumerate([[0, 5, 11], [3, 6, 6]]):
        for k, place in enumerate(indices):
            row, column = 2 * (place // 4), 2 * (place % 4)
            expected = padded[n, row : row + 6, column : column + 6]
            np.testing.assert_array_equal(windows[n, k], expected)


@pytest.mark.parametrize(
    ("cells", "patch"), [((3, 4), (2, 5)), ((6,), (3,)), ((2, 3, 2), (2, 1, 3))]
)
def test_assembled(cells: Any, patch: Any) -> None:
    extents = [n * size for n, size in zip(cells, patch, strict=True)]
    image = np.random.default_rng(0).normal(size=(2, *extents, 3))
    grid = tfbig.patchgd.patch_reader.PatchReader(tf.constant(image), patch, patch, 3)
    indices = tf.tile(tf.range(grid.count)[None], [2, 1])
    np.testing.assert_array_equal(assembled(grid.take(indices), cells, patch), image)


@pytest.mark.slow
@pytest.mark.parametrize("fill_mask", [True, False])
def test_learning_from_a_quarter_of_the_patches(fill_mask: bool) -> None:
    x, y = data(16)
    keras.utils.set_random_seed(0)
    model = make(1, accumulate=2, fill_mask=fill_mask, filling_norm="frozen", patches_at_once=8)
    model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=["accuracy"])
    model.fit(x, y, batch_size=4, epochs=15, verbose=0)
    assert model.evaluate(x, y, verbose=0)[1] > 0.85


@pytest.mark.slow
def test_handles_and_files(float64: None, tmp_path: Any) -> None:
    """Images and labels by handle train as tensors do; a prediction in a file equals the one in memory."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 3, (2, 12, 16, 2), np.uint8)
    y = rng.integers(0, 2, (2, 12, 16, 1), np.uint8)
    held = [[tfbig.open(image) for image in images] for images in (x, y)]
    handles = [np.array([s.handle for s in images]) for images in held]
    results = []
    for inputs in ((x.astype(float), y), handles):
        for fill_mask in (True, False):
            model = make(1, sampling=3, fill_mask=fill_mask, seed=1)
            by_handle = inputs is handles
            options = {"metrics": ["mae"], "run_eagerly": not by_handle}
            model.compile("sgd", "binary_crossentropy", **options)
            dataset = tf.data.Dataset.from_tensor_slices(tuple(inputs)).batch(2)
            logs = model.fit(dataset, shuffle=False, verbose=0).history
            results.append((logs, model.evaluate(dataset, verbose=0), model.get_weights()))
    assert_same(results[:2], results[2:], FLOAT64)
    written = model.predict_to(held[0][0], tmp_path / "mask.npy")
    expected = model(x[:1].astype(float))[0]
    assert_same(written.read(0, 12), expected.numpy(), FLOAT64)


@pytest.mark.slow
def test_saving_and_resuming(tmp_path: Any) -> None:
    x, y = data()
    model = make(1, sampling=3, accumulate=None, scale="unbiased")
    model.compile("adam", "mse")
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_same(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
    for each in (model, loaded):
        each.fit(x, y, shuffle=False, verbose=0)
    assert_same(loaded.get_weights(), model.get_weights())
    model.twin.save(tmp_path / "plain.keras")
    plain = keras.models.load_model(tmp_path / "plain.keras")
    assert_same(plain.predict(x, verbose=0), model.predict(x, verbose=0), 1e-6)


def test_images_that_are_not_multiples_of_the_patch() -> None:
    model = make()
    with pytest.raises(
        SourceError, match=r"the image has size \(10, 16\); expected a multiple of the patch"
    ):
        model(np.zeros((1, 10, 16, 2), "float32"))
    source = tfbig.open(np.zeros((12, 15, 2), np.uint8))
    with pytest.raises(
        SourceError, match=r"array: the image has size \(12, 15\); expected a multiple"
    ):
        model(tf.constant([source.handle]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": "attention"}, "choose 'shuffle' or 'replacement'"),
        ({"filling_norm": "none"}, "one of 'published', 'frozen'"),
        ({"scale": "exact"}, "expected one of 'published', 'unbiased'"),
        ({"inner_steps": 0}, "inner_steps=0"),
    ],
)
def test_invalid_settings(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_decoder_with_other_windows() -> None:
    with pytest.raises(
        ValueError, match=r"decoder 'decoder' returns \(4, 4\) for windows \(2, 2\)"
    ):
        Mask(decoder(), (PATCH, PATCH), 1)

"""Background that is not computed: results equal those of plain Keras on the whole image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same
from keras import layers
from skipped_background import Skipping, image_of, mask_of, projected, small_tiles
from small_networks import (
    decoder,
    normalisations,
    resampling,
    signal,
    statistics,
    volume,
    windows,
)
from streamed_pairs import slow

import tfbig
from tfbig.layers import AttentionPooling
from tfbig.plan import search
from tfbig.sources import Masked

MODELS: dict[Callable[[], keras.Model], tuple[tuple[int, ...], int]] = {
    windows: ((301, 283), 4),
    resampling: ((61, 70), 3),
    normalisations: ((50, 43), 4),
    statistics: ((50, 43), 4),
    decoder: ((160, 192), 1),
    volume: ((80, 64, 4), 2),  # volumes are cut along their longest axis
    signal: ((200,), 2),
}


@pytest.fixture
def skipping(monkeypatch: pytest.MonkeyPatch) -> Skipping:
    return small_tiles(monkeypatch)


def results(model: Any, x: Any, weights: Any) -> tuple[Any, Any]:
    """Return outputs in training, and the gradients of the weights for random gradients of the outputs."""
    values = [v._value for v in weights]
    with tf.GradientTape() as tape:
        outputs = model(x, training=True)
        flat = tf.nest.flatten(outputs)
        random = np.random.default_rng(3)
        total = tf.add_n([tf.reduce_sum(t * random.normal(size=t.shape)) for t in flat])
    return outputs, tape.gradient(total, values)


def assert_exact(build: Callable[[], keras.Model], x: np.ndarray, **options: Any) -> None:
    """Assert that outputs, gradients and moving statistics are those of the plain model."""
    model, twin = build(), build()
    twin.set_weights(model.get_weights())
    big = tfbig.stream(model, **options)
    image = tf.constant(x)
    actual = results(big, image, model.trainable_variables)
    assert_same(actual, results(twin, image, twin.trainable_variables), FLOAT64)
    for first, second in zip(model.weights, twin.weights, strict=True):
        assert_same(first.numpy(), second.numpy(), FLOAT64)


@pytest.mark.parametrize("build", [b if b is statistics else slow(b) for b in MODELS])
@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_outputs_and_gradients(
    build: Callable[[], keras.Model], batch: int, skipping: Skipping, float64: None
) -> None:
    size, channels = MODELS[build]
    mask = mask_of(size, seed=1)
    skipping.known[size] = projected(mask)
    assert_exact(build, image_of(mask, channels, batch))
    assert min(skipping.active()) < 0.9


def classifier() -> keras.Model:
    x = start = keras.Input((None, None, 3))
    for filters, strides in ((6, 2), (8, 2)):
        x = layers.Conv2D(filters, 3, strides, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization(momentum=0.8)(x))
    y = layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same", use_bias=False)(x))
    pooled = layers.GlobalAveragePooling2D()(layers.ReLU()(layers.Add()([x, y])))
    return keras.Model(start, layers.Dense(2)(pooled))


def segmenter() -> keras.Model:
    x = start = keras.Input((None, None, 3))
    skip = layers.ReLU()(layers.Conv2D(4, 3, padding="same")(x))
    x = layers.BatchNormalization()(layers.Conv2D(6, 3, strides=2, padding="same")(skip))
    x = layers.Conv2DTranspose(4, 2, strides=2)(layers.ReLU()(x))
    x = layers.Concatenate()([x, skip])
    return keras.Model(start, layers.Conv2D(1, 3, padding="same", activation="sigmoid")(x))


def slides(masks: list[np.ndarray]) -> tuple[list[Masked], np.ndarray]:
    """Return masked images as sources, and their pixels."""
    sources = []
    for seed, mask in enumerate(masks):
        noise = np.random.default_rng(seed).normal(size=(*mask.shape, 3))
        sources.append(tfbig.masked(tfbig.open(noise), mask, (0.5, -0.25, 0.75), cell=2))
    return sources, np.stack([s.read(0, s.shape[0]) for s in sources])


def train_both(
    build: Callable[[], keras.Model],
    sources: list[tfbig.Source],
    pixels: np.ndarray,
    labels: np.ndarray,
    loss: Any,
    metrics: Any = (),
    **options: Any,
) -> Any:
    """Train a streamed model on handles and its twin on pixels, assert that they stay equal, and return the first."""
    model, twin = build(), build()
    twin.set_weights(model.get_weights())
    big = tfbig.stream(model, source_dtype="float64", **options)
    for each in (big, twin):
        each.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=list(metrics))
    handles = np.array([s.handle for s in sources])
    for _ in range(2):
        actual = big.train_on_batch(handles, labels, return_dict=True)
        expected = twin.train_on_batch(pixels, labels, return_dict=True)
        for name, value in expected.items():
            np.testing.assert_allclose(actual[name], value, rtol=1e-9, err_msg=name)
    for first, second in zip(model.weights, twin.weights, strict=True):
        assert_same(first.numpy(), second.numpy(), FLOAT64)
    return big


def plan_of(build: Callable[[], keras.Model], image: tfbig.Source, **options: Any) -> tfbig.Plan:
    """Return the plan of a training step on an image."""
    big = tfbig.stream(build(), source_dtype="float64", **options)
    big.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    return big.plan(image)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_training_on_slides(batch: int, skipping: Skipping, float64: None) -> None:
    sources, pixels = slides([mask_of((120, 100), seed) for seed in range(batch)])
    train_both(classifier, sources, pixels, np.ones((batch, 2)), "mse")
    assert min(skipping.active()) < 0.9


@pytest.mark.slow
@pytest.mark.parametrize("counts", [True, False], ids=["counted", "left out"])
def test_attention_over_the_background(counts: bool, skipping: Skipping, float64: None) -> None:
    """Background is one pixel that counts as often as it occurs, or has weight 0."""

    def attention() -> keras.Model:
        image = keras.Input((None, None, 3))
        x = layers.Conv2D(6, 3, 2, padding="same")(image)
        x = layers.ReLU()(layers.BatchNormalization()(x))
        if counts:
            return keras.Model(image, layers.Dense(2)(AttentionPooling(4)(x)))
        weights = keras.Input((None, None, 1))
        small = layers.MaxPooling2D(2, padding="same")(weights)
        pooled = AttentionPooling(4)([x, small])
        return keras.Model([image, weights], layers.Dense(2)(pooled))

    sources, pixels = slides([mask_of((120, 100), seed) for seed in range(2)])
    masks = [s.weights for s in sources]
    model, twin = attention(), attention()
    twin.set_weights(model.get_weights())
    big = tfbig.stream(model, source_dtype="float64")
    handles = tf.constant([s.handle for s in sources])
    ones = np.stack([m.read(0, 120) for m in masks]).astype("float64")
    x = handles if counts else [handles, tf.constant([m.handle for m in masks])]
    actual = results(big, x, model.trainable_variables)
    plain = tf.constant(pixels) if counts else [tf.constant(pixels), tf.constant(ones)]
    assert_same(actual, results(twin, plain, twin.trainable_variables), FLOAT64)
    assert min(skipping.active()) < 0.9


@pytest.mark.slow
@pytest.mark.parametrize("everything", [pytest.param(False, marks=pytest.mark.slow), True])
def test_all_tissue_and_hardly_any(everything: bool, skipping: Skipping, float64: None) -> None:
    mask = np.full((90, 80), everything)
    mask[45, 40] = True
    sources, pixels = slides([mask])
    train_both(classifier, sources, pixels, np.ones((1, 2)), "mse")
    assert (min(skipping.active()) < 0.5) != everything


@pytest.mark.slow
def test_spilled_tiles(skipping: Skipping, float64: None, tmp_path: Any) -> None:
    sources, pixels = slides([mask_of((320, 300), 1, side=150)])
    whole = plan_of(classifier, sources[0])
    host = whole.total_bytes - whole.projected.host // 3
    budget = tfbig.Budget(host=host, disk="1GB", scratch=str(tmp_path))
    train_both(classifier, sources, pixels, np.ones((1, 2)), "mse", budget=budget)
    assert skipping.plans[-1].layout.spilled


@pytest.mark.slow
def test_less_host_memory(skipping: Skipping, float64: None) -> None:
    sources, pixels = slides([mask_of((320, 300), 1, side=150)])
    whole = plan_of(classifier, sources[0], budget=tfbig.Budget(device="4MB"))
    host = whole.total_bytes - whole.projected.host // 4
    budget = tfbig.Budget(device="4MB", host=host, disk=0)
    train_both(classifier, sources, pixels, np.ones((1, 2)), "mse", budget=budget)
    assert skipping.plans[-1].total_bytes <= host


def deep() -> keras.Model:
    x = start = keras.Input((None, None, 3))
    for _ in range(5):
        x = layers.Conv2D(4, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    return keras.Model(start, layers.Dense(2)(layers.GlobalAveragePooling2D()(x)))


@pytest.mark.slow
def test_replayed_tiles(skipping: Skipping, float64: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments are replayed, although there is memory for all images."""

    def with_replays(pricing: Any, straight: Any) -> Any:
        problem = pricing.problem
        families = [each for each in search._families(problem) if each.replays]
        plans = search._priced(pricing, (layout for each in families for layout in each.layouts))
        return search._choose(problem, list(plans))

    monkeypatch.setattr(search, "_on_host", with_replays)
    sources, pixels = slides([mask_of((160, 150), 1, side=60)])
    train_both(deep, sources, pixels, np.ones((1, 2)), "mse")
    assert skipping.plans[-1].layout.replays
    assert min(skipping.active()) < 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss", [pytest.param("binary_crossentropy", marks=pytest.mark.slow), "dice"]
)
def test_labels_of_pixels(loss: str, skipping: Skipping, float64: None) -> None:
    """Labels are constant on most of the background, and not on one pixel of it."""
    mask = mask_of((140, 120), 2)
    sources, pixels = slides([mask])
    labels = (mask & (np.arange(120) % 3 == 0)).astype("float64")[None, ..., None]
    labels[0, 70, 3] = 1
    metrics = [keras.metrics.BinaryAccuracy(), keras.metrics.BinaryIoU()]
    train_both(segmenter, sources, pixels, labels, loss, metrics)
    assert min(skipping.active()) < 0.9


def test_predictions_are_whole(skipping: Skipping, float64: None, tmp_path: Any) -> None:
    sources, pixels = slides([mask_of((140, 120), 2)])
    model = segmenter()
    big = tfbig.stream(model, source_dtype="float64")
    expected = model.predict(pixels, verbose=0)
    actual = big(tf.constant([sources[0].handle]), training=False)
    assert_same(actual.numpy(), expected, FLOAT64)
    skipping.plans.clear()
    assert_same(big.predict(tf.constant([sources[0].handle]), verbose=0), expected, FLOAT64)
    assert min(skipping.active()) < 0.9
    big.predict_to(sources[0], tmp_path / "mask.npy")
    np.testing.assert_allclose(np.load(tmp_path / "mask.npy"), expected[0], atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("store", [None, "bfloat16"])
def test_gradients_of_a_large_background(store: str | None, skipping: Skipping) -> None:
    """All together are no further from float64 than if background is computed: 80,000 equal terms are added up.

    Of single weights that cannot be said: the few that are right to 1e-7 either way differ by chance.
    """
    mask = np.zeros((300, 280), bool)
    mask[150:158, 140:150] = True
    colours = np.random.default_rng(0).normal(size=(*mask.shape, 3)).astype("float32")
    image = tfbig.masked(tfbig.open(colours), mask, 0.5, cell=2)
    model = classifier()
    big = tfbig.stream(model, source_dtype="float32", store=store)
    pixels = image.read(0, 300)[None]
    computed = weight_gradients(big, tf.constant(pixels))
    actual = weight_gradients(big, tf.constant([image.handle]))
    assert min(skipping.active()) < 0.3
    keras.config.set_dtype_policy("float64")
    exact = classifier()
    exact.set_weights(model.get_weights())
    expected = weight_gradients(exact, tf.constant(pixels, "float64"))
    skipped, every = (
        np.linalg.norm(np.concatenate([(g - e).ravel() for g, e in zip(gs, expected, strict=True)]))
        for gs in (actual, computed)
    )
    assert skipped < 1.1 * every


def weight_gradients(model: Any, x: tf.Tensor) -> list[np.ndarray]:
    """Return the gradients of the sum of squared outputs, in training."""
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(model(x, training=True) ** 2)
    values = [v._value for v in model.trainable_variables]
    return [g.numpy().astype("float64") for g in tape.gradient(total, values)]


@pytest.mark.slow
def test_noise_is_computed_everywhere(skipping: Skipping, float64: None) -> None:
    def noisy() -> keras.Model:
        model = classifier()
        x = layers.Dropout(0.5, seed=1)(model.layers[-4].output)
        return keras.Model(model.input, layers.Dense(2)(layers.GlobalAveragePooling2D()(x)))

    sources, _ = slides([mask_of((120, 100), 5)])
    big = tfbig.stream(noisy(), source_dtype="float64")
    big.compile("sgd", "mse")
    with pytest.warns(UserWarning, match="'dropout' differ from pixel to pixel"):
        big.train_on_batch(np.array([sources[0].handle]), np.ones((1, 2)))
    active = skipping.active()
    assert active[0] < 0.9
    assert active[-1] == 1


def test_other_slides_need_no_trace(skipping: Skipping, float64: None) -> None:
    sources, _ = slides([mask_of((120, 100), seed) for seed in range(3)])
    image = keras.Input((None, None, 3))
    pooled = layers.GlobalAveragePooling2D()(layers.Conv2D(4, 3, 2, padding="same")(image))
    big = tfbig.stream(keras.Model(image, layers.Dense(2)(pooled)), source_dtype="float64")
    big.compile("sgd", "mse")
    step = big.traced(big.train_step)
    for source in sources:
        step.one((tf.constant([source.handle]), tf.ones((1, 2), tf.float64)))
    assert len(step._traced) == 1
    assert len({plan.active_tiles[0].number for plan in skipping.plans}) > 1


def test_background_is_not_read(skipping: Skipping, float64: None) -> None:
    class Tissue(tfbig.Source):
        pixels = 0

        def _read(self, start: int, stop: int) -> Any:
            return self._read_window(start, stop, 0, self.shape[1])

        def _read_window(self, start: int, stop: int, left: int, right: int) -> Any:
            Tissue.pixels += (stop - start) * (right - left)
            return np.ones((stop - start, right - left, 3), "float64")

    mask = np.zeros((240, 200), bool)
    mask[100:110, 90:100] = True
    image = tfbig.masked(Tissue((*mask.shape, 3), "float64", "tissue"), mask, 0.5, cell=2)
    Tissue.pixels = 0
    big = tfbig.stream(classifier(), source_dtype="float64")
    big(tf.constant([image.handle]))
    assert 100 <= Tissue.pixels < 0.05 * mask.size


@pytest.mark.slow
def test_input_gradients_are_of_every_pixel(float64: None) -> None:
    """A gradient of the image itself is asked for: background is computed."""
    model = classifier()
    twin = classifier()
    twin.set_weights(model.get_weights())
    x = tf.constant(image_of(mask_of((40, 30), 1), 3))
    big = tfbig.stream(model, strip_rows=8)
    results = []
    for each in (big, twin):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(each(x, training=True))
        results.append(tape.gradient(y, x))
    assert_same(*results, FLOAT64)

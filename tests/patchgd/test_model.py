"""PatchGD equals plain training with all patches, and has the published or the unbiased gradient with some."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same
from keras import layers
from patch_models import (
    LABELS,
    AttentionHead,
    applied_gradients,
    encoder,
    entropy,
    exact_gradients,
    head,
    images,
    maps,
)

import tfbig
from tfbig.models.vision_transformer import ViT, vision_transformer
from tfbig.patchgd import PatchGD, patch_model, patch_sampling


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "patch", "stride", "options", "optimizer"),
    [
        ((13, 17), (5, 4), (3, 4), {"patches_at_once": 5}, "adam"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                ((12, 16), 4, 4, {}, "sgd"),
                ((12, 16), 4, 4, {"patches_at_once": 5}, "adam"),
                ((13, 17), (5, 4), (3, 4), {"patches_at_once": 1}, "sgd"),
                ((13, 17), (5, 4), (3, 4), {"sampling": 1000}, "adam"),
                ((20,), 8, 3, {}, "sgd"),
                ((20,), 8, 3, {}, "adam"),
                ((8, 7, 9), 4, (4, 2, 3), {"patches_at_once": 30}, "sgd"),
            ]
        ),
    ],
)
def test_all_patches_equal_plain_training(
    size: Any, patch: Any, stride: Any, options: Any, optimizer: str, float64: None
) -> None:
    """After six steps of `fit` over batches of two sizes."""
    axes, x = len(size), images(*size)
    options = {"sampling": 1.0, "inner_steps": 1} | options
    model = PatchGD(encoder(axes), head(axes), patch, stride, **options)
    twin = patch_model(encoder(axes), head(axes), patch, stride)
    twin.set_weights(model.twin.get_weights())
    logs = []
    for each in (model, twin):
        each.compile(optimizer, entropy(), metrics=["accuracy"], run_eagerly=each is twin)
        logs.append(each.fit(x, LABELS, batch_size=4, epochs=3, shuffle=False, verbose=0).history)
    assert_same(logs[0]["loss"], logs[1]["loss"], FLOAT64)
    assert logs[0]["accuracy"] == logs[1]["accuracy"]
    assert_same(model.twin.get_weights(), twin.get_weights(), FLOAT64)
    assert_same(model.predict(x, verbose=0), twin.predict(x, verbose=0), FLOAT64)
    assert_same(model.evaluate(x, LABELS, verbose=0), twin.evaluate(x, LABELS, verbose=0), FLOAT64)


def test_gradients_of_all_patches(float64: None) -> None:
    model = PatchGD(encoder(), head(), 4, 3, sampling=1.0, inner_steps=1)
    x = images(11, 14)
    assert_same(applied_gradients(model, x, LABELS), exact_gradients(model, x, LABELS), FLOAT64)


def test_a_vision_transformer_encodes_patches(float64: None) -> None:
    """Tokens of 4 x 4 pixels in patches of 8 x 8: codes and gradients are those of the plain model."""
    net = vision_transformer((8, 8, 3), ViT(patch=4, width=6, depth=2, heads=2))
    code = keras.Sequential([net, layers.Dense(3)], name="encoder")
    model = PatchGD(code, head(), 8, sampling=1.0, inner_steps=1, image_shape=(16, 24, 3))
    x = np.random.default_rng(0).normal(size=(6, 16, 24, 3))
    assert_same(applied_gradients(model, x, LABELS), exact_gradients(model, x, LABELS), FLOAT64)
    patches = x.reshape(6, 2, 8, 3, 8, 3).transpose(0, 1, 3, 2, 4, 5).reshape(36, 8, 8, 3)
    assert_same(model.latent(x), code(patches).numpy().reshape(6, 2, 3, 3), FLOAT64)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampling", "patches_at_once"),  # of 12 patches, also numbers that do not divide 12
    [
        (0.25, None),
        (5, 4),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                *((sampling, None) for sampling in (0.5, 0.2, 1, 5)),
                *((sampling, 4) for sampling in (0.5, 0.25, 0.2, 1)),
            ]
        ),
    ],
)
def test_encoder_scale(sampling: Any, patches_at_once: Any, float64: None) -> None:
    """The published encoder gets one share of the exact gradient, the unbiased one all of it.

    Gradients of all inner steps accumulate: no weight changes and every patch is in one set.
    """
    x = images(12, 16)
    scales = {}
    for scale in patch_sampling.SCALES:
        model = PatchGD(
            encoder(),
            head(),
            4,
            sampling=sampling,
            accumulate=None,
            encoder_scale=scale,
            patches_at_once=patches_at_once,
        )
        scales[scale] = applied_gradients(model, x, LABELS)
    exact = exact_gradients(model, x, LABELS)
    of_encoder = len(model.encoder.trainable_variables)
    num_sets = -(-12 // patch_sampling.set_size(sampling, 12))
    assert_same(scales["unbiased"], exact, FLOAT64)
    assert_same(scales["published"][of_encoder:], exact[of_encoder:], FLOAT64)
    shares = [g / num_sets for g in exact[:of_encoder]]
    assert_same(scales["published"][:of_encoder], shares, FLOAT64)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "accumulate"),
    [
        ("shuffle", None),
        ("attention", None),
        ("replacement", None),
        *((sampler, n) for sampler in patch_sampling.SAMPLERS for n in (1, 3)),
    ],
)
def test_every_sampler_learns(sampler: str, accumulate: Any) -> None:
    """The class of an image follows from its mean."""
    y = np.tile(np.arange(3), 8)
    x = images(8, 12, count=24) * 0.3 + y[:, None, None, None].astype("float32") - 1
    keras.utils.set_random_seed(0)
    model = PatchGD(
        encoder(), AttentionHead(), 4, sampling=2, accumulate=accumulate, sampler=sampler, seed=0
    )
    model.compile(keras.optimizers.Adam(0.03), entropy(), metrics=["accuracy"])
    model.fit(x, y, batch_size=4, epochs=12, verbose=0)
    assert model.evaluate(x, y, verbose=0)[1] == 1.0


@pytest.mark.slow
def test_seed() -> None:
    x, kernels = images(12, 16, count=2), []
    for seed in (1, 1, 2):
        model = PatchGD(encoder(rate=0.2), head(), 4, sampling=0.25, seed=seed)
        model.compile("adam", entropy(), run_eagerly=True)
        model.train_on_batch(x, LABELS[:2])
        kernels.append(model.encoder.get_weights()[0])
    np.testing.assert_array_equal(kernels[0], kernels[1])
    assert (kernels[0] != kernels[2]).any()


@pytest.mark.slow
@pytest.mark.parametrize("image_shape", [None, (12, 16, 2)])
def test_handles(image_shape: Any, float64: None) -> None:
    """Training, evaluation and prediction from handles equal those from tensors."""
    x = np.random.default_rng(0).integers(0, 256, (4, 12, 16, 2), np.uint8)
    held = [tfbig.open(image) for image in x]
    results = []
    for inputs in (x.astype("float64"), np.array([s.handle for s in held])):
        options = {"sampling": 3, "accumulate": 2, "seed": 3, "image_shape": image_shape}
        model = PatchGD(encoder(norm=True), head(), 4, **options)
        by_handle = inputs.dtype != "float64"
        optimizer = keras.optimizers.SGD(0.01)
        model.compile(optimizer, entropy(), metrics=["accuracy"], run_eagerly=not by_handle)
        data = tf.data.Dataset.from_tensor_slices((inputs, LABELS[:4])).batch(2)
        logs = model.fit(data, epochs=2, shuffle=False, verbose=0).history
        scores = model.evaluate(data, verbose=0, return_dict=True)
        results.append((logs, scores, model.predict(data, verbose=0), model.get_weights()))
    assert_same(results[0], results[1], FLOAT64)


@pytest.mark.slow
def test_weights_losses_and_regularizers(float64: None) -> None:
    """Sample weights, two outputs and a penalty on weights, as in the plain model."""
    x, z = images(8, 12), keras.Input((None, None, 3))
    results = []
    for plain in (False, True):
        net = encoder()
        net.layers[1].kernel_regularizer = keras.regularizers.L2(0.01)
        keras.utils.set_random_seed(0)
        pooled = layers.GlobalAveragePooling2D()(z)
        both = keras.Model(
            z, {"a": layers.Dense(3, name="a")(pooled), "b": layers.Dense(1, name="b")(pooled)}
        )
        model = patch_model(net, both, 4) if plain else PatchGD(net, both, 4, sampling=1.0)
        model.compile(
            "sgd",
            {"a": entropy(), "b": "mse"},
            loss_weights={"a": 1.0, "b": 0.3},
            run_eagerly=plain,
        )
        y = {"a": LABELS, "b": LABELS[:, None] * 0.5}
        weights = {"a": np.arange(6.0), "b": np.ones(6)}
        logs = model.fit(
            x, y, sample_weight=weights, batch_size=3, shuffle=False, verbose=0
        ).history
        results.append((logs, [w.numpy() for w in [*net.weights, *both.weights]]))
    assert_same(results[0], results[1], FLOAT64)


def test_attention_of_maps() -> None:
    model = PatchGD(maps((8, 12)), AttentionHead(), (8, 12), sampler="attention")
    x = images(16, 36)
    codes = np.asarray(model.head.attention(model.latent(x))).reshape(6, 2, 2, 3, 3)
    assert_same(model.attention(x), tf.constant(codes.sum((2, 4)).reshape(6, 6)), 1e-6)
    model.compile("sgd", entropy(), run_eagerly=True)
    before = model.head.get_weights()
    model.train_on_batch(x, LABELS)  # sampled by attention to patches
    assert any((a != b).any() for a, b in zip(before, model.head.get_weights(), strict=True))


def test_export(tmp_path: Path) -> None:
    encoder = keras.Sequential([keras.Input((4, 4, 2)), layers.Flatten(), layers.Dense(3)])
    head = keras.Sequential([keras.Input((3, 3, 3)), layers.Flatten(), layers.Dense(2)])
    model = PatchGD(encoder, head, 4, image_shape=(12, 12, 2))
    model.export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(tmp_path / "served")
    x = np.random.default_rng(0).random((2, 12, 12, 2), np.float32)
    np.testing.assert_allclose(served.serve(x), model(x), atol=1e-6)

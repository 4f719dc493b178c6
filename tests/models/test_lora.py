"""LoRA of encoders: the same network at first, what is trained, exact training in slices and strips, and saving."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import twins
from exactness import assert_same
from mil_models import SIDE, entropy, small_encoder
from twins import assert_streams

import tfbig
from tfbig import mil
from tfbig.mil import ABMIL
from tfbig.models import pretrained
from tfbig.models.lora import add_lora
from tfbig.models.vision_transformer import ViT, vision_transformer

CONFIG = ViT(patch=3, width=8, depth=2, heads=2)
FACTORS = 2 * 2 * ((8 + 24) + (8 + 8) + (8 + 32) + (32 + 8))
"""Parameters of rank 2, of two blocks."""
SINGLE = 1e-6
"""Relative error of sums in float32, which Keras stores the factors in."""


def network():
    keras.utils.set_random_seed(3)
    return vision_transformer((SIDE, SIDE, 3), CONFIG)


def images(count=4):
    return np.random.default_rng(0).normal(size=(1, count, SIDE, SIDE, 3))


def test_only_factors_are_trained():
    """The network is the same at first, and its other weights stay as they are."""
    plain, changed = network(), network()
    assert add_lora(changed, 2) == FACTORS
    assert {w.name for w in changed.trainable_variables} == {"lora_kernel_a", "lora_kernel_b"}
    x = images()[0].astype("float32")
    np.testing.assert_array_equal(changed(x), plain(x))
    before = [w.numpy() for w in changed.non_trainable_variables]
    changed.compile(keras.optimizers.SGD(0.1), "mse")
    for _ in range(2):
        changed.train_on_batch(x, np.ones((4, 8)))
    for w, b in zip(changed.non_trainable_variables, before, strict=True):
        np.testing.assert_array_equal(w, b)
    assert np.abs(changed(x) - plain(x)).max() > 1e-3
    assert all(np.abs(w).max() > 0 for w in changed.trainable_variables)


@pytest.mark.slow
def test_training_in_slices_is_exact(float64):
    """Four steps at three instances at once equal those of plain Keras on the whole bag."""
    models = []
    for plain in (False, True):
        encoder = network()
        add_lora(encoder, 2)
        model = mil.MIL(encoder, ABMIL(2, 4), 3)
        models.append(model.twin if plain else model)
        models[-1].compile(keras.optimizers.SGD(0.5), entropy(), run_eagerly=plain)
    models[1].set_weights(models[0].get_weights())
    before = models[0].get_weights()
    for step in range(4):
        x, label = tf.constant(images(7) + step), np.array([step % 2])
        losses = [model.train_on_batch(x, label) for model in models]
        assert_same(*losses, SINGLE)
    assert_same(models[0].get_weights(), models[1].get_weights(), SINGLE)
    changed = [(a != b).any() for a, b in zip(models[0].get_weights(), before, strict=True)]
    assert sum(changed) >= 2 * 8 + 6 - 1  # the bias of a softmax changes by rounding only


@pytest.mark.slow
def test_saved_network_has_the_changes(tmp_path):
    changed = network()
    add_lora(changed, 2)
    x = images()[0].astype("float32")
    changed.compile(keras.optimizers.SGD(0.1), "mse")
    changed.train_on_batch(x, np.ones((4, 8)))
    changed.train_on_batch(x, np.ones((4, 8)))
    changed.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again(x), changed(x), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_weights_for_another_network(tmp_path):
    """A network without LoRA gets the changed kernels, as `--encoder-weights RUN` asks."""
    changed, plain = network(), network()
    add_lora(changed, 2)
    x = images()[0].astype("float32")
    changed.compile(keras.optimizers.SGD(0.1), "mse")
    for _ in range(2):
        changed.train_on_batch(x, np.ones((4, 8)))
    assert pretrained.copy(plain, changed).tensors == len(plain.weights)
    np.testing.assert_allclose(plain(x), changed(x), rtol=1e-4, atol=1e-6)


def test_refusals():
    with pytest.raises(ValueError, match="has no Dense layers for LoRA"):
        add_lora(small_encoder(), 2)
    with pytest.raises(ValueError, match="rank=0; expected 1 or more"):
        add_lora(network(), 0)
    changed = network()
    add_lora(changed, 2)
    with pytest.raises(ValueError, match="lora is already enabled"):
        add_lora(changed, 2)


def whole_image_network(stream):
    """Return a transformer on whole images, whose LoRA factors and head are trained, streamed or not."""
    keras.utils.set_random_seed(3)
    encoder = vision_transformer((24, 18, 3), CONFIG)
    add_lora(encoder, 2)
    model = keras.Sequential([encoder, keras.layers.Dense(2)])
    return tfbig.stream(model, strip_rows=3, plain_if_small=False) if stream else model


@pytest.mark.slow
def test_gradients_over_a_whole_image_are_exact(float64):
    model = whole_image_network(False)
    random = np.random.default_rng(1)
    for weight in model.trainable_variables:
        weight.assign(0.3 * random.normal(size=weight.shape))
    assert len(model.trainable_variables) == 2 * 4 * 2 + 2
    assert_streams(model, twins.images(model, 2, 24, 18), 3, training=True)


@pytest.mark.slow
def test_fine_tuning_over_whole_images_is_exact(float64):
    """Two epochs change factors and head as in plain Keras, and nothing else."""
    x, y = np.random.default_rng(0).normal(size=(3, 24, 18, 3)), np.array([0, 1, 0])
    models = [whole_image_network(stream) for stream in (True, False)]
    frozen = [w.numpy() for w in models[0].non_trainable_variables]
    for model in models:
        loss = keras.losses.SparseCategoricalCrossentropy(True)
        model.compile(keras.optimizers.SGD(0.1), loss)
        model.fit(x, y, 2, epochs=2, shuffle=False, verbose=0)
    assert_same(models[0].get_weights(), models[1].get_weights(), SINGLE)
    assert_same([w.numpy() for w in models[0].non_trainable_variables], frozen)
    assert_same(models[0].predict(x, verbose=0), models[1].predict(x, verbose=0), SINGLE)


@pytest.mark.slow
def test_projections_of_an_attention_by_factors(float64):
    """`enable_lora` of the EinsumDense layers inside MultiHeadAttention, on tokens of a whole image."""
    inputs = keras.Input((12, 9, 3))
    x = keras.layers.Reshape((-1, 8))(keras.layers.Conv2D(8, 3, 3)(inputs))
    attention = keras.layers.MultiHeadAttention(2, 4)
    model = keras.Model(inputs, attention(x, x)[:, 0])
    for part in (attention.query_dense, attention.value_dense):
        part.enable_lora(2)
    factors = [w for w in model.trainable_variables if "lora" in w.path]
    assert len(factors) == 4
    for weight in factors:
        weight.assign(np.random.default_rng(1).normal(size=weight.shape))
    big, x = tfbig.stream(model, strip_rows=3, plain_if_small=False), twins.images(model, 2, 12, 9)
    np.testing.assert_allclose(big(x), model(x), rtol=1e-10)

"""Heads over the latent grid: the published one by its numbers, and the others by what they are made of."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfbig
from tfbig.models import encoders, latent
from tfbig.models.self_attention import SelfAttentionMIL


def z(*cells, width=256, batch=2):
    return np.random.default_rng(0).normal(size=(batch, *cells, width)).astype("float32")


@pytest.mark.parametrize(
    ("kind", "width", "convs", "left"),
    [
        ("published", 256, 4, 2),
        ("smaller", 256, 3, 2),
        ("larger", 256, 5, 1),
        ("published", 128, 4, 2),
        ("published", 512, 4, 2),
    ],
)
def test_heads_are_as_published(kind, width, convs, left):
    """For Z of 16 x 16, PANDA's 2048 in patches of 128; parameters by hand."""
    head = latent.conv_head(6, (16, 16), kind=kind, width=width)
    assert head(z(16, 16)).shape == (2, 6)
    first = 9 * 256 * width + width
    rest = (convs - 1) * (9 * width * width + width)
    dense = left * left * width * 6 + 6
    assert head.count_params() == first + rest + convs * 4 * width + dense
    norms = [layer for layer in head.layers if isinstance(layer, layers.BatchNormalization)]
    assert [(norm.momentum, norm.epsilon) for norm in norms] == [(0.9, 1e-5)] * convs
    drops = [layer for layer in head.layers if isinstance(layer, layers.SpatialDropout2D)]
    assert [drop.rate for drop in drops] == [0.2] * convs


def test_padding_is_that_of_torch():
    """A convolution of stride 2 over ones, with a kernel of ones, counts the cells inside: 4 in the first corner."""
    head = latent.conv_head(1, (4, 4), latent=1, kind="smaller", width=1)
    first = keras.Model(head.input, head.layers[2].output)
    head.layers[2].set_weights([np.ones((3, 3, 1, 1)), np.zeros(1)])
    np.testing.assert_array_equal(
        first(np.ones((1, 4, 4, 1), "float32"))[0, ..., 0], [[4, 6], [6, 9]]
    )


@pytest.mark.parametrize("kind", latent.HEADS)
def test_every_head_takes_grids_of_any_size(kind):
    head = latent.make_head(kind, 3, latent=12, width=16)
    for cells in ((5, 9), (8, 8), (2, 3)):
        assert head(z(*cells, width=12)).shape == (2, 3)


@pytest.mark.parametrize("kind", ["abmil", "transformer"])
def test_heads_with_attention_say_where_they_look(kind, tmp_path):
    head, x = latent.make_head(kind, 3, latent=12, width=16), z(4, 5, width=12)
    head(x)
    attention = head.attention(x).numpy()
    assert attention.shape == (2, 20)
    np.testing.assert_allclose(attention.sum(1), 1, rtol=1e-5)
    assert head.scores(x).shape == (2, 20, 3)
    model = keras.Sequential([keras.Input((None, None, 12)), head])
    model.save(tmp_path / "head.keras")
    loaded = keras.models.load_model(tmp_path / "head.keras")
    np.testing.assert_array_equal(loaded(x), model(x))


def test_a_transformer_knows_places_and_a_bag_does_not():
    x = z(4, 5, width=12)
    turned = x[:, ::-1]
    for kind, knows in (("abmil", False), ("transformer", True)):
        head = latent.make_head(kind, 3, latent=12, width=16)
        assert (abs(head(x) - head(turned)).numpy().max() > 1e-3) == knows


@pytest.mark.parametrize(
    ("cells", "width"), [((7,), 8), ((3, 5), 16), ((3, 5), 14), ((2, 3, 4), 20)]
)
def test_positions(cells, width):
    found = latent.positions(cells, width).numpy()
    part = width // (2 * len(cells)) * 2
    expected = np.zeros((*cells, width))
    for place in np.ndindex(*cells):
        for axis, number in enumerate(place):
            for i in range(part):
                angle = number / 10000 ** (i // 2 * 2 / part)
                value = np.cos(angle) if i % 2 else np.sin(angle)
                expected[(*place, axis * part + i)] = value
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert len(np.unique(found.reshape(-1, width).round(5), axis=0)) == np.prod(cells)


def test_blocks_of_a_transformer():
    """x + attention(norm(x)), then x + W2 gelu(W1 norm(x)), twice, by hand from the layers."""
    layer, bag = SelfAttentionMIL(3, 16, heads=4, depth=2, mlp=2), z(7, width=12)
    found = layer(bag)
    x = layer.embed(bag)
    x = tf.concat([tf.repeat(layer.token, 2, 0), x], 1)
    for i in range(2):
        x = x + layer.blocks[i](layer.norms[i](x))
        norm, wide, narrow = layer.mlps[i].layers
        x = x + narrow(keras.activations.gelu(norm(x) @ wide.kernel + wide.bias))
    np.testing.assert_allclose(found, layer.head(layer.norms[2](x[:, 0])), atol=1e-5)
    assert layer.attention(bag).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("resnet50", 23_508_032 + 2048 * 256 + 256),
        ("mobilenetv2", 2_223_872 + 1280 * 256 + 256),
    ],
)
def test_encoders_of_the_paper(name, parameters):
    """Trained parameters of torchvision's and Keras' networks without their tops, and a Dense layer to 256."""
    made = encoders.make(name, (64, 64, 3), latent=256)
    assert made.output_shape == (None, 256)
    found = sum(int(np.prod(w.shape)) for w in made.trainable_weights)
    assert found == parameters


@pytest.mark.parametrize("name", ["small", "strided", "resnet18", "mobilenetv2"])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_baseline_has_the_same_head(name, channels):
    """Its Z comes from the trunk; a convolution of 1 x 1 makes it as deep as that of patches."""
    made = latent.baseline(name, (128, 192, channels), 5, latent=32, width=16)
    assert made(np.zeros((2, 128, 192, channels), "float32")).shape == (2, 5)
    stride = {"small": 8, "strided": 64}.get(name, 32)
    head = made.layers[-1]
    assert head.name == "published_head"
    assert head.input_shape == (None, 128 // stride, 192 // stride, 32)


def test_a_baseline_streams():
    """So the exact engine trains the same network that PatchGD is compared with."""
    made = latent.baseline("small", (None, None, 1), 5, latent=8, width=8)
    x = np.random.default_rng(0).uniform(0, 255, (1, 64, 96, 1)).astype("float32")
    streamed = tfbig.stream(made, strip_rows=16)
    np.testing.assert_allclose(streamed(x), made(x), atol=1e-5)


@pytest.mark.parametrize("kind", latent.HEADS)
def test_patchgd_trains_every_head(kind):
    net = encoders.make("small", (16, 16, 1), latent=12)
    head = latent.make_head(kind, 3, (4, 4), latent=12, width=16)
    sampler = "attention" if hasattr(head, "attention") else "shuffle"
    model = tfbig.PatchGD(net, head, 16, sampler=sampler, image_shape=(64, 64, 1))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = np.random.default_rng(0).uniform(0, 255, (4, 64, 64, 1)).astype("float32")
    assert np.isfinite(model.train_on_batch(x, np.arange(4) % 3))

"""Heads over the latent grid, positional encodings, and plain baselines."""

import keras
import numpy as np
import pytest
from keras import layers

import tfbig
from tfbig import choices
from tfbig.models import encoders, latent

FAST = ("published", "abmil")
HEADS = [
    kind if kind in FAST else pytest.param(kind, marks=pytest.mark.slow) for kind in choices.HEADS
]


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
def test_convolutional_heads(kind, width, convs, left):
    """Parameters counted by hand for Z of 16 x 16, PANDA's 2048 pixels in patches of 128."""
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


def test_padding_of_torch():
    """A convolution of ones with stride 2 counts the cells inside the image: 4 in the first corner."""
    head = latent.conv_head(1, (4, 4), latent=1, kind="smaller", width=1)
    first = keras.Model(head.input, head.layers[2].output)
    head.layers[2].set_weights([np.ones((3, 3, 1, 1)), np.zeros(1)])
    np.testing.assert_array_equal(
        first(np.ones((1, 4, 4, 1), "float32"))[0, ..., 0], [[4, 6], [6, 9]]
    )


@pytest.mark.parametrize("kind", choices.HEADS)
def test_any_grid_size(kind):
    head = latent.make_head(kind, 3, latent=12, width=16)
    for cells in ((5, 9), (8, 8), (2, 3)):
        assert head(z(*cells, width=12)).shape == (2, 3)


@pytest.mark.parametrize("kind", ["abmil", "transformer"])
def test_attention_and_saving(kind, tmp_path):
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


def test_positions_matter_to_the_transformer_alone():
    x = z(4, 5, width=12)
    turned = x[:, ::-1]
    for kind, has_positions in (("abmil", False), ("transformer", True)):
        head = latent.make_head(kind, 3, latent=12, width=16)
        assert (abs(head(x) - head(turned)).numpy().max() > 1e-3) == has_positions


@pytest.mark.parametrize(
    ("cells", "width"), [((7,), 8), ((3, 5), 16), ((3, 5), 14), ((2, 3, 4), 20)]
)
def test_positions(cells, width):
    encoding = latent.positions(cells, width).numpy()
    part = width // (2 * len(cells)) * 2
    expected = np.zeros((*cells, width))
    for place in np.ndindex(*cells):
        for axis, number in enumerate(place):
            for i in range(part):
                angle = number / 10000 ** (i // 2 * 2 / part)
                value = np.cos(angle) if i % 2 else np.sin(angle)
                expected[(*place, axis * part + i)] = value
    np.testing.assert_allclose(encoding, expected, atol=1e-6)
    assert len(np.unique(encoding.reshape(-1, width).round(5), axis=0)) == np.prod(cells)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "channels"),
    [
        (name, channels)
        for name in ("small", "strided", "mobilenetv2", "resnet18")
        for channels in (1, 3)
    ],
)
def test_baseline(name, channels):
    """The trunk and a 1 x 1 convolution take the place of Z; the head is PatchGD's."""
    model = latent.baseline(name, (128, 192, channels), 5, latent=32, width=16)
    assert model(np.zeros((2, 128, 192, channels), "float32")).shape == (2, 5)
    stride = {"small": 8, "strided": 64}.get(name, 32)
    head = model.layers[-1]
    assert head.name == "published_head"
    assert head.input_shape == (None, 128 // stride, 192 // stride, 32)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "features"), [("small", 64), ("resnet18", 512)])
def test_baseline_without_a_head(name, features):
    """Average pooling and one Dense layer after the trunk, which keeps its name."""
    model = latent.baseline(name, (64, 96, 3), 5, "linear", latent=8)
    trunk = encoders.make(name, (64, 96, 3), pooled=False)
    assert model.count_params() == trunk.count_params() + (features + 1) * 5
    x = np.random.default_rng(0).uniform(0, 255, (2, 64, 96, 3)).astype("float32")
    trunk.set_weights(model.get_layer(name).get_weights())
    kernel, bias = model.layers[-1].get_weights()
    expected = trunk(x).numpy().mean((1, 2)) @ kernel + bias
    np.testing.assert_allclose(model(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_baseline_streams():
    """The exact engine trains the network that PatchGD is compared with."""
    model = latent.baseline("small", (None, None, 1), 5, latent=8, width=8)
    x = np.random.default_rng(0).uniform(0, 255, (1, 64, 96, 1)).astype("float32")
    streamed = tfbig.stream(model, strip_rows=16)
    np.testing.assert_allclose(streamed(x), model(x), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("eager", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_training_with_patchgd(kind, eager):
    """A step changes every kernel of the encoder and the head."""
    net = encoders.make("small", (16, 16, 1), latent=12)
    head = latent.make_head(kind, 3, (4, 4), latent=12, width=16)
    sampler = "attention" if hasattr(head, "attention") else "shuffle"
    model = tfbig.PatchGD(net, head, 16, sampler=sampler, image_shape=(64, 64, 1))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, run_eagerly=eager)
    kernels = [w for w in model.trainable_variables if "kernel" in w.path]
    before = [w.numpy() for w in kernels]
    x = np.random.default_rng(0).uniform(0, 255, (4, 64, 64, 1)).astype("float32")
    model.train_on_batch(x, np.arange(4) % 3)
    unchanged = [w.path for w, b in zip(kernels, before, strict=True) if (w.numpy() == b).all()]
    assert not unchanged

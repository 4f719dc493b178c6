"""Encoders of tiles and patches by name."""

import numpy as np
import pytest

from tfbig.models import encoders, pathology_encoders, vision_transformer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("resnet50", 23_508_032 + 2048 * 256 + 256),
        ("resnet50_gn", 23_508_032 + 2048 * 256 + 256),
        ("mobilenetv2", 2_223_872 + 1280 * 256 + 256),
    ],
)
def test_encoders_of_the_patchgd_paper(name, parameters):
    """Trainable parameters of torchvision's and Keras' networks without their tops, plus a Dense layer to 256."""
    model = encoders.make(name, (64, 64, 3), latent=256)
    assert model.output_shape == (None, 256)
    count = sum(int(np.prod(w.shape)) for w in model.trainable_weights)
    assert count == parameters


@pytest.mark.parametrize("name", ["small", "strided"])
def test_pooling(name):
    """A pooled encoder returns the maximum over the feature map of its trunk."""
    shape, x = (64, 128, 3), np.random.default_rng(0).uniform(0, 255, (2, 64, 128, 3))
    pooled, trunk = encoders.make(name, shape), encoders.make(name, shape, pooled=False)
    trunk.set_weights(pooled.get_weights())
    features = trunk(x.astype("float32")).numpy()
    np.testing.assert_allclose(pooled(x.astype("float32")), features.max((1, 2)), atol=1e-6)


def test_without_norm():
    model = encoders.make("strided", (64, 64, 1), norm=False, latent=4)
    names = [layer.name for layer in model._flatten_layers(include_self=False)]
    assert not any("batch_normalization" in name for name in names)
    assert sum("conv2d" in name for name in names) == 5
    assert model(np.zeros((1, 64, 64, 1))).shape == (1, 4)


def test_encoders_of_pathology(monkeypatch):
    """Their mean and deviation are the defaults; a Dense layer makes codes of their features."""
    monkeypatch.setattr(vision_transformer, "_normal", lambda: "zeros")
    default = encoders.make("phikon", (32, 32, 3), latent=5)
    assert default.output_shape == (None, 5)
    (scaling,) = (layer for layer in default.get_layer("phikon").layers if "resc" in layer.name)
    entry = pathology_encoders.PATHOLOGY_ENCODERS["phikon"]
    np.testing.assert_allclose(scaling.offset, -np.array(entry.mean) / entry.std, rtol=1e-6)
    given = encoders.make("phikon", (32, 32, 3), mean=0.0, std=1.0)
    (scaling,) = (layer for layer in given.layers if "resc" in layer.name)
    np.testing.assert_allclose(scaling.scale, [1 / 255] * 3)
    with pytest.raises(
        ValueError, match="pooled=False: 'phikon' has no feature map; choose one of"
    ):
        encoders.make("phikon", (32, 32, 3), pooled=False)


@pytest.mark.slow
def test_encoder_of_abmil_acc():
    """ResNet of bottlenecks 2, 2, 2, 2 whose first convolution has one channel: 2048 features of gray tiles."""
    gray, colour = (encoders.make("resnet26", (84, 84, channels)) for channels in (1, 3))
    kernels = [net.get_layer("resnet26").get_layer("conv1").kernel.shape for net in (gray, colour)]
    assert kernels == [(7, 7, 1, 64), (7, 7, 3, 64)]
    assert gray.output_shape == (None, 2048)
    count = sum(int(np.prod(w.shape)) for w in gray.trainable_weights)
    assert count == 15_995_176 - 2048 * 1000 - 1000 - 2 * 7 * 7 * 64


def test_encoder_of_big_layers():
    """Without padding in the stem a tile of 256 gives 125, 62, 31, 16 and 8 rows: 8 x 8 x 512 features."""
    encoder = encoders.make("resnet18_flat", (256, 256, 3))
    assert encoder.output_shape == (None, 32768)
    net = encoder.get_layer("resnet18_flat")
    rows = [
        net.get_layer(n).output.shape[1]
        for n in ("conv1", "maxpool", "layer2.0.relu", "layer4.1.relu")
    ]
    assert rows == [125, 62, 31, 8]

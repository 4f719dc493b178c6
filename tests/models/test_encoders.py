"""Encoders of tiles and patches by name."""

import numpy as np
import pytest

from tfbig.models import encoders


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("resnet50", 23_508_032 + 2048 * 256 + 256),
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

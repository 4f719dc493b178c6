"""The scale of pixels before a network."""

import keras
import numpy as np
import pytest

from tfbig.models import scaling


@pytest.mark.parametrize("channels", [1, 3])
def test_scaled_tiles(channels):
    """Tiles from 0 to 255 are scaled, and a gray tile is repeated for a network of three channels."""
    mean, std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    net = keras.Sequential([keras.Input((4, 4, 3)), keras.layers.Identity()])
    x = np.random.default_rng(0).integers(0, 256, (2, 4, 4, channels)).astype("float32")
    seen = scaling.scaled(net, (4, 4, channels), mean, std)(x)
    np.testing.assert_allclose(seen, (x / 255 - mean) / std, atol=1e-6)

"""The decoder of PatchGD for masks."""

from __future__ import annotations

import numpy as np
import pytest

from tfbig.models.patch_decoder import patch_decoder


@pytest.mark.parametrize(
    ("doublings", "width", "channels"), [(3, 64, [64, 32, 16]), (4, 36, [32, 16, 8, 8]), (0, 8, [])]
)
def test_patch_decoder(doublings: int, width: int, channels: list[int]) -> None:
    """Each stage doubles the resolution and halves the channels, in multiples of 8."""
    decoder = patch_decoder((2, 3, 5), doublings, width)
    assert decoder.output_shape == (None, 2 * 2**doublings, 3 * 2**doublings, 1)
    norms = [layer for layer in decoder.layers if "normalization" in layer.name]
    assert [norm.output.shape[-1] for norm in norms] == channels
    mask = decoder(np.random.default_rng(0).normal(size=(2, 2, 3, 5)).astype("float32"))
    assert 0 < float(np.min(mask)) < float(np.max(mask)) < 1

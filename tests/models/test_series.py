"""Networks of time series: chunks and heads against the plain baseline."""

import numpy as np
import pytest

from tfbig.models import series


def test_shapes():
    encoder = series.encoder(16, 9)
    codes = encoder(np.zeros((4, 16, 9)))
    assert codes.shape == (4, 14 * 64)
    head = series.head(6, 4, 14 * 64)
    assert head(np.asarray(codes)[None]).shape == (1, 6)


@pytest.mark.parametrize(("rate", "hidden"), [(series.RATE, series.HIDDEN), (0.0, None)])
def test_baseline_has_the_same_layers(rate, hidden):
    """The encoder and head of one chunk equal the baseline, as in the code and as in the paper."""
    encoder, head = series.encoder(16, 9, rate), series.head(6, 1, 14 * 64, hidden)
    baseline = series.baseline(16, 9, 6, rate, hidden)
    baseline.set_weights([*encoder.get_weights(), *head.get_weights()])
    x = np.random.default_rng(0).normal(size=(3, 16, 9))
    expected = head(np.asarray(encoder(x))[:, None])
    np.testing.assert_allclose(baseline(x), expected, atol=1e-5)


def test_parameters():
    """64 kernels of 3 samples of 9 signals, then a linear layer (paper), or 100 units before it (code)."""
    convolution, features = (3 * 9 + 1) * 64, 126 * 64
    assert series.baseline(128, 9, 6).count_params() == 808_898
    paper = series.baseline(128, 9, 6, rate=0.0, hidden=None)
    assert paper.count_params() == convolution + (features + 1) * 6

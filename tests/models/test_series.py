"""Networks of time series: chunks and heads against the plain baseline."""

import numpy as np

from tfbig.models import series


def test_shapes():
    encoder = series.encoder(16, 9)
    codes = encoder(np.zeros((4, 16, 9)))
    assert codes.shape == (4, 14 * 64)
    head = series.head(6, 4, 14 * 64)
    assert head(np.asarray(codes)[None]).shape == (1, 6)


def test_baseline_has_the_same_layers():
    """The encoder and head of one chunk equal the baseline."""
    encoder, head = series.encoder(16, 9), series.head(6, 1, 14 * 64)
    baseline = series.baseline(16, 9, 6)
    baseline.set_weights([*encoder.get_weights(), *head.get_weights()])
    x = np.random.default_rng(0).normal(size=(3, 16, 9))
    expected = head(np.asarray(encoder(x))[:, None])
    np.testing.assert_allclose(baseline(x), expected, atol=1e-5)

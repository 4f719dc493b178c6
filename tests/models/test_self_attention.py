"""Blocks of the exact self-attention aggregator; tests/ops/test_blockwise_attention.py has its attention."""

import keras
import numpy as np
import tensorflow as tf
from equations import bag

from tfbig.models.self_attention import SelfAttentionMIL


def test_matches_equations():
    """Output is x + attention(norm(x)), then x + W2 gelu(W1 norm(x)), twice, computed from the layers."""
    layer, instances = SelfAttentionMIL(3, 16, heads=4, depth=2, mlp=2), bag(2, 7, 12)
    logits = layer(instances)
    x = layer.embed(instances)
    x = tf.concat([tf.repeat(layer.token, 2, 0), x], 1)
    for i in range(2):
        x = x + layer.blocks[i](layer.norms[i](x))
        norm, wide, narrow = layer.mlps[i].layers
        x = x + narrow(keras.activations.gelu(norm(x) @ wide.kernel + wide.bias))
    np.testing.assert_allclose(logits, layer.head(layer.norms[2](x[:, 0])), atol=1e-5)
    assert layer.attention(instances).shape == (2, 7)

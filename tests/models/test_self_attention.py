"""The self-attention aggregator and its equations; tests/ops/test_blockwise_attention.py has its attention."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from equations import bag, close, dense, softmax
from mil_models import check_training, entropy
from published_weights import PublishedWeights

from tfbig.models.self_attention import SelfAttention, SelfAttentionMIL, TransformerMIL


def small(depth=2, **options):
    return SelfAttentionMIL(3, width=16, heads=2, depth=depth, block=4, **options)


def normal(layer, x):
    """Compute layer normalisation."""
    gamma, beta = (w.numpy().astype("float64") for w in layer.weights)
    x = x - x.mean(-1, keepdims=True)
    return gamma * x / np.sqrt((x * x).mean(-1, keepdims=True) + layer.epsilon) + beta


def reference(layer, x):
    """Return the final tokens, and the attention of the last block, `[N, heads, n, n]`."""
    x = np.maximum(dense(layer.embed, x.astype("float64")), 0)
    token = np.broadcast_to(layer.token.numpy(), (len(x), 1, layer.width))
    x = np.concatenate([token, x], 1)
    for norm, block in zip(layer.norms, layer.blocks, strict=False):
        parts = np.split(dense(block.qkv, normal(norm, x)), 3, -1)
        shape = (*x.shape[:2], layer.heads, -1)
        q, k, v = (p.reshape(shape).transpose(0, 2, 1, 3) for p in parts)
        a = softmax(q @ k.transpose(0, 1, 3, 2) / np.sqrt(layer.width / layer.heads), -1)
        x = x + dense(block.out, (a @ v).transpose(0, 2, 1, 3).reshape(x.shape))
    return normal(layer.norms[-1], x), a


def randomised(layer, x):
    """Build a layer and add noise to its weights, so that none are 0 or 1."""
    layer(x)
    rng = np.random.default_rng(1)
    layer.set_weights([w + rng.normal(size=w.shape, scale=0.3) for w in layer.get_weights()])
    return layer


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 3, 11])
def test_matches_equations(depth, count):
    x = bag(count=count)
    layer = randomised(small(depth), x)
    tokens, a = reference(layer, x)
    close(layer(x), dense(layer.head, tokens[:, 0]))
    close(layer.scores(x), dense(layer.head, tokens[:, 1:]))
    seen = a[:, :, 0, 1:].mean(1)
    close(layer.attention(x), seen / seen.sum(1, keepdims=True))
    close(layer.attention(x).numpy().sum(1), [1, 1])


@pytest.mark.slow
def test_independent_of_order_and_other_bags():
    x = bag()
    layer = randomised(small(), x)
    order = np.random.default_rng(1).permutation(x.shape[1])
    close(layer(x[:1]), layer(x)[:1])
    close(layer(x[:, order]), layer(x))
    close(layer.attention(x[:, order]), layer.attention(x).numpy()[:, order])
    close(layer.scores(x[:, order]), layer.scores(x).numpy()[:, order])


@pytest.mark.slow
def test_any_bag_size_and_saving(tmp_path):
    layer, features = small(), keras.Input((None, 6))
    model = keras.Model(features, layer(features))
    assert model.output_shape == (None, 3)
    for count in (1, 2, 16, 30):
        close(model.predict(bag(count=count), verbose=0), layer(bag(count=count)))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    close(again(bag()), model(bag()), 0)
    assert again.layers[1].get_config() == layer.get_config()


@pytest.mark.slow
def test_every_weight_is_trained():
    model = keras.Sequential([keras.Input((None, 6)), small()])
    before = [w.numpy() for w in model.trainable_variables]
    model.compile(keras.optimizers.SGD(1.0), "mse")
    model.train_on_batch(bag(), np.ones((2, 3)))
    changed = [
        (w.numpy() != b).any() for w, b in zip(model.trainable_variables, before, strict=True)
    ]
    assert all(changed)


@pytest.mark.parametrize(
    "policy", [pytest.param("mixed_float16", marks=pytest.mark.slow), "mixed_bfloat16"]
)
def test_mixed_precision(policy):
    x = bag()
    layer = small(dtype=policy)
    logits = tf.cast(layer(x), "float64")
    assert layer.attention(x).dtype == "float32"
    close(logits, dense(layer.head, reference(layer, x)[0][:, 0]), 0.05)


def test_invalid_heads_and_depth():
    with pytest.raises(ValueError, match="heads=3; expected a divisor of width=16"):
        SelfAttention(16, heads=3)
    with pytest.raises(ValueError, match="depth=0; expected at least 1"):
        small(depth=0)


def test_blocks_with_mlp():
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


def test_published_transformer():
    """Its number of parameters, and the logits that the published code gives for the same weights."""
    layer = TransformerMIL(2)
    layer.build((None, None, 1024))
    assert layer.count_params() == 3_681_282
    layer = TransformerMIL(3, 16, 2, dtype="float64")
    layer.build((None, None, 6))
    weights = PublishedWeights()
    layer.token.assign(weights.draw(1, 1, 16))
    weights.dense(layer.embed)
    second = weights.draw(16), weights.draw(16)
    weights.dense(layer.head)
    for norm, block, mlp in zip(layer.norms, layer.blocks, layer.mlps, strict=False):
        weights.dense(block.qkv)
        weights.dense(block.out)
        weights.norm(norm)
        second_norm, wide, narrow = mlp.layers
        weights.dense(wide)
        weights.dense(narrow)
        weights.norm(second_norm)
    weights.norm(layer.norms[-1])
    layer.last_norm.set_weights(second)
    close(layer(bag()[:1].astype("float64"))[0], [-0.197632736, 0.927623711, 0.385404049], 1e-8)


def test_transformer_saving_and_scores(tmp_path):
    layer, features = TransformerMIL(3, 16, 2), keras.Input((None, 6))
    model = keras.Model(features, layer(features))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    close(again(bag()), model(bag()), 0)
    assert again.layers[1].get_config() == layer.get_config()
    assert layer.scores(bag()).shape == (2, 11, 3)
    close(layer.attention(bag()).numpy().sum(1), [1, 1])


@pytest.mark.slow
def test_end_to_end_training(float64):
    """The encoder is trained as in the plain model, in slices of three instances."""
    check_training(lambda: TransformerMIL(2, 8, 2), entropy())

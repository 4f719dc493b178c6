"""DSMIL against its published code: the stream of instances, and attention to what is like the critical instance."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from aggregator_checks import check_any_size
from equations import bag, close, dense, softmax
from mil_models import check_training, entropy
from published_weights import PublishedWeights

from tfbig.models.dsmil import DSMIL

ATTENTION = [
    [0.024775222, 0.009164382, 0.002721652],
    [0.003819437, 0.489137898, 0.001860034],
    [0.036142696, 0.010716429, 0.899387143],
]
RECORDED = {
    False: {"bag": [0.210657702, -0.383001335, -1.241400984]},
    True: {"bag": [0.040620567, -0.729797313, -1.325454579]},
}
"""What the published code gives, by `values`; of the attention, that of the first three instances to each class."""
every_kind = pytest.mark.parametrize("values", [False, True], ids=["features", "values"])


def small(values=False, **options):
    return DSMIL(3, 8, values, **options)


def published(values):
    """Return a layer with the weights of the recorded module."""
    layer = DSMIL(3, values=values, dtype="float64")
    layer.build((None, None, 6))
    weights = PublishedWeights()
    for part in (layer.instances, *layer.q, *([layer.v] if values else [])):
        weights.dense(part)
    layer.head.kernel.assign(weights.draw(3, 3, 6).reshape(3, 18).T)
    layer.head.bias.assign(weights.draw(3))
    return layer


@pytest.mark.parametrize(("options", "count"), [({}, 85_252), ({"values": True}, 347_908)])
def test_parameters(options, count):
    layer = DSMIL(2, **options)
    layer.build((None, None, 512))
    assert layer.count_params() == count


@every_kind
def test_published_code(values):
    """Logits of both streams, and the attention that the published code gives for the same weights."""
    expected, layer = RECORDED[values], published(values)
    x = bag()[:1].astype("float64")
    outputs = layer(x)
    close(outputs["bag"][0], expected["bag"], 1e-8)
    close(outputs["max"][0], [0.668146213, 1.837981656, 2.342962979], 1e-8)
    predicted = int(np.argmax(expected["bag"]))
    close(layer.attention(x)[0, :3], np.array(ATTENTION)[:, predicted], 1e-8)


@every_kind
@pytest.mark.parametrize("count", [1, 2, 11])
def test_matches_equations(values, count):
    layer, x = small(values), bag(count=count)
    outputs, attention = layer(x), layer.attention(x)
    for item in range(2):
        h = x[item].astype("float64")
        c = dense(layer.instances, h)
        q = np.tanh(dense(layer.q[1], np.maximum(dense(layer.q[0], h), 0)))
        a = softmax(q[c.argmax(0)] @ q.T / np.sqrt(8), -1)
        v = np.maximum(dense(layer.v, h), 0) if values else h
        logits = dense(layer.head, (a @ v).reshape(-1))
        close(outputs["bag"][item], logits)
        close(outputs["max"][item], c.max(0))
        close(attention[item], a[logits.argmax()])
        close(layer.scores(x)[item], c)


def test_equal_scores_train_one_instance():
    """If several instances have the largest score, one has the gradient, as in the published code."""
    layer, x = small(), tf.constant(np.repeat(bag(1, 1), 3, 1))
    with tf.GradientTape() as tape:
        tape.watch(x)
        largest = tf.reduce_sum(layer(x)["max"])
    assert np.abs(tape.gradient(largest, x).numpy()).max(-1).astype(bool).sum() == 1


@every_kind
def test_any_bag_size(values):
    check_any_size(small(values))


@every_kind
def test_saving(values, tmp_path):
    inputs = keras.Input((None, 6))
    layer = small(values)
    outputs = layer(inputs)
    assert {name: t.shape for name, t in outputs.items()} == {"bag": (None, 3), "max": (None, 3)}
    model = keras.Model(inputs, outputs)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    for name, logits in model(bag()).items():
        close(again(bag())[name], logits, 0)
    assert again.layers[1].get_config() == layer.get_config()


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy):
    layer, x = small(dtype=policy), bag()
    outputs = layer(x)
    assert outputs["bag"].dtype == policy.removeprefix("mixed_")
    assert layer.attention(x).dtype == "float32"
    close(np.asarray(layer.attention(x)).sum(1), [1, 1])


@pytest.mark.slow
def test_end_to_end_training(float64):
    """Both losses reach the encoder as in the plain model, in slices of three instances."""
    losses = {"bag": entropy(), "max": entropy()}
    check_training(lambda: DSMIL(2, 4), losses, {"bag": 0.5, "max": 0.5})

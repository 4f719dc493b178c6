"""DTFD-MIL against its equations in float64: pseudo-bags of near-equal sizes, and each way to distil them."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from aggregator_checks import check_any_size
from equations import bag, close, dense, softmax
from exactness import gradients
from keras import ops

from tfbig.models.dtfd import DISTILLATIONS, DTFDMIL, PseudoBagLoss

GROUPS = 4
every_distillation = pytest.mark.parametrize("distillation", DISTILLATIONS)


def small(distillation="AFS", classes=3, instances=8, **options):
    options = {"width": 16, "hidden": 8, "groups": GROUPS} | options
    return DTFDMIL(classes, distillation=distillation, instances=instances, **options)


def gate(layer, h):
    inner = np.tanh(dense(layer.v, h)) / (1 + np.exp(-dense(layer.u, h)))
    return dense(layer.w, inner)[:, 0]


def distilled(layer, h, a, most):
    """Return the items distilled from one pseudo-bag with attention `a`."""
    kernel = layer.tier1.kernel.numpy().astype("float64")
    last = softmax((a[:, None] * h) @ kernel, 1)[:, -1]
    falling = np.argsort(-last, kind="stable")
    return {
        "AFS": lambda: (a @ h)[None],
        "MaxS": lambda: h[falling[:most]],
        "MaxMinS": lambda: h[[*falling[:most], *falling[::-1][:most]]],
        "MAS": lambda: h[[a.argmax()]],
    }[layer.distillation]()


def oracle(layer, x):
    """Return the logits of one bag `[n, d]` and of its pseudo-bags, and the attention of its instances."""
    h = np.maximum(dense(layer.reduce, x.astype("float64")), 0)
    for first, second in zip(layer.residual[::2], layer.residual[1::2], strict=True):
        h = h + np.maximum(dense(second, np.maximum(dense(first, h), 0)), 0)
    pseudo, items, weights = [], [], []
    for group in range(layer.groups):
        part = h[group :: layer.groups]
        a = softmax(gate(layer.gate1, part), 0)
        pseudo.append(dense(layer.tier1, a @ part))
        items.append(distilled(layer, part, a, max(layer.instances // layer.groups, 1)))
        weights.append(a)
    b = softmax(gate(layer.gate2, np.concatenate(items)), 0)
    ends = np.cumsum([len(part) for part in items])[:-1]
    attention = np.zeros(len(x))
    for group, share in enumerate(np.split(b, ends)):
        attention[group :: layer.groups] = weights[group] * share.sum()
    return dense(layer.tier2, b @ np.concatenate(items)), np.array(pseudo), attention


def test_parameters():
    layer = DTFDMIL(2)
    layer.build((None, None, 1024))
    assert layer.count_params() == 789_254


@every_distillation
@pytest.mark.parametrize(
    ("count", "blocks"),
    [
        (5, 0),
        (11, 2),
        *(
            pytest.param(count, blocks, marks=pytest.mark.slow)
            for count, blocks in [(4, 0), (8, 0), (11, 0), (17, 0), (4, 2), (5, 2), (8, 2), (17, 2)]
        ),
    ],
)
def test_matches_equations(distillation, count, blocks):
    """Pseudo-bags of 5 instances are smaller than the number of items to distil."""
    layer, x = small(distillation, blocks=blocks), bag(count=count)
    outputs, attention = layer(x), layer.attention(x)
    for i in range(2):
        logits, pseudo, expected = oracle(layer, x[i])
        close(outputs["bag"][i], logits)
        close(outputs["pseudo"][i], pseudo)
        close(attention[i], expected)


@every_distillation
def test_attention_and_scores(distillation):
    layer, x = small(distillation), bag(count=11)
    layer(x)
    attention = layer.attention(x).numpy()
    assert attention.shape == (2, 11)
    assert (attention >= 0).all()
    close(attention.sum(1), [1, 1])
    h = np.maximum(dense(layer.reduce, x.astype("float64")), 0)
    close(layer.scores(x), dense(layer.tier1, h))


@every_distillation
def test_bags_are_independent(distillation):
    layer, x = small(distillation), bag()
    both, alone = layer(x), layer(x[:1])
    close(both["bag"][:1], alone["bag"])
    close(both["pseudo"][:1], alone["pseudo"])


def test_ranking_of_instances_with_small_weights():
    """The rounded softmax is the same for 40,000 nearly equal instances, the rank is not."""
    layer = small("MaxS", classes=2, groups=1, instances=1)
    x = np.repeat(bag(1, 1), 40_000, 1)
    x[0, 31_234] *= 1.001
    layer(x)
    kernel = layer.tier1.kernel
    kernel.assign(ops.stop_gradient(layer.reduce(x)[0, :1, :, None])[0] * [[-1.0, 1.0]])
    h = layer.reduce(x)
    members = layer._members(h, False)
    chosen, _ = layer._choose_instances(h, layer._weights(h, members), members)
    assert int(chosen[0, 0]) == 31_234


def test_order_within_pseudo_bags_does_not_matter():
    layer, x = small(), bag(count=12)
    expected = layer(x)
    places = np.arange(12)
    within = layer(x[:, (places + GROUPS) % 12])
    close(within["bag"], expected["bag"])
    close(within["pseudo"], expected["pseudo"])
    whole = layer(x[:, (places + 1) % 12])  # pseudo-bag i + 1 is now i
    close(whole["bag"], expected["bag"])
    close(whole["pseudo"], np.roll(expected["pseudo"], -1, 1))
    across = layer(x[:, [1, 0, *range(2, 12)]])
    assert np.abs(across["pseudo"] - expected["pseudo"])[:, :2].max() > 1e-3
    close(across["pseudo"][:, 2:], expected["pseudo"][:, 2:])


# --------------------------------------------------------------------------------- pseudo-bags


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("count", [4, 5, 11, 16])
def test_pseudo_bags_partition_the_bag(training, count):
    members = small()._members(ops.zeros((2, count, 16)), training).numpy()
    np.testing.assert_array_equal(members.sum(1), 1)
    sizes = members.sum(2)
    assert sizes.max() - sizes.min() <= 1


def test_training_draws_new_pseudo_bags():
    layer, h = small(seed=3), ops.zeros((2, 40, 16))
    first, second = (layer._members(h, True).numpy() for _ in range(2))
    assert (first != second).any()
    assert (first[0] != first[1]).any()
    np.testing.assert_array_equal(small(seed=3)._members(h, True), first)


def test_only_training_shuffles():
    x = bag(count=40)
    layer = small()
    close(layer(x)["pseudo"], layer(x, training=False)["pseudo"], 0)
    assert np.abs(layer(x, training=True)["pseudo"] - layer(x)["pseudo"]).max() > 1e-3
    layer = small(shuffle=False)
    close(layer(x)["pseudo"], layer(x, training=True)["pseudo"], 0)


def test_too_few_instances():
    layer = small()
    with pytest.raises(ValueError, match="a bag of 3 instances cannot be split into 4 pseudo-bags"):
        layer(bag(count=3))

    @tf.function(input_signature=[tf.TensorSpec([None, None, 6])])
    def run(x):
        return layer(x)

    with pytest.raises(tf.errors.InvalidArgumentError, match="into 4 pseudo-bags: lower `groups`"):
        run(bag(count=3))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"distillation": "AVG"}, "distillation='AVG'; expected one of AFS, MaxS, MaxMinS, MAS"),
        ({"groups": 0}, "groups=0; expected at least 1"),
        ({"distillation": "MaxS", "classes": 1}, "classes=1; expected at least 2"),
    ],
)
def test_invalid_arguments(options, text):
    with pytest.raises(ValueError, match=text):
        small(**options)


# ------------------------------------------------------------------------------------ training


def first_tier(layer):
    return [*layer.reduce.weights, *layer.gate1.weights, *layer.tier1.weights]


def largest(gradient):
    return 0 if gradient is None else float(np.abs(gradient).max())


@every_distillation
def test_joint_training(distillation):
    """The gradient of the bag's logits reaches tier 1 only if `joint`."""
    x = tf.constant(bag())
    for joint in (False, True):
        layer = small(distillation, joint=joint)
        layer(x)
        weights = first_tier(layer)
        _, dx, (reduce, *others) = gradients(lambda x, f=layer: f(x)["bag"], x, weights)
        assert (largest(dx) > 1e-6) == joint
        assert (largest(reduce) > 1e-6) == joint
        gate1 = max(map(largest, others[:-2]))
        assert (gate1 > 1e-6) == (joint and distillation == "AFS")
        assert max(map(largest, others[-2:])) == 0  # tier 1 has no part in the bag's logits


@pytest.mark.parametrize(
    "distillation",
    ["AFS", *(pytest.param(d, marks=pytest.mark.slow) for d in DISTILLATIONS if d != "AFS")],
)
def test_every_weight_is_trained(distillation):
    inputs = keras.Input((None, 6))
    model = keras.Model(inputs, small(distillation, blocks=1, joint=False)(inputs))
    before = [w.numpy() for w in model.trainable_variables]
    losses = {
        "bag": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "pseudo": PseudoBagLoss(),
    }
    model.compile(keras.optimizers.SGD(1.0), losses, run_eagerly=True)
    labels = np.array([0, 2])
    model.train_on_batch(bag(), {"bag": labels, "pseudo": labels})
    unchanged = [
        w.path
        for w, b in zip(model.trainable_variables, before, strict=True)
        if not ops.any(w != b)
    ]
    # A constant added to all logits does not change a softmax.
    assert all(path.endswith(("gate1/w/bias", "gate2/w/bias")) for path in unchanged), unchanged


@pytest.mark.parametrize("shape", [(2,), (2, 1)])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_pseudo_bag_loss(shape, reduce):
    labels = np.array([0, 2])
    logits = np.random.default_rng(0).normal(size=(2, GROUPS, 3))
    each = -np.log(softmax(logits, -1))[np.arange(2), :, labels]
    loss = PseudoBagLoss(reduce)
    close(loss(labels.reshape(shape), logits), getattr(each, reduce)(1).mean())
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loss))
    close(again(labels.reshape(shape), logits), loss(labels.reshape(shape), logits), 0)
    weighted = loss(labels.reshape(shape), logits, sample_weight=np.array([1.0, 3.0]))
    close(weighted, (getattr(each, reduce)(1) * [1, 3]).sum() / 2)


def test_pseudo_bag_loss_with_invalid_arguments():
    with pytest.raises(ValueError, match="reduce='max'; expected 'sum' or 'mean'"):
        PseudoBagLoss("max")
    with pytest.raises(ValueError, match=r"labels of shape \(2, 3\); expected \[N\] or \[N, 1\]"):
        PseudoBagLoss()(np.zeros((2, 3)), np.zeros((2, GROUPS, 3)))


# ------------------------------------------------------------------------------------ in Keras


@pytest.mark.slow
@every_distillation
def test_any_bag_size(distillation):
    layer = small(distillation)
    outputs = layer(keras.Input((None, 6)))
    assert outputs["bag"].shape == (None, 3)
    assert outputs["pseudo"].shape == (None, GROUPS, 3)
    check_any_size(layer, (4, 5, 17))


def test_saving(tmp_path):
    inputs = keras.Input((None, 6))
    layer = small("MaxMinS", blocks=1, joint=False, shuffle=False, seed=5)
    model = keras.Model(inputs, layer(inputs))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    for name, logits in model(bag()).items():
        close(again(bag())[name], logits, 0)
    assert again.layers[1].get_config() == layer.get_config()


@every_distillation
@pytest.mark.parametrize(
    "policy", [pytest.param("mixed_float16", marks=pytest.mark.slow), "mixed_bfloat16"]
)
def test_mixed_precision(distillation, policy):
    layer, x = small(distillation, dtype=policy), bag(count=11)
    outputs = layer(x)
    assert {str(t.dtype.name) for t in outputs.values()} == {policy.removeprefix("mixed_")}
    assert layer.attention(x).dtype == "float32"
    close(ops.sum(layer.attention(x), 1), [1, 1])
    logits, pseudo, _ = oracle(layer, x[0])
    if distillation == "AFS":  # the others may choose another instance
        close(ops.cast(outputs["bag"][0], "float32"), logits, 0.03)
    close(ops.cast(outputs["pseudo"][0], "float32"), pseudo, 0.03)

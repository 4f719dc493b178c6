"""DTFD-MIL: pseudo-bags of near-equal sizes, and each way to distil them, against its equations in float64."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from equations import bag, close, dense, softmax
from exactness import gradients
from keras import ops

from tfbig.models.dtfd import DISTILLATIONS, DTFDMIL, PseudoBagLoss

GROUPS = 4
every = pytest.mark.parametrize("distillation", DISTILLATIONS)


def small(distillation="AFS", classes=3, instances=8, **options):
    options = {"width": 16, "hidden": 8, "groups": GROUPS} | options
    return DTFDMIL(classes, distillation=distillation, instances=instances, **options)


def gate(layer, h):
    inner = np.tanh(dense(layer.v, h)) / (1 + np.exp(-dense(layer.u, h)))
    return dense(layer.w, inner)[:, 0]


def distilled(layer, h, a, most):
    """Items of one pseudo-bag with attention `a`."""
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
    """Logits of one bag `[n, d]` and of its pseudo-bags, and the attention of its instances."""
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


def test_parameters_are_as_published():
    layer = DTFDMIL(2)
    layer.build((None, None, 1024))
    assert layer.count_params() == 789_254


@every
@pytest.mark.parametrize("count", [4, 5, 8, 11, 17])
@pytest.mark.parametrize("blocks", [0, 2])
def test_it_is_its_equations(distillation, count, blocks):
    """With 5 instances, pseudo-bags are smaller than what could be distilled."""
    layer, x = small(distillation, blocks=blocks), bag(count=count)
    found, attention = layer(x), layer.attention(x)
    for i in range(2):
        logits, pseudo, expected = oracle(layer, x[i])
        close(found["bag"][i], logits)
        close(found["pseudo"][i], pseudo)
        close(attention[i], expected)


@every
def test_a_bag_gives_attention_and_scores(distillation):
    layer, x = small(distillation), bag(count=11)
    layer(x)
    attention = layer.attention(x).numpy()
    assert attention.shape == (2, 11)
    assert (attention >= 0).all()
    close(attention.sum(1), [1, 1])
    h = np.maximum(dense(layer.reduce, x.astype("float64")), 0)
    close(layer.scores(x), dense(layer.tier1, h))


@every
def test_bags_of_a_batch_do_not_see_each_other(distillation):
    layer, x = small(distillation), bag()
    both, alone = layer(x), layer(x[:1])
    close(both["bag"][:1], alone["bag"])
    close(both["pseudo"][:1], alone["pseudo"])


def test_instances_are_ranked_where_they_all_weigh_little():
    """Of 40,000 alike, the rounded softmax does not tell two from each other."""
    layer = small("MaxS", classes=2, groups=1, instances=1)
    x = np.repeat(bag(1, 1), 40_000, 1)
    x[0, 31_234] *= 1.001
    layer(x)
    kernel = layer.tier1.kernel
    kernel.assign(ops.stop_gradient(layer.reduce(x)[0, :1, :, None])[0] * [[-1.0, 1.0]])
    h = layer.reduce(x)
    members = layer._members(h, False)
    chosen, _ = layer._chosen(h, layer._weights(h, members), members)
    assert int(chosen[0, 0]) == 31_234


def test_order_matters_between_pseudo_bags_only():
    layer, x = small(), bag(count=12)
    found = layer(x)
    places = np.arange(12)
    within = layer(x[:, (places + GROUPS) % 12])
    close(within["bag"], found["bag"])
    close(within["pseudo"], found["pseudo"])
    whole = layer(x[:, (places + 1) % 12])  # pseudo-bag i + 1 is now i
    close(whole["bag"], found["bag"])
    close(whole["pseudo"], np.roll(found["pseudo"], -1, 1))
    across = layer(x[:, [1, 0, *range(2, 12)]])
    assert np.abs(across["pseudo"] - found["pseudo"])[:, :2].max() > 1e-3
    close(across["pseudo"][:, 2:], found["pseudo"][:, 2:])


# --------------------------------------------------------------------------------- pseudo-bags


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("count", [4, 5, 11, 16])
def test_every_instance_is_in_one_of_near_equal_pseudo_bags(training, count):
    members = small()._members(ops.zeros((2, count, 16)), training).numpy()
    np.testing.assert_array_equal(members.sum(1), 1)
    sizes = members.sum(2)
    assert sizes.max() - sizes.min() <= 1


def test_training_draws_other_pseudo_bags_in_each_step_and_bag():
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
def test_arguments_that_are_none(options, text):
    with pytest.raises(ValueError, match=text):
        small(**options)


# ------------------------------------------------------------------------------------ training


def first_tier(layer):
    return [*layer.reduce.weights, *layer.gate1.weights, *layer.tier1.weights]


def largest(gradient):
    return 0 if gradient is None else float(np.abs(gradient).max())


@every
def test_the_second_tier_trains_the_first_only_if_joint(distillation):
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
        assert max(map(largest, others[-2:])) == 0  # nothing of it is in the bag's logits


@every
def test_every_weight_learns(distillation):
    inputs = keras.Input((None, 6))
    model = keras.Model(inputs, small(distillation, blocks=1, joint=False)(inputs))
    before = [w.numpy() for w in model.trainable_variables]
    named = {
        "bag": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "pseudo": PseudoBagLoss(),
    }
    model.compile(keras.optimizers.SGD(1.0), named)
    labels = np.array([0, 2])
    model.train_on_batch(bag(), {"bag": labels, "pseudo": labels})
    still = [
        w.path
        for w, b in zip(model.trainable_variables, before, strict=True)
        if not ops.any(w != b)
    ]
    # What is added to all that a softmax sees changes nothing.
    assert all(path.endswith(("gate1/w/bias", "gate2/w/bias")) for path in still), still


@pytest.mark.parametrize("shape", [(2,), (2, 1)])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_loss_of_pseudo_bags(shape, reduce):
    labels = np.array([0, 2])
    logits = np.random.default_rng(0).normal(size=(2, GROUPS, 3))
    each = -np.log(softmax(logits, -1))[np.arange(2), :, labels]
    loss = PseudoBagLoss(reduce)
    close(loss(labels.reshape(shape), logits), getattr(each, reduce)(1).mean())
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loss))
    close(again(labels.reshape(shape), logits), loss(labels.reshape(shape), logits), 0)
    weighted = loss(labels.reshape(shape), logits, sample_weight=np.array([1.0, 3.0]))
    close(weighted, (getattr(each, reduce)(1) * [1, 3]).sum() / 2)


def test_loss_of_what_it_does_not_know():
    with pytest.raises(ValueError, match="reduce='max'; expected 'sum' or 'mean'"):
        PseudoBagLoss("max")
    with pytest.raises(ValueError, match=r"labels of shape \(2, 3\); expected \[N\] or \[N, 1\]"):
        PseudoBagLoss()(np.zeros((2, 3)), np.zeros((2, GROUPS, 3)))


# ------------------------------------------------------------------------------------ in Keras


@every
def test_bags_of_any_size(distillation):
    layer = small(distillation)
    inputs = keras.Input((None, 6))
    outputs = layer(inputs)
    assert outputs["bag"].shape == (None, 3)
    assert outputs["pseudo"].shape == (None, GROUPS, 3)
    model = keras.Model(inputs, outputs)
    for count in (4, 5, 17):
        x = bag(count=count)
        found, expected = model.predict(x, verbose=0), layer(x)
        close(found["bag"], expected["bag"])
        close(found["pseudo"], expected["pseudo"])


def test_it_is_saved_with_its_model(tmp_path):
    inputs = keras.Input((None, 6))
    layer = small("MaxMinS", blocks=1, joint=False, shuffle=False, seed=5)
    model = keras.Model(inputs, layer(inputs))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    for name, logits in model(bag()).items():
        close(again(bag())[name], logits, 0)
    assert again.layers[1].get_config() == layer.get_config()


@every
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(distillation, policy):
    layer, x = small(distillation, dtype=policy), bag(count=11)
    found = layer(x)
    assert {str(t.dtype.name) for t in found.values()} == {policy.removeprefix("mixed_")}
    assert layer.attention(x).dtype == "float32"
    close(ops.sum(layer.attention(x), 1), [1, 1])
    logits, pseudo, _ = oracle(layer, x[0])
    if distillation == "AFS":  # others may choose another instance
        close(ops.cast(found["bag"][0], "float32"), logits, 0.03)
    close(ops.cast(found["pseudo"][0], "float32"), pseudo, 0.03)

"""CLAM against its published code: attention of one branch or of one for each class, and the loss of instances."""

import keras
import numpy as np
import pytest
from aggregator_checks import check_any_size
from equations import bag, close, softmax
from keras import ops
from mil_models import check_training, entropy
from published_weights import PublishedWeights

from tfbig.models.clam import CLAM, NEVER, InstanceLoss

slow = pytest.mark.slow
every_kind = pytest.mark.parametrize("per_class", [False, True], ids=["sb", "mb"])
RECORDED = {
    False: {
        "bag": [-0.92770145, 7.567214149, 1.246370925],
        "attention": [[0.00550569, 0.002275913, 0.002028166]],
        "losses": {
            ("cross_entropy", False): 1.9164084338329075,
            ("svm", False): 2.4777164337649076,
            ("cross_entropy", True): 0.9925747756307238,
            ("svm", True): 1.466269455885972,
        },
    },
    True: {
        "bag": [2.8596532, -3.6955059, 0.5670644],
        "attention": [
            [0.00550569, 0.002275913, 0.002028166],
            [0.012231029, 0.008550316, 0.011759135],
            [0.011841855, 0.005446127, 0.037415025],
        ],
        "losses": {
            ("cross_entropy", False): 2.0267908383283944,
            ("svm", False): 2.63864213590721,
            ("cross_entropy", True): 2.4158384365939294,
            ("svm", True): 3.178211502631797,
        },
    },
}
"""What the published code gives, by `per_class`: logits, attention of the first three instances, losses of label 1."""


def small(per_class=False, **options):
    options = {"width": 16, "hidden": 8, "samples": 4, "rate": 0.0} | options
    return CLAM(3, per_class=per_class, **options)


def published(per_class):
    """Return a layer with the weights of the recorded module."""
    layer = CLAM(3, samples=4, per_class=per_class, dtype="float64")
    layer.build((None, None, 6))
    weights = PublishedWeights()
    for dense in (layer.reduce, layer.v, layer.u, layer.w):
        weights.dense(dense)
    weights.dense(layer.head, 3 if per_class else 1)
    weights.dense(layer.instances, 3)
    return layer


@pytest.mark.parametrize(
    ("options", "count"),
    [({}, 790_791), ({"per_class": True}, 791_048), ({"hidden": 384}, 922_247)],
)
def test_parameters(options, count):
    """The numbers of CLAM-SB, of CLAM-MB, and of the big CLAM-SB."""
    layer = CLAM(2, **options)
    layer.build((None, None, 1024))
    assert layer.count_params() == count


@every_kind
def test_published_code(per_class):
    """Logits, attention and the four losses that the published code gives for the same weights."""
    expected, layer = RECORDED[per_class], published(per_class)
    x = bag()[:1].astype("float64")
    outputs = layer(x)
    # CLAM-MB rounds its logits to float32.
    close(outputs["bag"][0], expected["bag"], 1e-7 if per_class else 1e-8)
    attention = expected["attention"][int(np.argmax(expected["bag"])) if per_class else 0]
    close(layer.attention(x)[0, :3], attention, 1e-8)
    for (kind, subtyping), value in expected["losses"].items():
        loss = InstanceLoss(kind, subtyping, dtype="float64")
        # The published support vector machine is a hinge where logits differ by more than 6.9.
        tolerance = 1e-8 if kind == "cross_entropy" else 1e-4
        close(loss(np.array([1]), outputs["instances"]), value, tolerance)


@every_kind
def test_instances_are_the_ends_of_the_attention(per_class):
    layer, x = small(per_class), bag()
    logits = layer(x)["instances"].numpy()
    h = layer.reduce(x).numpy()
    a = layer._logits(ops.convert_to_tensor(h)).numpy()
    for item in range(2):
        for label in range(3):
            order = np.argsort(-a[item, label if per_class else 0])
            chosen = np.concatenate([order[:4], order[::-1][:4]])
            expected = layer.instances(h[item, chosen]).numpy()[:, 2 * label : 2 * label + 2]
            close(logits[item, label], expected)


@every_kind
def test_scores_and_attention(per_class):
    """An instance has the logits of a bag of it alone; attention is that of the predicted class."""
    layer, x = small(per_class), bag()
    outputs = layer(x)
    attention = layer.attention(x).numpy()
    close(attention.sum(1), [1, 1])
    scores = layer.scores(x)
    for number in (0, 5):
        close(layer(x[:, number : number + 1])["bag"], scores[:, number])
    if per_class:
        predicted = np.argmax(outputs["bag"], -1)
        weights = softmax(layer._logits(layer.reduce(x)).numpy(), -1)
        close(attention, weights[np.arange(2), predicted])


@every_kind
def test_small_bags(per_class):
    """A bag of three instances gives each of them at both ends; the loss leaves out the fourth."""
    layer, x = small(per_class), bag(count=3)
    logits = layer(x)["instances"].numpy()
    assert (logits[:, :, [3, 7]] == np.float32(NEVER)).all()
    assert (np.abs(logits[:, :, [0, 1, 2, 4, 5, 6]]) < 1e3).all()
    labels = np.array([0, 2])
    for subtyping in (False, True):
        whole = InstanceLoss(subtyping=subtyping)(labels, logits)
        rest = InstanceLoss(subtyping=subtyping)(labels, logits[:, :, [0, 1, 2, 4, 5, 6]])
        close(whole, rest)


@pytest.mark.parametrize("kind", ["cross_entropy", "svm"])
@pytest.mark.parametrize("shape", [(2,), (2, 1)])
def test_instance_loss(kind, shape):
    """Losses of both bags against their definition, and a weight of each bag."""
    logits, labels = np.random.default_rng(0).normal(size=(2, 3, 8, 2)), np.array([0, 2])
    extra = 1 - np.eye(2) if kind == "svm" else np.zeros((2, 2))

    def each(x, target):
        x = x + extra[target]
        return (np.log(np.exp(x).sum(-1)) - x[..., target]).mean()

    expected = []
    for label, x in zip(labels, logits, strict=True):
        inside = (each(x[label, :4], 1) + each(x[label, 4:], 0)) / 2
        others = [each(x[c, :4], 0) for c in range(3) if c != label]
        expected.append([inside, (inside + sum(others)) / 3])
    for column, subtyping in enumerate((False, True)):
        loss = InstanceLoss(kind, subtyping)
        losses = np.array(expected)[:, column]
        close(loss(labels.reshape(shape), logits), losses.mean())
        weighted = loss(labels.reshape(shape), logits, sample_weight=np.array([1.0, 3.0]))
        close(weighted, (losses * [1, 3]).sum() / 2)
        again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loss))
        assert again.get_config() == loss.get_config()


def test_invalid_arguments():
    with pytest.raises(ValueError, match="samples=0; expected at least 1 instance"):
        small(samples=0)
    with pytest.raises(ValueError, match="kind='hinge'; expected 'cross_entropy' or 'svm'"):
        InstanceLoss("hinge")
    with pytest.raises(ValueError, match=r"labels of shape \(2, 3\); expected \[N\] or \[N, 1\]"):
        InstanceLoss()(np.zeros((2, 3)), np.zeros((2, 3, 8, 2)))


@every_kind
def test_any_bag_size(per_class):
    check_any_size(small(per_class))


def test_bags_are_independent():
    layer, x = small(True), bag()
    for name, logits in layer(x).items():
        close(logits[:1], layer(x[:1])[name])


@every_kind
def test_saving(per_class, tmp_path):
    inputs = keras.Input((None, 6))
    layer = small(per_class, gated=False)
    outputs = layer(inputs)
    assert {name: t.shape for name, t in outputs.items()} == {
        "bag": (None, 3),
        "instances": (None, 3, 8, 2),
    }
    model = keras.Model(inputs, outputs)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    for name, logits in model(bag()).items():
        close(again(bag())[name], logits, 0)
    assert again.layers[1].get_config() == layer.get_config()


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy):
    layer, x = small(True, dtype=policy), bag(count=3)
    outputs = layer(x)
    assert layer.attention(x).dtype == "float32"
    assert np.isfinite(float(InstanceLoss()(np.array([0, 2]), outputs["instances"])))


@pytest.mark.slow
@pytest.mark.parametrize("per_class", [True, pytest.param(False, marks=slow)])
def test_end_to_end_training(per_class, float64):
    """Both losses reach the encoder as in the plain model, in slices of three instances, small bags included."""

    def aggregator():
        return CLAM(2, 8, 4, per_class, 5, rate=0.0)

    losses = {"bag": entropy(), "instances": InstanceLoss("svm", subtyping=True)}
    check_training(aggregator, losses, {"bag": 0.7, "instances": 0.3})

"""Learning rates and TensorBoard."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
import yaml
from cli_runs import run_segmentation
from samples import ROOT

import train
from tfbig.cli.settings.tasks import MILSettings
from tfbig.cli.tasks import fitting
from tfbig.cli.tasks.task import Models
from tfbig.training import Epochs


def test_scheduled_rate():
    """The published rate rises to the peak in two epochs, then decreases linearly to half in the other 98."""
    flags = ["--lr", "1e-3", "--schedule", "linear", "--warmup", "2", "--epochs", "100"]
    options = train.settings_of(["--task", "images", *flags])
    rates = [fitting.scheduled_rate(options, epoch) for epoch in (0, 1, 2, 51, 100)]
    assert rates == pytest.approx([0, 5e-4, 1e-3, 7.5e-4, 5e-4])
    cosine = replace(options, schedule="cosine")
    assert fitting.scheduled_rate(cosine, 51) == pytest.approx(5e-4)
    by_step = replace(options, schedule="step-cosine", warmup=None)
    assert fitting.scheduled_rate(by_step, 25) == pytest.approx(
        float(keras.optimizers.schedules.CosineDecay(1e-3, 400)(100))
    )
    callback = fitting.PerStep(lambda epochs: epochs, 4)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    callback.set_model(model)
    callback.on_epoch_begin(3)
    callback.on_train_batch_begin(2)
    assert float(model.optimizer.learning_rate) == 3.5


X = np.random.default_rng(0).normal(size=(17, 3)).astype("float32")
Y = np.random.default_rng(1).normal(size=(17, 1)).astype("float32")
START = np.array([[0.5], [-1.0], [0.25]], "float32")


def recipe(name, **changes):
    return replace(train.settings_of(["--config", str(ROOT / f"recipes/{name}.yaml")]), **changes)


def trained(settings, folder, batches):
    """Train a linear model on the first items of `X`, one in a batch; return it and the rate of each epoch."""
    settings = replace(settings, keep="last", quiet=True)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([START])
    models, rates = Models(model, model), []
    optimizer = fitting.make_optimizer(settings, batches)
    weights = [fitting.loss_weight(settings)]
    fitting.compile_both(models, optimizer, "mse", weights, list)

    def data(shard):
        items = shard.items(batches, 1)
        return tf.data.Dataset.from_tensor_slices((X[items], Y[items])).batch(1)

    def training(shard):  # read once an epoch, after its rate was set
        rates.append(float(optimizer.learning_rate))
        return data(shard)

    (folder / "versions.json").write_text('{"run": "a run"}')
    epochs, validation = Epochs(batches, training), Epochs(1, data)
    fitting.fit_and_keep(models, settings, folder, epochs, validation, "val_loss")
    return model, rates


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("big-layers-panda-cosine-as-published", lambda e: 1e-4 * np.cos(np.pi * e / 40) ** 2),
        ("big-layers-panda-exponential-as-published", lambda epoch: 1e-4 * 0.955**epoch),
        ("gigapixel-as-published", lambda epoch: 1e-3),
    ],
    ids=["cosine", "exponential", "constant"],
)
def test_learning_rates_of_recipes(name, rate, tmp_path):
    """The rates are those of the paper in all of its epochs: 20, 45 and 20."""
    _, rates = trained(recipe(name), tmp_path, 1)
    assert len(rates) == (45 if "exponential" in name else 20)
    np.testing.assert_allclose(rates, [rate(e) for e in range(len(rates))], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "updates"),
    [
        ("big-layers-panda-cosine-as-published", 2),
        ("big-layers-panda-exponential-as-published", 17),
    ],
)
def test_updates_of_recipes(name, updates, tmp_path):
    """The cosine accumulates the gradients of 16 of 17 batches, and the exponential decay those of one."""
    model, _ = trained(recipe(name, epochs=1), tmp_path, 17)
    assert int(model.optimizer.iterations) == updates


def adam(w, gradients, lr, l2):
    """Return a weight after the updates of Adam, as its paper has them, with an L2 penalty in the gradient."""
    m = v = np.zeros_like(w)
    for t, gradient in enumerate(gradients, 1):
        g = gradient + l2 * w
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        w = w - lr * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return w


@pytest.mark.parametrize(
    ("name", "lr", "l2"),
    [
        ("abmil-acc-qmnist-as-published", 5e-5, 1e-3),
        ("abmil-acc-imagenette-as-published", 5e-5, 1e-3),
        ("big-layers-panda-cosine-as-published", 1e-4, 1e-4),
        ("big-layers-panda-exponential-as-published", 1e-4, 1e-4),
        ("gigapixel-as-published", 1e-3, 0),
        ("patchgd-har-as-published", 1e-3, 0),
    ],
)
def test_optimizers_of_recipes(name, lr, l2):
    """The penalty shows, because the gradients are about as small."""
    random, size = np.random.default_rng(2), l2 or 1e-3
    start = random.uniform(1, 2, 5)
    signs, lengths = random.choice([-1, 1], (4, 5)), random.uniform(2, 4, (4, 5))
    gradients = size * signs * lengths
    optimizer = fitting.make_optimizer(recipe(name), 10)
    variable = keras.Variable(start, dtype="float64")
    for gradient in gradients:
        optimizer.apply([tf.constant(gradient)], [variable])
    moved = variable.numpy() - start
    expected, other = (
        adam(start, gradients, lr, penalty) - start for penalty in (l2, 0 if l2 else size)
    )
    np.testing.assert_allclose(moved, expected, rtol=0, atol=0.02 * lr)  # epsilon is another
    assert abs(moved - other).max() > 0.2 * lr


@pytest.mark.parametrize(
    ("flags", "factor", "limit"),
    [({}, 1, None), ({"sum": True}, 3, None), ({"sum": True, "clip": 1.0}, 3, 1.0)],
    ids=["mean", "sum", "sum and clip"],
)
def test_sums_and_clipping(flags, factor, limit, tmp_path):
    """The gradients of three batches are averaged, or added up with `--sum`; `--clip` limits their norm."""
    settings = MILSettings(optimizer="adam", epsilon=0.1, lr=0.5, accumulate=3, epochs=1, **flags)
    model, _ = trained(replace(settings, schedule="constant"), tmp_path, 3)
    assert int(model.optimizer.iterations) == 1
    x, y, w = X[:3].astype(float), Y[:3].astype(float), START.astype(float)
    gradient = factor * 2 * x.T @ (x @ w - y) / 3
    if limit:
        norm = np.linalg.norm(gradient)
        assert norm > 2 * limit
        gradient *= limit / norm
    # Adam's first update: m is a tenth of the gradient, v a thousandth of its square.
    expected = w - 0.5 * gradient / (abs(gradient) + 0.1 / np.sqrt(0.001))
    np.testing.assert_allclose(model.get_weights()[0], expected, rtol=1e-5)


@pytest.mark.slow
def test_tensorboard_and_quiet(logged_run):
    out = logged_run.folder
    assert logged_run.code == 0
    events = list((out / "tensorboard").rglob("events.out.tfevents.*"))
    assert {path.parent.name for path in events} == {"train", "validation"}
    assert "Epoch 1/1" not in logged_run.out
    assert "quiet" not in yaml.safe_load((out / "config.yaml").read_text())


def test_tensorboard_is_not_installed(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run_segmentation(data, tmp_path / "out", "--tensorboard") == 1
    assert "pip install 'tfbig[log]'" in capsys.readouterr().err

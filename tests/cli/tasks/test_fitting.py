"""Learning rates and TensorBoard."""

from dataclasses import replace

import keras
import pytest
import yaml
from cli_runs import run_segmentation

import train
from tfbig.cli.tasks import fitting


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

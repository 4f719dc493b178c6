"""Steps on risk sets: how many bags or images a step has, and what the worker reads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import target_bags
import target_images
import tensorflow as tf
from cli_runs import history, metrics, without
from samples import ENVIRONMENT, ROOT
from worker_processes import ended, free_ports

import train
from tfbig.cli.settings.tasks import ImageSettings, MILSettings
from tfbig.cli.tasks import risk_set_steps
from tfbig.sources import ArraySource

COX = {"target": "survival", "survival_loss": "cox", "accumulate": 7, "batch_size": 1}


@pytest.mark.parametrize(
    ("settings", "items"),
    [
        (MILSettings(**COX), 7),
        (MILSettings(accumulate=7, batch_size=2), 2),
        (ImageSettings(**COX, mode="offload"), 7),
        (ImageSettings(**{**COX, "batch_size": 5}, mode="patchgd"), 5),
    ],
)
def test_items_of_a_step(settings: MILSettings | ImageSettings, items: int) -> None:
    assert risk_set_steps.items_of_step(settings) == items
    assert (risk_set_steps.worker_of(settings, dense=False) is not None) == (items == 7)


def test_gradient_is_that_of_all_members() -> None:
    """The worker reads images by handle; one step moves the weights against the gradient of Cox's loss of all."""
    images = [ArraySource(np.full((4, 4, 1), value, np.uint8)) for value in (1, 3, 2)]
    model = keras.Sequential(
        [keras.Input((4, 4, 1)), keras.layers.Flatten(), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.SGD(1.0), "mse")
    labels = np.array([[0, 1, 0, 0], [0, 1, 2, 1], [0, 0, 1, 2]], np.int64)
    make = risk_set_steps.worker_of(MILSettings(**COX), dense=True)
    assert make is not None
    worker = make(model)
    handles = tf.constant([image.handle for image in images])
    before = model.layers[-1].kernel.numpy().copy()
    worker.prepare([(handles, labels)], None)()
    worker.apply()
    pixels = np.stack([image.read(0, 4).ravel() for image in images]).astype(np.float64)
    risks = pixels @ before.astype(np.float64)[:, 0]
    # of two events, the last is alone under observation: only the first teaches
    chances = np.exp(risks - risks.max()) / np.exp(risks - risks.max()).sum()
    expected = (chances @ pixels - pixels[0]) / 2
    np.testing.assert_allclose(
        before[:, 0] - model.layers[-1].kernel.numpy()[:, 0], expected, atol=1e-5
    )


def workers(count: int, flags: list[str]) -> list[subprocess.Popen[str]]:
    """Start `train.py` as several workers."""
    cluster = {"worker": [f"localhost:{port}" for port in free_ports(count)]}
    configs = [
        json.dumps({"cluster": cluster, "task": {"type": "worker", "index": i}})
        for i in range(count)
    ]
    command = [sys.executable, str(ROOT / "train.py"), *flags, "--strategy", "multiworker"]
    return [
        subprocess.Popen(
            command, env=ENVIRONMENT | {"TF_CONFIG": text}, stderr=subprocess.PIPE, text=True
        )
        for text in configs
    ]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["bags", "images"])
def test_two_workers_end_as_one(task: str, tmp_path: Path) -> None:
    """They share the members of each risk set: features of bags in plain Keras, and streamed images."""
    write = target_bags if task == "bags" else target_images
    flags = [
        *(without(write.FLAGS, "--patch", "--sampling") if task == "images" else write.FLAGS),
        *("--target", "survival", "--survival-loss", "cox", "--batch-size", "1"),
        *("--accumulate", "8", "--epochs", "2", "--precision", "float64"),
        *("--data", str(write.write(tmp_path / "data", "survival"))),
        *(("--mode", "offload") if task == "images" else ()),
    ]
    for code, errors in ended(workers(2, [*flags, "--out", str(tmp_path / "two")])):
        assert code == 0, errors
    assert train.main([*flags, "--out", str(tmp_path / "one")]) == 0
    rows, expected = history(tmp_path / "two"), history(tmp_path / "one")
    for row, other in zip(rows, expected, strict=True):
        assert row == pytest.approx(other, rel=1e-9)
    found = metrics(tmp_path / "two")["test_concordance"]
    assert found == metrics(tmp_path / "one")["test_concordance"]

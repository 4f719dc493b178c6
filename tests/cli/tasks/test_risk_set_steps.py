"""Steps on risk sets: how many bags or images a step has, and what the worker reads."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfbig.cli.settings.tasks import MILSettings, PatchGDSettings
from tfbig.cli.tasks import risk_set_steps
from tfbig.sources import ArraySource

COX = {"target": "survival", "survival_loss": "cox", "accumulate": 7, "batch_size": 1}


@pytest.mark.parametrize(
    ("settings", "items"),
    [
        (MILSettings(**COX), 7),
        (MILSettings(accumulate=7, batch_size=2), 2),
        (PatchGDSettings(**COX, mode="offload"), 7),
        (PatchGDSettings(**{**COX, "batch_size": 5}, mode="patchgd"), 5),
    ],
)
def test_items_of_a_step(settings: MILSettings | PatchGDSettings, items: int) -> None:
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
    worker.commit()
    worker.apply()
    pixels = np.stack([image.read(0, 4).ravel() for image in images]).astype(np.float64)
    risks = pixels @ before.astype(np.float64)[:, 0]
    # of two events, the last is alone under observation: only the first teaches
    chances = np.exp(risks - risks.max()) / np.exp(risks - risks.max()).sum()
    expected = (chances @ pixels - pixels[0]) / 2
    np.testing.assert_allclose(
        before[:, 0] - model.layers[-1].kernel.numpy()[:, 0], expected, atol=1e-5
    )

"""Warm start for UltraMNIST: train the trunk on single digits first, as in PatchGD (appendix D, low-memory runs)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras

from tfbig import SourceError
from tfbig.cli import machine
from tfbig.cli.data import images
from tfbig.cli.settings.choices import WARM_START_EPOCHS
from tfbig.cli.settings.tasks import ImageSettings
from tfbig.cli.tasks import fitting
from tfbig.models import encoders
from tfbig.results import run_folder
from tfbig.training import Checkpoints, Epochs, Loop

DIGITS = 20000
"""Number of single digits."""
CHECKPOINTS = "warm-start"
"""Folder of the checkpoints of the warm start, inside the run folder; a resumed run skips what is done."""


def epochs(settings: ImageSettings) -> int:
    """Return the number of epochs on single digits.

    Args:
        settings: Settings of the run.

    Raises:
        SourceError: The images are not UltraMNIST.
    """
    digits = settings.images in images.POOLS
    if settings.warm_start and not digits:
        raise SourceError(
            f"--warm-start {settings.warm_start}: needs the single digits of UltraMNIST; for --images "
            f"{settings.images} use --encoder-weights RUN."
        )
    if settings.warm_start is not None:
        return settings.warm_start
    return WARM_START_EPOCHS if digits and not settings.encoder_weights else 0


def learn(
    trunk: Any, settings: ImageSettings, folder: Path, epochs: int, scale: Mapping[str, Any]
) -> None:
    """Train the trunk on single digits.

    Args:
        trunk: Network of an encoder, for images or patches of any size.
        settings: Settings of the run.
        folder: Run folder.
        epochs: Number of epochs.
        scale: Options of `encoders.make` that scale the pixels.
    """
    digits = images.single_digits(settings, DIGITS)
    shape, count = digits.images[0].shape, len(digits.labels)
    print(f"warm start: {count} single digits of {shape[0]} x {shape[1]}, {epochs} epochs")
    options = replace(settings, batch_size=64, augment=None)
    steps = images.steps(digits, options)
    schedule = keras.optimizers.schedules.CosineDecay(3e-3, steps * epochs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with machine.scope():
        encoder = encoders.make(settings.encoder, shape, **scale)
        model = keras.Sequential([encoder, keras.layers.Dense(10)])
        model.compile(keras.optimizers.Adam(schedule), loss, metrics=["accuracy"])
    kept = Checkpoints(folder / CHECKPOINTS, run_folder.identity(folder))
    Loop(
        model,
        Epochs(steps, lambda shard: images.dataset(digits, options, True, shard, True)),
        epochs=epochs,
        checkpoints=kept,
        every_seconds=60 * settings.checkpoint_minutes,
        verbose=fitting.verbosity(settings),
    ).run()
    trunk.set_weights(encoder.get_weights())

"""A warm start for UltraMNIST: the trunk learns single digits first, as PatchGD's low-memory runs (appendix D)."""

from argparse import Namespace

import keras

from tfbig import SourceError
from tfbig.cli import machine
from tfbig.cli import settings as command_line
from tfbig.cli.data import images
from tfbig.cli.tasks import classifier_training
from tfbig.models import encoders
from tfbig.results import run_folder
from tfbig.training import Checkpoints, Epochs, Loop

DIGITS, EPOCHS = 20000, 4
"""Single digits, and epochs by default."""
CHECKPOINTS = "warm-start"
"""Folder of the run with the checkpoints of the warm start; a run that is resumed ends it at once."""


def add_flag(add):
    """How long it takes."""
    add(
        "--warm-start",
        type=command_line.natural,
        metavar="EPOCHS",
        help="epochs in which the trunk learns single digits first; 0: it does not (default: "
        f"{EPOCHS} for UltraMNIST without --backbone, which is hardly learned from its sums alone)",
    )


def epochs(settings):
    """Epochs of single digits."""
    digits = settings.images in images.POOLS
    if settings.warm_start and not digits:
        raise SourceError(
            f"--warm-start {settings.warm_start}: it is by single digits, those of UltraMNIST; for --images "
            f"{settings.images} give --backbone RUN."
        )
    if settings.warm_start is not None:
        return settings.warm_start
    return EPOCHS if digits and not settings.backbone else 0


def learn(trunk, settings, folder, scale):
    """Gives the trunk weights that know single digits.

    Args:
        trunk: the network of an encoder, for images or patches of any size.
        settings: of the run.
        folder: of the run.
        scale: options of `encoders.make` that say how pixels are scaled.
    """
    digits = images.single_digits(settings, DIGITS)
    shape, count = digits.images[0].shape, len(digits.labels)
    print(
        f"warm start: {count} single digits of {shape[0]} x {shape[1]}, {settings.warm_start} epochs"
    )
    own = Namespace(**vars(settings) | {"batch_size": 64, "augment": None})
    steps = images.steps(digits, own)
    schedule = keras.optimizers.schedules.CosineDecay(3e-3, steps * settings.warm_start)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with machine.scope():
        encoder = encoders.make(settings.encoder, shape, **scale)
        model = keras.Sequential([encoder, keras.layers.Dense(10)])
        model.compile(keras.optimizers.Adam(schedule), loss, metrics=["accuracy"])
    kept = Checkpoints(folder / CHECKPOINTS, run_folder.identity(folder))
    Loop(
        model,
        Epochs(steps, lambda shard: images.dataset(digits, own, True, shard, True)),
        epochs=settings.warm_start,
        checkpoints=kept,
        every_seconds=60 * settings.checkpoint_minutes,
        verbose=classifier_training.verbosity(settings),
    ).run()
    trunk.set_weights(encoder.get_weights())

"""Warm start for UltraMNIST: train the trunk on single digits first, as in PatchGD (appendix D, low-memory runs)."""

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
"""Number of single digits, and default number of epochs."""
CHECKPOINTS = "warm-start"
"""Folder of the checkpoints of the warm start, inside the run folder; a resumed run skips what is done."""


def add_flag(add):
    """Add the flag `--warm-start`."""
    add(
        "--warm-start",
        type=command_line.count_from_zero,
        metavar="EPOCHS",
        help="epochs in which the trunk is first trained on single digits; 0 for none (default: "
        f"{EPOCHS} for UltraMNIST without --backbone, which is hard to learn from the sums only; else 0)",
    )


def epochs(settings):
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
            f"{settings.images} use --backbone RUN."
        )
    if settings.warm_start is not None:
        return settings.warm_start
    return EPOCHS if digits and not settings.backbone else 0


def learn(trunk, settings, folder, scale):
    """Train the trunk on single digits.

    Args:
        trunk: Network of an encoder, for images or patches of any size.
        settings: Settings of the run.
        folder: Run folder.
        scale: Options of `encoders.make` that scale the pixels.
    """
    digits = images.single_digits(settings, DIGITS)
    shape, count = digits.images[0].shape, len(digits.labels)
    print(
        f"warm start: {count} single digits of {shape[0]} x {shape[1]}, {settings.warm_start} epochs"
    )
    options = Namespace(**vars(settings) | {"batch_size": 64, "augment": None})
    steps = images.steps(digits, options)
    schedule = keras.optimizers.schedules.CosineDecay(3e-3, steps * settings.warm_start)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with machine.scope():
        encoder = encoders.make(settings.encoder, shape, **scale)
        model = keras.Sequential([encoder, keras.layers.Dense(10)])
        model.compile(keras.optimizers.Adam(schedule), loss, metrics=["accuracy"])
    kept = Checkpoints(folder / CHECKPOINTS, run_folder.identity(folder))
    Loop(
        model,
        Epochs(steps, lambda shard: images.dataset(digits, options, True, shard, True)),
        epochs=settings.warm_start,
        checkpoints=kept,
        every_seconds=60 * settings.checkpoint_minutes,
        verbose=classifier_training.verbosity(settings),
    ).run()
    trunk.set_weights(encoder.get_weights())

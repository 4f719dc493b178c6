"""Training of classifiers: optimizer, learning rate, and the epoch that is kept."""

import importlib.util
import math
import sys
from pathlib import Path

import keras
import numpy as np

from tfbig import SourceError, optimizers
from tfbig.cli import machine
from tfbig.cli import settings as command_line
from tfbig.results import run_folder
from tfbig.training import Checkpoints, Loop
from tfbig.training.best_window import BestWindow

OPTIMIZERS = {
    "adam": lambda s, steps, o: keras.optimizers.Adam(s.lr, epsilon=s.epsilon, **o),
    "coupled_adam": lambda s, steps, o: optimizers.CoupledAdam(
        s.lr, l2=s.decay, epsilon=s.epsilon, **o
    ),
    "adamw": lambda s, steps, o: keras.optimizers.AdamW(s.lr, weight_decay=s.decay, **o),
    "demon_adamw": lambda s, steps, o: optimizers.DemonAdamW(
        s.lr, steps, weight_decay=s.decay, **o
    ),
    "lookahead_radam": lambda s, steps, o: optimizers.LookaheadRAdam(
        s.lr, weight_decay=s.decay, **o
    ),
}
KEPT = "kept.weights.h5"


class FailureLog:
    """Report a file that became unreadable: once on standard error, and in `failed.csv`.

    Args:
        folder: Run folder, shared by all workers.
    """

    def __init__(self, folder):
        self.folder, self.known = folder, set()

    def __call__(self, error):
        """Report an error; `__call__` is what `Loop` expects."""
        reason = " ".join(str(error).split())
        slide = reason.partition(": ")[0]
        if slide in self.known:
            return
        self.known.add(slide)
        print(f"skipped {reason}", file=sys.stderr)
        row = {"slide": slide, "reason": reason.removeprefix(f"{slide}: ")}
        run_folder.replace_row(self.folder / run_folder.FAILED, "slide", slide, row)


def add_flags(add, batch_size=1, epochs=10, help_batch="bags of a step, all of the same size"):
    """Add the flags of the optimizer, of the epochs, and of the epoch that is kept.

    Args:
        add: Function that adds a flag.
        batch_size: Default of `--batch-size`.
        epochs: Default of `--epochs`.
        help_batch: What a batch contains.
    """
    number, positive = command_line.count, command_line.positive
    add("--epochs", type=number, default=epochs, help="number of epochs (default: %(default)s)")
    add(
        "--batch-size",
        type=number,
        default=batch_size,
        help=f"{help_batch} (default: %(default)s)",
    )
    add(
        "--accumulate",
        type=number,
        default=1,
        help="number of steps whose gradients are averaged before the optimizer steps (default: %(default)s)",
    )
    add(
        "--sum",
        action="store_true",
        help="sum the gradients of --accumulate steps instead of averaging them",
    )
    add(
        "--optimizer",
        choices=list(OPTIMIZERS),
        default="adam",
        help="optimizer (default: %(default)s)",
    )
    add("--lr", type=positive, default=1e-3, help="learning rate (default: %(default)s)")
    add(
        "--epsilon",
        type=positive,
        default=1e-7,
        help="epsilon of adam and coupled_adam (default: %(default)s)",
    )
    add(
        "--decay",
        type=float,
        default=0.0,
        help="weight decay; in coupled_adam an L2 penalty (default: %(default)s)",
    )
    add(
        "--clip",
        type=positive,
        help="clip the global norm of the gradient to this value (default: no clipping)",
    )
    _add_schedule_flags(add)


def _add_schedule_flags(add):
    number, positive = command_line.count, command_line.positive
    add(
        "--schedule",
        choices=["constant", "cosine", "exponential", "linear"],
        default="cosine",
        help="schedule of the learning rate; changes after every epoch, with linear or --warmup after every step; "
        "linear decreases to half (default: %(default)s)",
    )
    add(
        "--warmup",
        type=positive,
        help="epochs in which the learning rate increases from 0, e.g. 2 (default: none)",
    )
    add(
        "--rate",
        type=positive,
        default=0.955,
        help="factor per epoch of --schedule exponential (default: %(default)s)",
    )
    add(
        "--demon-steps",
        type=number,
        help="steps after which the momentum of demon_adamw is 0 (default: the steps of the run)",
    )
    add(
        "--like-sizes",
        action="store_true",
        help="put images or bags of similar size next to each other, so that workers of a round wait less for each "
        "other",
    )
    add(
        "--class-weights",
        action="store_true",
        help="weight classes by inverse frequency; weights add up to 1",
    )
    add(
        "--keep",
        choices=["last", "best", "window"],
        default="best",
        help="epoch that is saved and tested: the last; the best by --monitor; or the best one in the window of "
        "--window epochs with the best average (default: %(default)s)",
    )
    add(
        "--monitor",
        default="loss",
        choices=["loss", "accuracy", "qwk"],
        help="validation metric of --keep (default: %(default)s)",
    )
    add(
        "--window",
        type=number,
        default=15,
        help="epochs in the window of --keep window (default: %(default)s)",
    )


def make_optimizer(settings, batches):
    """Return the optimizer that `--optimizer` names.

    Args:
        settings: Settings of the run.
        batches: Batches of an epoch. DEMON's momentum is 0 after the steps of all epochs.
    """
    steps = -(-batches // settings.accumulate) * settings.epochs
    options = {"global_clipnorm": settings.clip}
    return OPTIMIZERS[settings.optimizer](settings, settings.demon_steps or steps, options)


def fit_and_keep(model, twin, settings, folder, epochs, validation, monitor):
    """Train by `--schedule`, load the weights of the epoch that `--keep` selects into `twin`, and return the history.

    Args:
        model: Compiled model.
        twin: Plain model with the same variables.
        settings: Settings of the run.
        folder: Run folder.
        epochs: Training data, `tfbig.training.Epochs`.
        validation: Validation data, `tfbig.training.Epochs`.
        monitor: Column of the history by which the epoch is selected.
    """
    callbacks = [_schedule(settings, epochs.steps), *_keep_callbacks(settings, folder, monitor)]
    history = fit(model, settings, folder, epochs, validation, callbacks)
    if settings.keep != "last" and machine.is_chief():
        _load(twin, folder / KEPT)
    return history


def fit(model, settings, folder, epochs, validation, callbacks=()):
    """Train from the last checkpoint of the run, and return the history of all epochs.

    Args:
        model: Compiled model.
        settings: Settings of the run.
        folder: Run folder.
        epochs: Training data, `tfbig.training.Epochs`.
        validation: Validation data, `tfbig.training.Epochs`.
        callbacks: Callbacks in addition to those of every run.
    """
    recorder = run_folder.Recorder(folder)
    loop = Loop(
        model,
        epochs,
        validation,
        settings.epochs,
        callbacks=[recorder, *logging(settings, folder), *callbacks],
        checkpoints=Checkpoints(folder / run_folder.CHECKPOINTS, run_folder.identity(folder)),
        accumulate=getattr(settings, "accumulate", 1),
        every_seconds=60 * settings.checkpoint_minutes,
        alike=command_line.training_settings(settings),
        left_out=None if settings.strict else FailureLog(Path(settings.out or folder)),
        verbose=verbosity(settings),
    )
    loop.run()
    if not recorder.new:
        print("all epochs are already done; use more --epochs to train longer")
    return recorder.history


def _load(twin, path):
    try:
        twin.load_weights(path)
    except (OSError, ValueError) as error:
        raise SourceError(
            f"{path}: the weights of the epoch that --keep chose cannot be read: {error}. Train a few more --epochs, "
            "or start again in another --out."
        ) from error


def item_names(items, labels):
    """Return names by which a resumed run recognises its images or bags, wherever they are stored."""
    pairs = zip(items, labels, strict=True)
    return [f"{Path(item.name).name} {item.shape} {label}" for item, label in pairs]


class PerStep(keras.callbacks.Callback):
    """Set the learning rate before every step of `fit`, however often the optimizer steps in one.

    Args:
        rate: Function from the number of epochs so far, a float, to the learning rate.
        steps: Steps of an epoch.
    """

    def __init__(self, rate, steps):
        super().__init__()
        self.rate, self.steps, self.epoch = rate, steps, 0

    def on_epoch_begin(self, epoch, logs=None):
        """Remember the epoch."""
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        """Set the learning rate."""
        self.model.optimizer.learning_rate = self.rate(self.epoch + batch / self.steps)


def verbosity(settings):
    """Return `verbose` of `fit`: a bar in a terminal, else a line per epoch, nothing with `--quiet`."""
    if settings.quiet:
        return 0
    return 1 if sys.stdout.isatty() else 2


def logging(settings, folder):
    """Return the callback of `--tensorboard`.

    Args:
        settings: Settings of the run.
        folder: Run folder.

    Raises:
        SourceError: TensorBoard is not installed.
    """
    if not settings.tensorboard:
        return []
    if importlib.util.find_spec("tensorboard") is None:
        raise SourceError(
            "--tensorboard: TensorBoard is not installed. Run pip install 'tfbig[log]'."
        )
    return [keras.callbacks.TensorBoard(folder / "tensorboard", write_graph=False)]


def scheduled_rate(settings, epochs):
    """Return the learning rate after some epochs: from 0 to the peak in `--warmup`, then linear to half, or a cosine.

    The published linear decay ends at half of the peak after all epochs; its first step has a rate of 0.
    """
    warmup = settings.warmup or 0
    if epochs < warmup:
        return settings.lr * epochs / warmup
    share = (epochs - warmup) / max(settings.epochs - warmup, 1e-9)
    if settings.schedule == "cosine":
        return settings.lr * (1 + math.cos(math.pi * share)) / 2
    return settings.lr * (1 - share / 2)


def _schedule(settings, steps):
    """Return the callback that sets the learning rate of an epoch, or of a step."""
    if settings.schedule == "linear" or settings.warmup:
        if settings.schedule not in ("linear", "cosine"):
            raise SourceError(
                f"--warmup needs --schedule linear or cosine, not {settings.schedule}. Change one of them."
            )
        return PerStep(lambda epochs: scheduled_rate(settings, epochs), steps)
    rates = {
        "constant": lambda epoch, lr: settings.lr,
        "cosine": lambda epoch, lr: (
            settings.lr * (1 + math.cos(math.pi * epoch / settings.epochs)) / 2
        ),
        "exponential": lambda epoch, lr: settings.lr * settings.rate**epoch,
    }
    return keras.callbacks.LearningRateScheduler(rates[settings.schedule])


def _keep_callbacks(settings, folder, monitor):
    """Return the callback that saves the weights of the epoch that `--keep` selects."""
    if settings.keep == "last":
        return []
    window = settings.window if settings.keep == "window" else 1
    mode = "min" if settings.monitor == "loss" else "max"
    return [BestWindow(folder / KEPT, monitor, window, mode, folder / run_folder.CHECKPOINTS)]


def class_weights(data):
    """Return class weights of inverse frequency that add up to 1."""
    counts = np.maximum(np.bincount(data.train.labels, minlength=len(data.classes)), 1)
    return np.float32(1 / counts / np.sum(1 / counts))

"""How classifiers are trained: optimizer, learning rate, the epoch that is kept."""

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


class LeftOut:
    """Names what cannot be read any more: once on standard error, and in `failed.csv`.

    Args:
        folder: of the run, which all workers see.
    """

    def __init__(self, folder):
        self.folder, self.known = folder, set()

    def __call__(self, error):
        reason = " ".join(str(error).split())
        slide = reason.partition(": ")[0]
        if slide in self.known:
            return
        self.known.add(slide)
        print(f"left out {reason}", file=sys.stderr)
        row = {"slide": slide, "reason": reason.removeprefix(f"{slide}: ")}
        run_folder.replace_row(self.folder / run_folder.FAILED, "slide", slide, row)


def add_flags(add, batch_size=1, epochs=10, help_batch="bags of a step, all of one size"):
    """Flags of the optimizer, of epochs and of the one that is kept.

    Args:
        add: adds one.
        batch_size, epochs: by default.
        help_batch: what a batch is.
    """
    number, positive = command_line.count, command_line.positive
    add("--epochs", type=number, default=epochs, help="in all (default: %(default)s)")
    add(
        "--batch-size",
        type=number,
        default=batch_size,
        help=f"{help_batch} (default: %(default)s)",
    )
    add("--accumulate", type=number, default=1, help="steps of which gradients are averaged")
    add("--sum", action="store_true", help="gradients of --accumulate steps are added up instead")
    add("--optimizer", choices=list(OPTIMIZERS), default="adam", help="(default: %(default)s)")
    add("--lr", type=positive, default=1e-3, help="learning rate (default: %(default)s)")
    add("--epsilon", type=positive, default=1e-7, help="of adam and coupled_adam")
    add("--decay", type=float, default=0.0, help="of weights; coupled in coupled_adam")
    add("--clip", type=positive, help="global norm of the gradient")
    add(
        "--schedule",
        choices=["constant", "cosine", "exponential", "linear"],
        default="cosine",
        help="of the learning rate, by epochs; with --warmup, and linear, by steps; linear falls to half "
        "(default: %(default)s)",
    )
    add("--warmup", type=positive, help="epochs in which the learning rate rises from 0")
    add("--rate", type=positive, default=0.955, help="factor of an epoch, for exponential")
    add("--demon-steps", type=number, help="of demon_adamw (default: the steps of the run)")
    add(
        "--like-sizes",
        action="store_true",
        help="what is learned one after another is about as large: workers of a round wait less for each other",
    )
    add("--class-weights", action="store_true", help="of inverse frequency, adding up to 1")
    add(
        "--keep",
        choices=["last", "best", "window"],
        default="best",
        help="epoch that is tested: the last; the best by --monitor; or the best of the window of "
        "--window epochs with the best average (default: %(default)s)",
    )
    add("--monitor", default="loss", choices=["loss", "accuracy", "qwk"], help="of validation")
    add("--window", type=number, default=15, help="epochs (default: %(default)s)")


def make_optimizer(settings, batches):
    """That of `--optimizer`.

    Args:
        batches: of an epoch. After the steps of all epochs DEMON has no momentum left.
    """
    steps = -(-batches // settings.accumulate) * settings.epochs
    options = {"global_clipnorm": settings.clip}
    return OPTIMIZERS[settings.optimizer](settings, settings.demon_steps or steps, options)


def fit_and_keep(model, twin, settings, folder, epochs, validation, monitor):
    """Trains by `--schedule`; `twin` has the weights of the epoch that `--keep` asks for, by a column of the history.

    Gives the history; for the others see `fit`.
    """
    callbacks = [_schedule(settings, epochs.steps), *_keeping(settings, folder, monitor)]
    history = fit(model, settings, folder, epochs, validation, callbacks)
    if settings.keep != "last" and machine.is_chief():
        _load(twin, folder / KEPT)
    return history


def fit(model, settings, folder, epochs, validation, callbacks=()):
    """Trains from where the checkpoints of the run are; gives the history of all epochs.

    Args:
        model: compiled.
        settings: of the run.
        folder: of the run.
        epochs, validation: `tfbig.training.Epochs`.
        callbacks: besides those of every run.
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
        alike=command_line.learned(settings),
        left_out=None if settings.strict else LeftOut(Path(settings.out or folder)),
        verbose=verbosity(settings),
    )
    loop.run()
    if not recorder.new:
        print("all of its epochs were done before; with more --epochs it trains longer")
    return recorder.history


def _load(twin, path):
    try:
        twin.load_weights(path)
    except (OSError, ValueError) as error:
        raise SourceError(
            f"{path}: the weights of the epoch that --keep chose cannot be read: {error}. Train a few --epochs more, "
            "or start again in another --out."
        ) from error


def names_of(found, labels):
    """By which images or bags are known to be the same as before, wherever they are now."""
    pairs = zip(found, labels, strict=True)
    return [f"{Path(one.name).name} {one.shape} {label}" for one, label in pairs]


class PerStep(keras.callbacks.Callback):
    """Sets the learning rate before every step of `fit`, however often the optimizer steps in one.

    Args:
        rate: from the epochs that have passed, a real number, to the learning rate.
        steps: of an epoch.
    """

    def __init__(self, rate, steps):
        super().__init__()
        self.rate, self.steps, self.epoch = rate, steps, 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        self.model.optimizer.learning_rate = self.rate(self.epoch + batch / self.steps)


def verbosity(settings):
    """What `fit` prints: a bar in a terminal, else a line an epoch, nothing with `--quiet`."""
    if settings.quiet:
        return 0
    return 1 if sys.stdout.isatty() else 2


def logging(settings, folder):
    """The callback of `--tensorboard`.

    Raises:
        SourceError: TensorBoard is not installed.
    """
    if not settings.tensorboard:
        return []
    if importlib.util.find_spec("tensorboard") is None:
        raise SourceError("--tensorboard: is not installed. Run pip install 'tfbig[log]'.")
    return [keras.callbacks.TensorBoard(folder / "tensorboard", write_graph=False)]


def falling(settings, epochs):
    """The learning rate after so many epochs: from 0 to the peak in `--warmup`, then linear to half of it, or a cosine.

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
    """The callback that sets the learning rate of an epoch, or of a step."""
    if settings.schedule == "linear" or settings.warmup:
        if settings.schedule not in ("linear", "cosine"):
            raise SourceError(
                f"--warmup goes with --schedule linear or cosine, not {settings.schedule}."
            )
        return PerStep(lambda epochs: falling(settings, epochs), steps)
    rates = {
        "constant": lambda epoch, lr: settings.lr,
        "cosine": lambda epoch, lr: (
            settings.lr * (1 + math.cos(math.pi * epoch / settings.epochs)) / 2
        ),
        "exponential": lambda epoch, lr: settings.lr * settings.rate**epoch,
    }
    return keras.callbacks.LearningRateScheduler(rates[settings.schedule])


def _keeping(settings, folder, monitor):
    """The callback that keeps the weights of the epoch that `--keep` asks for."""
    if settings.keep == "last":
        return []
    window = settings.window if settings.keep == "window" else 1
    mode = "min" if settings.monitor == "loss" else "max"
    return [BestWindow(folder / KEPT, monitor, window, mode, folder / run_folder.CHECKPOINTS)]


def planned_bytes(plan, validation):
    """Most bytes of the process by plan: what it holds by now, and a training or a validation step.

    What one of them takes for images of any size, graphs above all, stays while the other runs.
    """
    held, _ = run_folder.memory_bytes()
    both = plan, validation
    most = max(p.peak_bytes for p in both) + min(p.fixed_bytes for p in both)
    return {"base_bytes": held, "planned_bytes": held + most}


def class_weights(data):
    """Of inverse frequency, adding up to 1."""
    counts = np.maximum(np.bincount(data.train.labels, minlength=len(data.classes)), 1)
    return np.float32(1 / counts / np.sum(1 / counts))

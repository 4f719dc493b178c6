"""How models of bags are trained: optimizer, learning rate, the epoch that is kept."""

import math

import keras
import numpy as np

from models import settings as command_line
from tfbig import optimizers
from tfbig.windows import BestWindow

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


def add_flags(add):
    """Flags of the optimizer, of epochs and of the one that is kept."""
    number, positive = command_line.count, command_line.positive
    add("--epochs", type=number, default=10, help="in all (default: %(default)s)")
    add("--batch-size", type=number, default=1, help="bags of a step, all of one size")
    add("--accumulate", type=number, default=1, help="steps of which gradients are averaged")
    add("--sum", action="store_true", help="gradients of --accumulate steps are added up instead")
    add("--optimizer", choices=list(OPTIMIZERS), default="adam", help="(default: %(default)s)")
    add("--lr", type=positive, default=1e-3, help="learning rate (default: %(default)s)")
    add("--epsilon", type=positive, default=1e-7, help="of adam and coupled_adam")
    add("--decay", type=float, default=0.0, help="of weights; coupled in coupled_adam")
    add("--clip", type=positive, help="global norm of the gradient")
    add(
        "--schedule",
        choices=["constant", "cosine", "exponential"],
        default="cosine",
        help="of the learning rate, by epochs (default: %(default)s)",
    )
    add("--rate", type=positive, default=0.955, help="factor of an epoch, for exponential")
    add("--demon-steps", type=number, help="of demon_adamw (default: the steps of the run)")
    add("--class-weights", action="store_true", help="of inverse frequency, adding up to 1")
    add("--augment", action="store_true", help="blur, colours, flips, turns: one set for a bag")
    add("--sample", type=positive, help="instances of a training bag: a number, or a share below 1")
    add("--val-sample", type=positive, help="the same of a validation bag")
    add(
        "--keep",
        choices=["last", "best", "window"],
        default="best",
        help="epoch that is tested: the last; the best by --monitor; or the best of the window of "
        "--window epochs with the best average, of those since a resume (default: %(default)s)",
    )
    add("--monitor", default="loss", choices=["loss", "accuracy", "qwk"], help="of validation")
    add("--window", type=number, default=15, help="epochs (default: %(default)s)")


def make_optimizer(settings, steps):
    """That of `--optimizer`.

    Args:
        steps: of the whole run, after which DEMON has no momentum left.
    """
    options = {"global_clipnorm": settings.clip}
    if settings.accumulate > 1:
        options["gradient_accumulation_steps"] = settings.accumulate
    return OPTIMIZERS[settings.optimizer](settings, settings.demon_steps or steps, options)


def callbacks(settings, folder, monitor, history):
    """What sets the learning rate and keeps an epoch.

    Args:
        folder: of the run; the weights kept are its file `KEPT`.
        monitor: the column of the history that `--keep` compares.
        history: rows of the epochs before a resume.
    """
    return [_schedule(settings), *_keeping(settings, folder, monitor, history)]


def _schedule(settings):
    """The callback that sets the learning rate of an epoch."""
    rates = {
        "constant": lambda epoch, lr: settings.lr,
        "cosine": lambda epoch, lr: (
            settings.lr * (1 + math.cos(math.pi * epoch / settings.epochs)) / 2
        ),
        "exponential": lambda epoch, lr: settings.lr * settings.rate**epoch,
    }
    return keras.callbacks.LearningRateScheduler(rates[settings.schedule])


def _keeping(settings, folder, monitor, history):
    """The callback that keeps the weights of the epoch that `--keep` asks for, those before a resume included."""
    if settings.keep == "window":
        return [BestWindow(folder / KEPT, monitor, settings.window)]
    if settings.keep == "best":
        mode, best = ("min", min) if settings.monitor == "loss" else ("max", max)
        before = best((row[monitor] for row in history), default=None)
        return [
            keras.callbacks.ModelCheckpoint(
                folder / KEPT,
                monitor,
                mode=mode,
                save_best_only=True,
                save_weights_only=True,
                initial_value_threshold=before,
            )
        ]
    return []


def class_weights(data):
    """Of inverse frequency, adding up to 1."""
    counts = np.maximum(np.bincount(data.train.labels, minlength=len(data.classes)), 1)
    return np.float32(1 / counts / np.sum(1 / counts))

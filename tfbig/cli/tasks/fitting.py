"""Training of all tasks: optimizer, learning rate, and the epoch that is kept."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from tfbig import SourceError, optimizers
from tfbig.cli import machine
from tfbig.cli.data.run_data import Data
from tfbig.cli.failure_log import FailureLog
from tfbig.cli.paths import FlagError
from tfbig.cli.settings import choices
from tfbig.cli.settings.flag import deciding
from tfbig.cli.settings.tasks import TrainSettings
from tfbig.cli.settings.training_settings import ClassifierSettings
from tfbig.cli.tasks.task import History, Models
from tfbig.results import run_folder
from tfbig.system import output_folder
from tfbig.training import Checkpoints, Epochs, Loop
from tfbig.training.best_window import BestWindow
from tfbig.training.single_process import Single
from tfbig.units import ceil_div

OPTIMIZERS: dict[str, Callable[[TrainSettings, int, Mapping[str, Any]], Any]] = {
    "adam": lambda s, steps, o: keras.optimizers.Adam(s.lr, epsilon=s.epsilon, **o),
    "coupled_adam": lambda s, steps, o: optimizers.CoupledAdam(
        s.lr, l2=s.decay, epsilon=s.epsilon, **o
    ),
    "adamw": lambda s, steps, o: keras.optimizers.AdamW(s.lr, weight_decay=s.decay, **o),
    "demon_adam": lambda s, steps, o: optimizers.DemonAdamW(
        s.lr, steps, weight_decay=0.0, l2=s.decay, **o
    ),
    "demon_adamw": lambda s, steps, o: optimizers.DemonAdamW(
        s.lr, steps, weight_decay=s.decay, **o
    ),
    "lookahead_radam": lambda s, steps, o: optimizers.LookaheadRAdam(
        s.lr, weight_decay=s.decay, **o
    ),
}
KEPT = "kept.weights.h5"


def make_optimizer(settings: TrainSettings, batches: int) -> Any:
    """Make the optimizer that `--optimizer` names, for epochs of so many batches.

    DEMON's momentum is 0 after the steps of all epochs.
    """
    steps = ceil_div(batches, settings.accumulate) * settings.epochs
    options = {"global_clipnorm": settings.clip or None, "beta_1": settings.beta_1}
    return OPTIMIZERS[settings.optimizer](settings, settings.demon_steps or steps, options)


def compile_both(
    models: Models,
    optimizer: keras.optimizers.Optimizer,
    loss: Any,
    weights: Any,
    metrics: Callable[[], Any],
) -> Models:
    """Compile both models with one optimizer, so that training of the saved plain model can continue; return them."""
    for each in dict.fromkeys((models.twin, models.model)):
        each.compile(optimizer, loss, loss_weights=weights, metrics=metrics())
    return models


def loss_weight(settings: TrainSettings) -> float:
    """The weight of the loss that makes an average of gradients a sum, as `--sum` asks."""
    return float(settings.accumulate if settings.sum else 1)


def fit_and_keep(
    models: Models,
    settings: TrainSettings,
    folder: Path,
    epochs: Epochs,
    validation: Epochs,
    monitor: str,
    worker: Callable[[Any], Single] | None = None,
) -> History:
    """Train by `--schedule`, load the weights of the epoch that `--keep` selects, and return the history.

    The weights are loaded into the model that is saved. `monitor` is the column of the history by which the epoch
    is selected. `worker` makes a worker whose batches hold the bags of `--accumulate` steps; by default the
    gradients of `--accumulate` steps are averaged.
    """
    callbacks = [_schedule(settings, epochs.steps), *_keep_callbacks(settings, folder, monitor)]
    accumulate = 1 if worker else settings.accumulate
    history = fit(models.model, settings, folder, epochs, validation, callbacks, accumulate, worker)
    if settings.keep != "last" and machine.is_chief():
        _load(models.twin, folder / KEPT)
    return history


def fit(
    model: Any,
    settings: TrainSettings,
    folder: Path,
    epochs: Epochs,
    validation: Epochs,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    accumulate: int = 1,
    worker: Callable[[Any], Single] | None = None,
) -> History:
    """Train from the last checkpoint of the run, and return the history of all epochs.

    `callbacks` come in addition to those of every run; the gradients of `accumulate` steps are averaged. `worker`
    makes the worker that trains the model; by default the usual one.
    """
    recorder = run_folder.Recorder(folder)
    skipped = None if settings.strict else FailureLog(Path(settings.out or folder))
    Loop(
        model,
        epochs,
        validation,
        settings.epochs,
        callbacks=[recorder, *logging(settings, folder), *callbacks],
        checkpoints=Checkpoints(folder / run_folder.CHECKPOINTS, run_folder.identity(folder)),
        accumulate=accumulate,
        every_seconds=60 * settings.checkpoint_minutes,
        alike=deciding(settings),
        left_out=skipped,
        verbose=verbosity(settings),
        worker=worker,
    ).run()
    if not recorder.new:
        print("all epochs are already done; use more --epochs to train longer")
    return recorder.history


def _load(twin: Any, path: Path) -> None:
    try:
        twin.load_weights(path)
    except (OSError, ValueError) as error:
        raise SourceError(
            f"{path}: the weights of the epoch that --keep chose cannot be read: {error}. Train a few more --epochs, "
            "or start again in another --out."
        ) from error


def item_names(items: Iterable[Any], labels: Iterable[Any]) -> list[str]:
    """The names by which a resumed run recognises its images or bags, wherever they are stored."""
    pairs = zip(items, labels, strict=True)
    return [f"{Path(item.name).name} {item.shape} {label}" for item, label in pairs]


class PerStep(keras.callbacks.Callback):
    """Set the learning rate before every step of `fit`, however often the optimizer steps in one.

    `rate` maps the number of epochs so far, a float, to the learning rate; `steps` are those of an epoch.
    """

    def __init__(self, rate: Callable[[float], float], steps: int) -> None:
        super().__init__()
        self.rate, self.steps, self.epoch = rate, steps, 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Remember the epoch."""
        self.epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the learning rate."""
        self.model.optimizer.learning_rate = self.rate(self.epoch + batch / self.steps)


def verbosity(settings: TrainSettings) -> int:
    """The argument `verbose` of `fit`: a bar in a terminal, else a line per epoch, nothing with `--quiet`."""
    if settings.quiet:
        return 0
    return 1 if sys.stdout.isatty() else 2


def logging(settings: TrainSettings, folder: Path) -> list[keras.callbacks.Callback]:
    """The callback of `--tensorboard`, if it is given.

    Raises:
        SourceError: TensorBoard is not installed.
    """
    if not settings.tensorboard:
        return []
    if importlib.util.find_spec("tensorboard") is None:
        raise SourceError(
            "--tensorboard: TensorBoard is not installed. Run pip install 'tfbig[log]'."
        )
    events = folder / "tensorboard"
    output_folder.record(events, is_folder=True)
    return [keras.callbacks.TensorBoard(events, write_graph=False)]


def scheduled_rate(settings: TrainSettings, epochs: float) -> float:
    """The learning rate after some epochs: from 0 to the peak in `--warmup`, then linear to half, or a cosine.

    The published linear decay ends at half of the peak after all epochs; its first step has a rate of 0.
    """
    warmup = settings.warmup or 0
    if epochs < warmup:
        return settings.lr * epochs / warmup
    share = (epochs - warmup) / max(settings.epochs - warmup, 1e-9)
    if settings.schedule != "linear":
        return settings.lr * (1 + math.cos(math.pi * share)) / 2
    return settings.lr * (1 - share / 2)


def _schedule(settings: TrainSettings, steps: int) -> keras.callbacks.Callback:
    """The callback that sets the learning rate of an epoch, or of a step."""
    if settings.schedule in ("linear", "step-cosine") or settings.warmup:
        if settings.schedule not in ("linear", "cosine", "step-cosine"):
            raise FlagError(
                f"--warmup needs --schedule linear, cosine or step-cosine, not {settings.schedule}. Change one of them."
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


def _keep_callbacks(
    settings: TrainSettings, folder: Path, monitor: str
) -> list[keras.callbacks.Callback]:
    """The callback that saves the weights of the epoch that `--keep` selects; empty for the last epoch."""
    if settings.keep == "last":
        return []
    window = settings.window if settings.keep == "window" else 1
    mode = "min" if settings.monitor in choices.LOWER_IS_BETTER else "max"
    return [BestWindow(folder / KEPT, monitor, window, mode, folder / run_folder.CHECKPOINTS)]


def class_weights(settings: ClassifierSettings, data: Data) -> npt.NDArray[np.float32] | None:
    """Compute class weights of inverse frequency that add up to 1, if `--class-weights` asks for them."""
    if not settings.class_weights:
        return None
    counts = np.maximum(np.bincount(data.train.labels, minlength=len(data.classes)), 1)
    return np.asarray(1 / counts / np.sum(1 / counts), np.float32)

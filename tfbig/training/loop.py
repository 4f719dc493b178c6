"""The loop of epochs and batches, which can end at any moment and go on from there as if nothing had happened."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfbig import stopping
from tfbig.errors import NonFiniteError
from tfbig.training import state
from tfbig.training.checkpoints import Checkpoints
from tfbig.training.single import Single
from tfbig.training.sums import Sums


@dataclass(frozen=True)
class Epochs:
    """The batches of every epoch.

    Args:
        steps: batches of an epoch.
        batches: from the number of an epoch and that of a batch, both from 0, to a dataset that begins with this
            batch. The same numbers give the same batches, in whichever process.
    """

    steps: int
    batches: Callable[[int, int], tf.data.Dataset]


class Loop:
    """Trains a model, as `fit` does, with the same callbacks; besides,

    - gradients of `accumulate` batches are averaged, weighted by their items, before the optimizer steps; the last
      group of an epoch may be smaller;
    - everything that training changes is written to checkpoints: after every epoch, every so many seconds, and when it
      is stopped or fails. A loop with the same arguments goes on from the newest, in the middle of an epoch too, and
      ends with the same weights (bitwise where the operations are deterministic);
    - a batch that fails or is stopped leaves the model as it was before it.

    Args:
        model: compiled.
        training: what it learns from.
        validation: from the number of an epoch to the dataset that validates it; by default nothing does.
        epochs: in all.
        callbacks: Keras' and own. Those that are `Remembering` go on where they were; one of a kind.
        checkpoints: where they are; by default none are written.
        accumulate: batches of a step of the optimizer.
        every_seconds: of a checkpoint within an epoch.
        verbose: what is printed, as in `fit`: 0, 1 or 2.
        clock: seconds.

    Raises:
        ValueError: two callbacks of a kind, or `accumulate` with a model whose optimizer steps inside.

    Attributes:
        epoch, step: how many epochs, and batches of the next one, are done.
    """

    def __init__(
        self,
        model: keras.Model,
        training: Epochs,
        validation: Callable[[int], tf.data.Dataset] | None = None,
        epochs: int = 1,
        *,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        checkpoints: Checkpoints | None = None,
        accumulate: int = 1,
        every_seconds: float = 600.0,
        verbose: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model = model
        self.training = training
        self.validation = validation
        self.epochs = epochs
        self.checkpoints = checkpoints
        self.accumulate = accumulate
        self.every_seconds = every_seconds
        self.epoch = self.step = 0
        self.callbacks = keras.callbacks.CallbackList(
            list(callbacks),
            add_progbar=verbose != 0,
            model=model,
            verbose=verbose,
            epochs=epochs,
            steps=training.steps,
        )
        self.worker = Single(model)
        if accumulate > 1 and not self.worker.splits:
            raise ValueError(
                f"accumulate={accumulate}: the optimizer of '{model.name}' steps inside a training step, so gradients "
                "of several cannot be added up; pass the model accumulate=None."
            )
        self._remembering = state.remembering(callbacks)
        self._sums = Sums()
        self._logs: dict[str, float] = {}
        self._pending: list[
            Any
        ] = []  # metrics of a checkpoint, whose variables there are with the first batch
        self._whole = True  # whether the model is that of the last batch that was done
        self._clock = clock
        self._saved = clock()

    def run(self) -> None:
        """Trains until all epochs are done.

        Raises:
            Stopped: it was asked to end (`tfbig.stopping`); a checkpoint has been written.
            NonFiniteError: a loss is NaN or infinite; the weights are those before it.
            SourceError: an image cannot be read, or a checkpoint not be written or none be used.
        """
        self._go_on()
        self.model.stop_training = False
        self.callbacks.on_train_begin()
        try:
            while self.epoch < self.epochs and not self.model.stop_training:
                self._run_epoch()
        except BaseException:
            if self._whole:
                self._save()
            raise
        self.callbacks.on_train_end()

    # ------------------------------------------------------------------- an epoch

    def _run_epoch(self) -> None:
        if self.step == 0:
            self.model.reset_metrics()
        self.callbacks.on_epoch_begin(self.epoch)
        if self.step < self.training.steps:
            self._train()
        logs = {**self._logs, **self._validated()}
        self.callbacks.on_epoch_end(self.epoch, logs)
        self.epoch, self.step = self.epoch + 1, 0
        self._save()

    def _train(self) -> None:
        batches = self.training.batches(self.epoch, self.step)
        specs = batches.element_spec
        for batch in batches:
            stopping.check()
            self.callbacks.on_train_batch_begin(self.step)
            self._learn(batch, specs)
            self.callbacks.on_train_batch_end(self.step - 1, self._logs)
            if self._clock() - self._saved >= self.every_seconds:
                self._save()
        stopping.check()

    def _learn(self, batch: Any, specs: Any) -> None:
        """One batch; every so many of them the optimizer steps."""
        run = self.worker.ready(batch, specs)
        self._set_metrics()
        before = state.Kept(state.others_of(self.model))
        self._whole = self.worker.splits
        try:
            gradients, logs = run()
            found = self.worker.results(logs)
            self._check(found)
        except BaseException:
            before.restore()
            raise
        self._whole = False
        items = next(t for t in keras.tree.flatten(batch) if t is not None).shape[0]
        sums = self._sums.with_more(gradients, items)
        last = self.step + 1 == self.training.steps
        if last or sums.batches == self.accumulate:
            self.worker.apply(sums.means())
            sums = Sums()
        self._sums, self._logs, self.step = sums, found, self.step + 1
        self._whole = True

    def _check(self, logs: dict[str, float]) -> None:
        if not math.isfinite(logs["loss"]):
            raise NonFiniteError(
                f"step {self.step + 1} of epoch {self.epoch + 1}: the loss is {logs['loss']}, expected a finite "
                f"number. Lower the learning rate (now {float(self.model.optimizer.learning_rate):g}), or use "
                "--precision float32."
            )

    def _validated(self) -> dict[str, float]:
        """Metrics of the validation, by their names in a history."""
        if self.validation is None:
            return {}
        self.model.reset_metrics()
        self.callbacks.on_test_begin()
        logs: dict[str, Any] = {}
        batches = self.validation(self.epoch)
        specs = batches.element_spec
        for number, batch in enumerate(batches):
            stopping.check()
            self.callbacks.on_test_batch_begin(number)
            logs = self.worker.test(batch, specs)
            self.callbacks.on_test_batch_end(number, logs)
        found = self.worker.results(logs)
        self.callbacks.on_test_end(found)
        return {f"val_{name}": value for name, value in found.items()}

    # ---------------------------------------------------------------- checkpoints

    def _save(self) -> None:
        """Writes everything that goes on changing."""
        if self.checkpoints is None:
            return
        model = self.model
        arrays = state.arrays(
            {
                **state.variables_of(model),
                **state.metrics_of(model),
                **{f"{state.SUM}{i:05d}": g for i, g in enumerate(self._sums.gradients)},
            }
        )
        values = {
            "epoch": self.epoch,
            "step": self.step,
            "batches": self._sums.batches,
            "items": self._sums.items,
            "logs": self._logs,
            "callbacks": {name: c.remembered() for name, c in self._remembering.items()},
            "generators": state.generators(),
        }
        self.checkpoints.write(self.epoch * self.training.steps + self.step, arrays, values)
        for callback in self._remembering.values():
            callback.written()
        self._saved = self._clock()

    def _go_on(self) -> None:
        """From the newest checkpoint, if there is one."""
        known = state.variables_of(self.model)
        if self.checkpoints is None:
            return
        found = self.checkpoints.newest(lambda found: state.check(known, found))
        if found is None:
            return
        arrays, values = found.arrays, found.values
        rest = [n for n in arrays if not n.startswith((state.METRIC, state.SUM))]
        state.assign(known, [arrays[name] for name in rest])
        self._pending = [arrays[n] for n in arrays if n.startswith(state.METRIC)]
        self.epoch, self.step, self._logs = values["epoch"], values["step"], values["logs"]
        self._sums = self._kept_sums(arrays, values)
        for name, remembered in values["callbacks"].items():
            if name in self._remembering:
                self._remembering[name].remember(remembered)
        state.set_generators(values["generators"])

    def _kept_sums(self, arrays: state.Arrays, values: dict[str, Any]) -> Sums:
        if not values["batches"]:
            return Sums()
        count = len(self.model.trainable_variables)
        found = [arrays.get(f"{state.SUM}{i:05d}") for i in range(count)]
        known = [None if g is None else tf.constant(g) for g in found]
        return Sums(known, values["batches"], values["items"])

    def _set_metrics(self) -> None:
        """Metrics go on, now that the first batch has made their variables."""
        if self._pending and self.step > 0:
            state.assign(state.metrics_of(self.model), self._pending)
        self._pending = []

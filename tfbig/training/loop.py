"""The loop of epochs and batches, which can end at any moment and go on from there as if nothing had happened."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import tensorflow as tf

from tfbig import failures, stopping
from tfbig.errors import NonFiniteError, SourceError, Stopped, WorkerError
from tfbig.parts import Part
from tfbig.training import state
from tfbig.training.checkpoints import Checkpoints
from tfbig.training.replicas import Replicas
from tfbig.training.single import Single, as_numbers
from tfbig.training.sums import Sums


@dataclass(frozen=True)
class Epochs:
    """The batches of every epoch.

    Args:
        steps: batches of an epoch, those of all workers.
        batches: from a part of an epoch to a dataset of its batches. The same part gives the same batches, in whichever
            process.
        names: of what the batches are made of. Where they are others than before, training does not go on in the
            middle of an epoch but at its beginning; workers must have the same.
    """

    steps: int
    batches: Callable[[Part], tf.data.Dataset]
    names: Sequence[str] = ()


class Loop:
    """Trains a model, as `fit` does, with the same callbacks; besides,

    - a model made in the scope of a strategy of tf.distribute trains in rounds, a batch for each replica, as one model
      with all of their batches. With `BatchNormalization(synchronized=True)` the last round of an epoch is left out if
      it has none for some replica;
    - gradients of `accumulate` rounds are averaged, weighted by their items, before the optimizer steps; the last
      group of an epoch may be smaller;
    - everything that training changes is written to checkpoints: after every epoch, every so many seconds, and when it
      is stopped or fails. A loop with the same arguments goes on from the newest, in the middle of an epoch too, and
      ends with the same weights (bitwise where the operations are deterministic);
    - a batch that fails or is stopped leaves the model as it was before it.

    Args:
        model: compiled.
        training: what it learns from.
        validation: what validates each epoch; by default nothing does.
        epochs: in all.
        callbacks: Keras' and own. Those that are `Remembering` go on where they were; one of a kind.
        checkpoints: where they are; by default none are written.
        accumulate: rounds of a step of the optimizer.
        every_seconds: of a checkpoint within an epoch.
        left_out: called with the error of a batch that cannot be read, which then counts for nothing; by default it
            ends training, and so it does where statistics are those of all replicas.
        verbose: what is printed, as in `fit`: 0, 1 or 2.
        clock: seconds.

    Raises:
        ValueError: two callbacks of a kind, `accumulate` with a model whose optimizer steps inside, or fewer batches
            than replicas.

    Attributes:
        epoch, step: how many epochs, and batches of the next one, are done.
    """

    def __init__(
        self,
        model: keras.Model,
        training: Epochs,
        validation: Epochs | None = None,
        epochs: int = 1,
        *,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        checkpoints: Checkpoints | None = None,
        accumulate: int = 1,
        every_seconds: float = 600.0,
        left_out: Callable[[SourceError], object] | None = None,
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
        self.left_out = left_out
        self._data = state.digest(training.steps, *training.names)
        self.epoch = self.step = 0
        self._seen = 0  # batches in all, by which checkpoints are numbered
        self.callbacks = keras.callbacks.CallbackList(
            list(callbacks),
            add_progbar=verbose != 0,
            model=model,
            verbose=verbose,
            epochs=epochs,
            steps=training.steps,
        )
        distributed = getattr(model, "_distribute_strategy", None) is not None
        self.worker: Single | Replicas = Replicas(model) if distributed else Single(model)
        if accumulate > 1 and not self.worker.splits:
            raise ValueError(
                f"accumulate={accumulate}: the optimizer of '{model.name}' steps inside a training step, so gradients "
                "of several cannot be added up; pass the model accumulate=None."
            )
        self._remembering = state.remembering(callbacks)
        if self.worker.replicas > 1 and _synchronized(model):
            self.training = replace(training, steps=self._whole_rounds(training.steps))
        self._batches, self._learned = 0, False  # of this step of the optimizer
        self._logs: dict[str, float] = {}
        # Metrics of a checkpoint, whose variables there are with the first batch.
        self._pending: list[Any] = []
        self._whole = True  # whether the model is that of the last batch that was done
        self._clock = clock
        self._saved = clock()

    def _whole_rounds(self, steps: int) -> int:
        """Batches of the rounds of an epoch in which every replica has one."""
        replicas = self.worker.replicas
        if steps < replicas:
            raise ValueError(
                f"{replicas} replicas with BatchNormalization(synchronized=True) need as many batches in an epoch, "
                f"there are {steps}. Use fewer workers."
            )
        return steps - steps % replicas

    def run(self) -> None:
        """Trains until all epochs are done.

        Raises:
            Stopped: it was asked to end (`tfbig.stopping`); a checkpoint has been written.
            NonFiniteError: a loss is NaN or infinite; the weights are those before it.
            SourceError: an image cannot be read, or a checkpoint not be written or none be used; or the images are
                others than those of the first worker.
            WorkerError: another worker has failed, or is gone.
        """
        self._check_data()
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
        left = self._dealt(self.training, self.step)
        logs: dict[str, float] = {}
        while self.step < self.training.steps:
            self.callbacks.on_train_batch_begin(self.step)
            logs = self._learn(left) or logs
            self.callbacks.on_train_batch_end(self.step - 1, logs)
            due = self.worker.chief and self._clock() - self._saved >= self.every_seconds
            due, stops = self._agree(due, stopping.asked() is not None)
            if due or stops or self.step == self.training.steps:
                self._logs = self.worker.results()
            if stops:
                self._stop()
            if due:
                self._save()

    def _dealt(self, epochs: Epochs, step: int) -> Iterator[tuple[Any, Any]]:
        """The batches of this worker from a step on, each with what its dataset says of all."""
        part = Part(self.epoch, step, self.worker.own, self.worker.replicas)
        batches = epochs.batches(part)
        return ((batch, batches.element_spec) for batch in batches)

    def _next(self, left: Iterator[tuple[Any, Any]], remaining: int) -> tuple[list[Any], Any]:
        """The batches of this worker in a round, of so many that are left for all."""
        count = sum(replica < remaining for replica in self.worker.own)
        found = [failures.unwrapped(next)(left) for _ in range(count)]
        return [batch for batch, _ in found], found[0][1] if found else None

    def _learn(self, left: Iterator[tuple[Any, Any]]) -> dict[str, float]:
        """A round; every so many of them the optimizer steps."""
        before: list[state.Kept] = []

        def half() -> dict[str, float]:
            stopping.check()
            try:
                batches, specs = self._next(left, self.training.steps - self.step)
                logs = failures.or_with_less(self.model, lambda: run(batches, specs))
            except SourceError as error:
                self._leave_out(error)
                restore()
                self.worker.nothing()
                return {}
            self._check(logs)
            return logs

        def restore() -> None:
            for kept in before:
                kept.restore()

        def run(batches: list[Any], specs: Any) -> dict[str, float]:
            restore()  # what was tried with too little memory
            ready = self.worker.ready(batches, specs)
            self._set_metrics()
            before[:] = [state.Kept(state.others_of(self.model))]
            self._whole = self.worker.splits
            return as_numbers(ready())

        try:
            logs, learned = self._together(half)
        except BaseException:
            restore()
            raise
        self._whole = False
        self.worker.keep()
        replicas = self.worker.replicas
        done = min(replicas, self.training.steps - self.step)
        self.step, self._seen, self._batches = (
            n + done for n in (self.step, self._seen, self._batches)
        )
        self._learned = self._learned or learned
        if self.step == self.training.steps or self._batches >= self.accumulate * replicas:
            if self._learned:
                self.worker.apply()
            self._batches, self._learned = 0, False
        self._whole = True
        return logs

    def _leave_out(self, error: SourceError) -> None:
        """Goes on without a batch that cannot be read, if that was asked for and can be."""
        if self.left_out is None or not self.worker.splits or _synchronized(self.model):
            raise error
        self.left_out(error)

    def _together(self, work: Callable[[], Any]) -> tuple[Any, bool]:
        """What the work of this worker gives, if that of no other fails; and whether that of any gives something.

        Raises:
            WorkerError: another one has failed.
            Stopped: another one was stopped in the middle.
        """
        failed: BaseException | None = None
        found = None
        try:
            found = work()
        except BaseException as error:
            failed = error
        stopped = isinstance(failed, Stopped)
        flags = failed is not None and not stopped, stopped, bool(found)
        any_failed, any_stopped, some = self._agree(*flags)
        if failed is not None:
            raise failed
        if any_failed:
            raise WorkerError("another worker has failed; its own messages say why.")
        if any_stopped:
            self._stop()
        return found, some

    def _agree(self, *flags: bool) -> tuple[bool, ...]:
        """Each flag: whether any worker has it. Whoever has lost the others cannot save."""
        whole, self._whole = self._whole, False
        found = self.worker.agree(*flags)
        self._whole = whole
        return found

    def _stop(self) -> None:
        """Ends as all workers do where one was asked to."""
        stopping.check()
        raise Stopped("stopped, as another worker was")

    def _check_data(self) -> None:
        """That all workers have the same, or they would wait for each other."""
        of_chief, _ = self.worker.shared(self._data, {})

        def check() -> None:
            if of_chief != self._data:
                raise SourceError(
                    f"{self.training.steps} batches of {len(self.training.names)} images: others than those of the "
                    "first worker. Check that all workers see the same files and have the same flags."
                )

        self._together(check)

    def _check(self, logs: dict[str, float]) -> None:
        if not math.isfinite(logs.get("loss", 0.0)):
            raise NonFiniteError(
                f"step {self.step + 1} of epoch {self.epoch + 1}: the loss is {logs['loss']}, expected a finite "
                f"number. Lower the learning rate (now {float(self.model.optimizer.learning_rate):g}), or use "
                "--precision float32."
            )

    def _validated(self) -> dict[str, float]:
        """Metrics of the validation, by their names in a history."""
        validation = self.validation
        if validation is None:
            return {}
        self.model.reset_metrics()
        self.callbacks.on_test_begin()
        self._together(lambda: self._test(validation))
        found = self.worker.results()
        self.callbacks.on_test_end(found)
        return {f"val_{name}": value for name, value in found.items()}

    def _test(self, epochs: Epochs) -> None:
        left = self._dealt(epochs, 0)
        for step in range(0, epochs.steps, self.worker.replicas):
            stopping.check()
            self.callbacks.on_test_batch_begin(step)
            logs: dict[str, float] = {}
            try:
                logs = self._tested(*self._next(left, epochs.steps - step))
            except SourceError as error:
                self._leave_out(error)
            self.callbacks.on_test_batch_end(step, logs)

    def _tested(self, batches: list[Any], specs: Any) -> dict[str, float]:
        """Metrics with some batches; if one fails, without all of them."""

        def run() -> dict[str, float]:
            ready = self.worker.test(batches, specs)
            before = state.Kept(state.others_of(self.model))
            try:
                return as_numbers(ready())
            except BaseException:
                before.restore()
                raise

        return failures.or_with_less(self.model, run)

    # ---------------------------------------------------------------- checkpoints

    def _save(self) -> None:
        """Writes everything that goes on changing."""
        if self.checkpoints is None:
            return
        sums = self.worker.sums()
        named = {
            **state.variables_of(self.model),
            **self.worker.values(state.metrics_of(self.model)),
            **state.sums_of(sums),
        }
        self._saved = self._clock()
        if not self.worker.chief:
            return
        values = {
            "epoch": self.epoch,
            "step": self.step,
            "seen": self._seen,
            "batches": self._batches,
            "sums": [sums.batches, sums.items],
            "logs": self._logs,
            "data": self._data,
            "callbacks": {name: c.remembered() for name, c in self._remembering.items()},
            "generators": state.generators(),
        }
        self.checkpoints.write(self._seen, state.arrays(named), values)
        for callback in self._remembering.values():
            callback.written()

    def _go_on(self) -> None:
        """From the newest checkpoint, if there is one; all workers from that which the chief reads."""
        if self.checkpoints is None:
            return
        known = state.variables_of(self.model)
        found = None
        if self.worker.chief:
            found = self.checkpoints.newest(lambda found: state.check(known, found))
        text, arrays = self.worker.shared(
            json.dumps(found and found.values), dict(found.arrays) if found else {}
        )
        values = json.loads(text)
        if values is None:
            return
        rest = [n for n in arrays if not n.startswith((state.METRIC, state.SUM))]
        state.assign(known, [arrays[name] for name in rest])
        self._pending = [arrays[n] for n in arrays if n.startswith(state.METRIC)]
        self.epoch, self.step, self._seen = (values[name] for name in ("epoch", "step", "seen"))
        self._logs = values["logs"]
        batches, items = values["sums"]
        self._batches, self._learned = values["batches"], batches > 0
        variables = len(self.model.trainable_variables)
        self.worker.set_sums(state.kept_sums(arrays, batches, items, variables))
        for name, remembered in values["callbacks"].items():
            if name in self._remembering:
                self._remembering[name].remember(remembered)
        state.set_generators(values["generators"])
        if values["data"] != self._data:
            self._begin_epoch_anew()

    def _begin_epoch_anew(self) -> None:
        """Of other images than those of the checkpoint; what was learned stays."""
        print(
            f"the images are others than before: epoch {self.epoch + 1} begins again, with {self.training.steps} "
            "batches",
            file=sys.stderr,
        )
        self.step, self._logs = 0, {}
        self._batches, self._learned, self._pending = 0, False, []
        self.worker.set_sums(Sums())

    def _set_metrics(self) -> None:
        """Metrics go on, now that the first batch has made their variables."""
        if self._pending and self.step > 0:
            state.assign(state.metrics_of(self.model), self._pending)
        self._pending = []


def _synchronized(model: keras.Model) -> bool:
    """Whether statistics of a layer are those of all replicas."""
    layers = model._flatten_layers(include_self=False)
    return any(getattr(layer, "synchronized", False) for layer in layers)

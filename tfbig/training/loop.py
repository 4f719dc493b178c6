"""The loop of epochs and batches, which can end at any moment and go on from there as if nothing had happened."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import keras

from tfbig.errors import NonFiniteError, SourceError, Stopped, TfbigError, WorkerError
from tfbig.system import signals, tf_errors
from tfbig.training import training_state
from tfbig.training.checkpoint_files import Checkpoints
from tfbig.training.checkpointing import Keeping, Place
from tfbig.training.replicas import Replicas
from tfbig.training.rounds import Epochs, Rounds
from tfbig.training.single_process import Single, as_numbers


class Loop:
    """Trains a model, as `fit` does, with the same callbacks; besides,

    - a model made in the scope of a strategy of tf.distribute trains in rounds, a batch for each replica, as one model
      with all of their batches. With `BatchNormalization(synchronized=True)` the last round of an epoch is left out if
      it has none for some replica;
    - gradients of `accumulate` rounds are averaged, weighted by their items, before the optimizer steps; the last
      group of an epoch may be smaller. So is the mean over items of all batches, that of a loss with
      `reduction="mean_with_sample_weight"` is not;
    - everything that training changes is written to checkpoints: after every epoch, every so many seconds, and when it
      is stopped or fails. A loop with the same arguments goes on from the newest, in the middle of an epoch too, and
      ends with the same weights (bitwise where the operations are deterministic);
    - a batch that fails or is stopped leaves the model as it was before it;
    - generators of random numbers are alike in all replicas: dropout draws the same for each of their batches.

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
        alike: besides the images, what all workers must have alike, such as settings; as JSON has it.
        verbose: what is printed, as in `fit`: 0, 1 or 2.
        clock: seconds.

    Raises:
        ValueError: two callbacks of a kind, `accumulate` with a model whose optimizer steps inside, fewer batches than
            replicas, or what replicas cannot do (`tfbig.system.replication.check`).

    Attributes:
        place: how far it is.
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
        alike: object = None,
        verbose: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model = model
        self.training = training
        self.validation = validation
        self.epochs = epochs
        self.accumulate = accumulate
        self.every_seconds = every_seconds
        self.left_out = left_out
        self.place = Place()
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
        self._keeping = Keeping(
            model,
            self.worker,
            checkpoints,
            training_state.digest(training.steps, *training.names),
            training_state.digest(epochs, accumulate, alike),
            training_state.remembering(callbacks),
        )
        self._synchronized = self.worker.replicas > 1 and _synchronized(model)
        if self._synchronized:
            self.training = replace(training, steps=self._whole_rounds(training.steps))
        self._whole = True  # whether the model is that of the last batch that was done
        self._together_ends = self.worker.alone  # whether all workers end where this one does
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
            Stopped: it was asked to end (`tfbig.system.signals`); a checkpoint has been written.
            NonFiniteError: a loss is NaN or infinite; the weights are those before it.
            SourceError: an image cannot be read, or a checkpoint not be written or none be used.
            WorkerError: another worker has failed, is gone, or has other images or settings.
        """
        self._together(self._keeping.check)
        self.place = self._keeping.read() or self.place
        self.model.stop_training = self.place.ended
        self.callbacks.on_train_begin()
        try:
            while self.place.epoch < self.epochs and not self.place.ended:
                self._run_epoch()
        except BaseException:
            self._save_last()
            raise
        self.worker.finalize()
        self.callbacks.on_train_end()

    def _save(self) -> None:
        whole, self._whole = self._whole, False  # where it fails, it does so again
        self._keeping.write(self.place)
        self._whole, self._saved = whole, self._clock()

    def _save_last(self) -> None:
        """Before it ends by an error, which is the one to be told."""
        if not (self._whole and self._together_ends):
            return
        try:
            self._save()
        except TfbigError as error:
            print(f"no checkpoint of the last batches: {error}", file=sys.stderr)

    # ------------------------------------------------------------------- an epoch

    def _run_epoch(self) -> None:
        place = self.place
        if place.step == 0:
            self.model.reset_metrics()
        self.callbacks.on_epoch_begin(place.epoch)
        if place.step < self.training.steps:
            self._train()
        self.callbacks.on_epoch_end(place.epoch, {**place.logs, **self._validated()})
        (place.ended,) = self.worker.agree(self.model.stop_training)
        place.to_epoch(place.epoch + 1)
        self._save()

    def _train(self) -> None:
        place = self.place
        rounds = self._rounds(self.training)
        logs: dict[str, float] = {}
        while place.step < self.training.steps and not self.model.stop_training:
            self.callbacks.on_train_batch_begin(place.step)
            logs = self._learn(rounds) or logs
            self.callbacks.on_train_batch_end(place.step - 1, logs)
            due = self.worker.chief and self._clock() - self._saved >= self.every_seconds
            due, stops, self.model.stop_training = self.worker.agree(
                due, signals.asked() is not None, self.model.stop_training
            )
            if self.model.stop_training:
                self._apply()
            if due or stops or self.model.stop_training or place.step == self.training.steps:
                place.logs = self.worker.results()
            if stops:
                self._stop()
            if due:
                self._save()

    def _rounds(self, epochs: Epochs) -> Rounds:
        return Rounds(epochs, self.place.epoch, self.worker.own, self.worker.replicas)

    def _learn(self, rounds: Rounds) -> dict[str, float]:
        """A round; every so many of them the optimizer steps."""
        undo, place, replicas = training_state.Undo(), self.place, self.worker.replicas
        try:
            logs, learned = self._together(lambda: self._first_half(rounds, undo))
        except BaseException:
            undo.restore()
            raise
        self._whole = False
        self.worker.keep()
        place.add(min(replicas, self.training.steps - place.step), learned)
        if place.step == self.training.steps or place.batches >= self.accumulate * replicas:
            self._apply()
        self._whole = True
        return logs

    def _first_half(self, rounds: Rounds, undo: training_state.Undo) -> dict[str, float]:
        """Gradients of the batches of a round; nothing where one cannot be read and is left out."""

        def run() -> dict[str, float]:
            undo.restore()  # what was tried with too little memory
            ready = self.worker.ready(batches, specs)
            self._keeping.set_metrics(self.place)
            undo.keep(training_state.others_of(self.model))
            self._whole = self.worker.splits
            return as_numbers(ready())

        signals.check()
        try:
            batches, specs = rounds.read(self.place.step)
            logs = tf_errors.or_with_less(self.model, run)
        except SourceError as error:
            self._leave_out(error)
            undo.restore()
            self.worker.nothing()
            return {}
        self._check(logs)
        return logs

    def _apply(self) -> None:
        """The optimizer steps, if there is something to be learned."""
        whole, self._whole = self._whole, False
        if self.place.learned:
            self.worker.apply()
        self.place.stepped()
        self._whole = whole

    def _leave_out(self, error: SourceError) -> None:
        """Goes on without a batch that cannot be read, if that was asked for and can be."""
        if self.left_out is None or not self.worker.splits or self._synchronized:
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
        # Whose statistics are those of all wait for each other within a step: until its end, or that of this process.
        tied = self._synchronized and not self.worker.alone
        try:
            with signals.held() if tied else nullcontext():
                found = work()
        except BaseException as error:
            if tied:
                raise
            failed = error
        stopped = isinstance(failed, Stopped)
        flags = failed is not None and not stopped, stopped, bool(found)
        any_failed, any_stopped, some = self.worker.agree(*flags)
        self._together_ends = self._together_ends or any_failed or any_stopped
        if failed is not None:
            raise failed
        if any_failed:
            raise WorkerError("another worker has failed; its own messages say why.")
        if any_stopped:
            self._stop()
        return found, some

    def _stop(self) -> None:
        """Ends as all workers do where one was asked to."""
        self._together_ends = True
        signals.check()
        raise Stopped("stopped, as another worker was")

    def _check(self, logs: dict[str, float]) -> None:
        if not math.isfinite(logs.get("loss", 0.0)):
            raise NonFiniteError(
                f"step {self.place.step + 1} of epoch {self.place.epoch + 1}: the loss is {logs['loss']}, expected a "
                f"finite number. Lower the learning rate (now {self._learning_rate():g}), or use "
                "--precision float32."
            )

    def _learning_rate(self) -> float:
        return float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))

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
        rounds = self._rounds(epochs)
        for step in range(0, epochs.steps, self.worker.replicas):
            signals.check()
            self.callbacks.on_test_batch_begin(step)
            logs: dict[str, float] = {}
            try:
                logs = self._tested(*rounds.read(step))
            except SourceError as error:
                self._leave_out(error)
            self.callbacks.on_test_batch_end(step, logs)

    def _tested(self, batches: list[Any], specs: Any) -> dict[str, float]:
        """Metrics with some batches; if one fails, without all of them."""

        def run() -> dict[str, float]:
            ready = self.worker.test(batches, specs)
            undo = training_state.Undo()
            undo.keep(training_state.others_of(self.model))
            try:
                return as_numbers(ready())
            except BaseException:
                undo.restore()
                raise

        return tf_errors.or_with_less(self.model, run)


def _synchronized(model: keras.Model) -> bool:
    """Whether statistics of a layer are those of all replicas."""
    layers = model._flatten_layers(include_self=False)
    return any(getattr(layer, "synchronized", False) for layer in layers)

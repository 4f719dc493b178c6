"""Training loop over epochs and batches, which can be stopped at any moment and resumed without a difference."""

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
from tfbig.system import keras_internals, signals, tf_errors
from tfbig.training import training_state
from tfbig.training.checkpoint_files import Checkpoints
from tfbig.training.checkpointing import Checkpointer, Position
from tfbig.training.replicas import Replicas
from tfbig.training.rounds import Epochs, Rounds
from tfbig.training.single_process import SecondPass, Single, as_numbers
from tfbig.training.transaction import Transaction


class Loop:
    """Training loop like `keras.Model.fit`, with checkpoints, accumulation and distribution.

    It calls the same callbacks as `fit`. In addition:

    - A model created in the scope of a tf.distribute strategy trains in rounds of one batch for each replica, and
      equals one model that trains on all of their batches. With `BatchNormalization(synchronized=True)` an incomplete
      last round of an epoch is dropped.
    - Gradients of `accumulate` rounds are averaged, weighted by items, before the weights are updated; the last group
      of an epoch may be smaller. This equals the mean over the items of all batches, except for a loss with
      `reduction="mean_with_sample_weight"`.
    - Everything that training changes is written to checkpoints: after every epoch, every `every_seconds` seconds, and
      when training is stopped or fails. A loop with the same arguments resumes from the newest checkpoint, also in the
      middle of an epoch, and ends with the same weights (bitwise with deterministic operations).
    - A batch that fails or is stopped leaves the model as it was before this batch.
    - The random generators are equal in all replicas: dropout draws the same mask for each of their batches.

    Args:
        model: Compiled model.
        training: Training batches.
        validation: Validation batches of each epoch; by default there is no validation.
        epochs: Number of epochs in all, including those before a checkpoint.
        callbacks: Keras callbacks. The state of those with the methods `checkpoint_state`, `restore_state` and
            `checkpoint_written` is stored in checkpoints; at most one of each class.
        checkpoints: Checkpoints to write and to resume from; by default none.
        accumulate: Number of rounds for each update of the weights.
        every_seconds: Interval of checkpoints within an epoch, in seconds.
        left_out: Function that receives the error of a batch that cannot be read, which is then skipped. By default,
            and always with `BatchNormalization(synchronized=True)`, such an error ends training.
        alike: Settings that must be equal on all workers, in addition to the images, as JSON can represent them.
        verbose: Progress output as in `fit`: 0, 1 or 2.
        clock: Function that returns the time in seconds.
        worker: Function that creates the worker from the model. The worker may compute steps in another way than
            `fit`. By default, it is that of the strategy.

    Attributes:
        position: Position of the training: `position.epoch` finished epochs and `position.step` batches of the next.

    Raises:
        ValueError: Two callbacks with state are of the same class, `accumulate` is above 1 for a model whose optimizer
            updates the weights inside the training step, there are fewer batches than replicas, or the strategy does
            not support the optimizer or the loss.

    Example:
        >>> from tfbig.training import Checkpoints, Epochs, Loop
        >>> x, y = np.ones((4, 3), "float32"), np.ones((4, 1), "float32")
        >>> def batches(shard):
        ...     items = shard.items(len(x), 2)
        ...     return tf.data.Dataset.from_tensor_slices((x[items], y[items])).batch(2)
        >>> def train(epochs):
        ...     model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        ...     model.compile("sgd", "mse")
        ...     loop = Loop(model, Epochs(2, batches), epochs=epochs, checkpoints=Checkpoints("checkpoints", "a run"))
        ...     loop.run()
        ...     return int(model.optimizer.iterations), loop.position.epoch
        >>> train(epochs=1)
        (2, 1)
        >>> train(epochs=3)  # resumes after the first epoch
        (6, 3)
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
        worker: Callable[[keras.Model], Single] | None = None,
    ) -> None:
        self.model = model
        self.training = training
        self.validation = validation
        self.epochs = epochs
        self.accumulate = accumulate
        self.every_seconds = every_seconds
        self.left_out = left_out
        self.position = Position()
        self.callbacks = keras.callbacks.CallbackList(
            list(callbacks),
            add_progbar=verbose != 0,
            model=model,
            verbose=verbose,
            epochs=epochs,
            steps=training.steps,
        )
        distributed = keras_internals.strategy_of(model) is not None
        usual = Replicas if distributed else Single
        self.worker: Single | Replicas = (worker or usual)(model)
        self._collective = self.worker.collective
        _check_accumulation(model, self.worker, accumulate)
        self._checkpointer = Checkpointer(
            model,
            self.worker,
            checkpoints,
            self.position,
            training_state.digest(training.steps, *training.names),
            training_state.digest(epochs, accumulate, alike),
            callbacks,
        )
        self._synchronized = self.worker.replicas > 1 and _has_synchronized_layer(model)
        if self._synchronized:
            self.training = replace(training, steps=self._batches_of_full_rounds(training.steps))
        self._transaction = Transaction(model, self.worker)
        # whether all workers end after the same batch
        self._ends_together = self._collective.single_worker
        self._clock = clock
        self._saved = clock()

    def _batches_of_full_rounds(self, steps: int) -> int:
        """Return the number of batches in those rounds of an epoch that have a batch for every replica."""
        replicas = self.worker.replicas
        if steps < replicas:
            raise ValueError(
                f"{replicas} replicas with synchronized BatchNormalization need at least as many batches per epoch, "
                f"received {steps}. Use fewer workers."
            )
        return steps - steps % replicas

    def run(self) -> None:
        """Train until all epochs are finished, from the newest checkpoint if there is one.

        Raises:
            Stopped: A stop was requested (`tfbig.system.signals`); a checkpoint has been written.
            NonFiniteError: The loss is NaN or infinite; the weights are those before this batch.
            SourceError: An image cannot be read, a checkpoint cannot be written, or none can be used.
            WorkerError: Another worker has failed, disappeared, or has other images or settings.
        """
        self._on_all_workers(self._checkpointer.check)
        self._checkpointer.read()
        self.model.stop_training = self.position.ended
        self.callbacks.on_train_begin()
        try:
            while self.position.epoch < self.epochs and not self.position.ended:
                self._run_epoch()
        except BaseException:
            self._save_last()
            raise
        self.worker.finalize()
        self.callbacks.on_train_end()

    def _save(self) -> None:
        with self._transaction as changes:
            changes.commit()  # a failure would repeat in `_save_last`
            self._checkpointer.write()
        self._saved = self._clock()

    def _save_last(self) -> None:
        """Write a checkpoint before training ends by an error, which must remain the one that is raised."""
        if not (self._transaction.is_consistent and self._ends_together):
            return
        try:
            self._save()
        except TfbigError as error:
            print(f"the last batches are not in a checkpoint: {error}", file=sys.stderr)

    # ------------------------------------------------------------------- an epoch

    def _run_epoch(self) -> None:
        position = self.position
        if position.step == 0:
            self.worker.reset(self.training.steps)
        self.callbacks.on_epoch_begin(position.epoch)
        if position.step < self.training.steps:
            self._train()
        self.callbacks.on_epoch_end(position.epoch, {**position.logs, **self._validate()})
        (position.ended,) = self._collective.any(self.model.stop_training)
        position.to_epoch(position.epoch + 1)
        self._save()

    def _train(self) -> None:
        position = self.position
        first = position.step
        rounds = self._rounds(self.training)
        logs: dict[str, float] = {}
        while position.step < self.training.steps and not self.model.stop_training:
            self.callbacks.on_train_batch_begin(position.step)
            logs = self._train_round(rounds) or logs
            self.callbacks.on_train_batch_end(position.step - 1, logs)
            due = self._collective.chief and self._clock() - self._saved >= self.every_seconds
            due, stops, self.model.stop_training = self._collective.any(
                due, signals.requested() is not None, self.model.stop_training
            )
            if self.model.stop_training:
                self._apply()
            if position.step == self.training.steps:
                self._check_used(logs, first)
            if due or stops or self.model.stop_training or position.step == self.training.steps:
                position.logs = self.worker.results()
            if stops:
                self._stop()
            if due:
                self._save()

    def _check_used(self, logs: dict[str, float], first: int = 0) -> None:
        """Check that not all batches of an epoch, or of its validation, were skipped; all workers call it.

        Args:
            logs: Logs of a batch, if any was used.
            first: The first batch of which there would be logs.

        Raises:
            SourceError: All were.
        """
        (used,) = self._collective.any(bool(logs))
        if not used and first == 0:
            raise SourceError(
                f"epoch {self.position.epoch + 1}: no batch could be used. Correct what was skipped, see above."
            )

    def _rounds(self, epochs: Epochs) -> Rounds:
        return Rounds(epochs, self.position.epoch, self.worker.local_replicas, self.worker.replicas)

    def _train_round(self, rounds: Rounds) -> dict[str, float]:
        """Train on one round; every `accumulate` rounds, update the weights."""
        position, size = self.position, self._round_size()
        with self._transaction as changes:
            logs, learned = self._on_all_workers(lambda: self._first_phase(rounds, size, changes))
            if learned and (prepare := self.worker.prepare_second_pass):
                logs, _ = self._on_all_workers(lambda: self._second_pass(prepare))
                (skipped,) = self._collective.any(not logs)
                learned = not skipped
                if skipped:
                    changes.undo()
            changes.commit()
            position.add(size, learned)
            if (
                position.step == self.training.steps
                or position.batches >= self._batches_of_an_update
            ):
                self._apply()
        return logs

    @property
    def _batches_of_an_update(self) -> int:
        """Number of batches after which the weights are updated, over all workers."""
        return self.accumulate * self.worker.replicas

    def _round_size(self) -> int:
        """Return the number of batches of the next round.

        It is the number of replicas, except at the end of an epoch, and where another number of replicas has left off
        between two updates: the update has the same batches then.
        """
        position, most = self.position, self.worker.replicas
        if not self._synchronized:  # its statistics are those of full rounds
            most = max(1, min(most, self._batches_of_an_update - position.batches))
        return min(most, self.training.steps - position.step)

    def _first_phase(self, rounds: Rounds, size: int, changes: Transaction) -> dict[str, float]:
        """Compute the gradients of a round and return logs; without logs, the round is skipped."""

        def run() -> dict[str, float]:
            changes.undo()  # changes of an attempt that ran out of memory
            ready = self.worker.prepare(batches, specs)
            self._checkpointer.set_metrics()
            changes.begin()
            changes.is_consistent = self.worker.two_phase  # otherwise weights change too
            return as_numbers(ready())

        signals.check()
        try:
            batches, specs = rounds.read(self.position.step, size)
            logs = tf_errors.retry_with_less_memory(self.model, run)
        except SourceError as error:
            self._skip_or_raise(error)
            changes.undo()
            return {}
        self._check(logs)
        return logs

    def _second_pass(self, prepare: SecondPass) -> dict[str, float]:
        """Compute the gradients after the first pass of all workers. Return logs; empty logs skip the round."""
        try:
            logs = as_numbers(tf_errors.retry_with_less_memory(self.model, prepare()))
        except SourceError as error:
            self._skip_or_raise(error)
            return {}
        self._check(logs)
        return logs

    def _apply(self) -> None:
        """Update the weights, if there are gradients."""
        with self._transaction as changes:
            changes.commit()
            if self.position.learned:
                self.worker.apply()
            self.position.stepped()

    def _skip_or_raise(self, error: SourceError) -> None:
        """Skip a batch that cannot be read if `left_out` is set and this is possible; otherwise raise."""
        if self.left_out is None or not self.worker.two_phase or self._synchronized:
            raise error
        self.left_out(error)

    def _on_all_workers(self, work: Callable[[], Any]) -> tuple[Any, bool]:
        """Run `work` and check that it succeeds on all workers.

        Returns:
            The result of `work`, and whether the result of any worker is true.

        Raises:
            WorkerError: Another worker has failed.
            Stopped: Another worker was stopped during its work.
        """
        failed: BaseException | None = None
        result = None
        # With synchronized statistics, workers wait for each other within a step: until the step or this process ends.
        tied = self._synchronized and not self._collective.single_worker
        try:
            with signals.deferred() if tied else nullcontext():
                result = work()
        except BaseException as error:
            if tied:
                raise
            failed = error
        stopped = isinstance(failed, Stopped)
        flags = failed is not None and not stopped, stopped, bool(result)
        any_failed, any_stopped, any_result = self._collective.any(*flags)
        self._ends_together = self._ends_together or any_failed or any_stopped
        if failed is not None:
            raise failed
        if any_failed:
            raise WorkerError("another worker has failed; see its messages.")
        if any_stopped:
            self._stop()
        return result, any_result

    def _stop(self) -> None:
        """Stop, as all workers do if one is requested to."""
        self._ends_together = True
        signals.check()
        raise Stopped("stopped, because another worker was")

    def _check(self, logs: dict[str, float]) -> None:
        if not math.isfinite(logs.get("loss", 0.0)):
            position = self.position
            raise NonFiniteError(
                f"step {position.step + 1} of epoch {position.epoch + 1}: the loss is {logs['loss']}, expected a "
                f"finite number. Lower the learning rate (now {self._learning_rate():g}), or use "
                "--precision float32."
            )

    def _learning_rate(self) -> float:
        return float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))

    def _validate(self) -> dict[str, float]:
        """Validate the model and return the metrics with the prefix `val_`."""
        validation = self.validation
        if validation is None:
            return {}
        self.worker.reset(validation.steps)
        self.callbacks.on_test_begin()
        logs, _ = self._on_all_workers(lambda: self._test(validation))
        self._check_used(logs)
        metrics = self.worker.results()
        self.callbacks.on_test_end(metrics)
        return {f"val_{name}": value for name, value in metrics.items()}

    def _test(self, epochs: Epochs) -> dict[str, float]:
        """Update the metrics with all batches, and return the last logs; none if all batches were skipped."""
        rounds, last = self._rounds(epochs), dict[str, float]()
        for step in range(0, epochs.steps, self.worker.replicas):
            signals.check()
            self.callbacks.on_test_batch_begin(step)
            logs: dict[str, float] = {}
            try:
                logs = self._test_round(*rounds.read(step), step)
            except SourceError as error:
                self._skip_or_raise(error)
            self.callbacks.on_test_batch_end(step, logs)
            last = logs or last
        return last

    def _test_round(self, batches: list[Any], specs: Any, step: int) -> dict[str, float]:
        """Update the metrics with the batches of a round and return logs; if one fails, with none of them."""

        def run() -> dict[str, float]:
            ready = self.worker.prepare_test(batches, specs, step)
            with Transaction(self.model, self.worker) as changes:
                changes.begin()
                return as_numbers(ready())

        return tf_errors.retry_with_less_memory(self.model, run)


def _check_accumulation(model: keras.Model, worker: Single | Replicas, accumulate: int) -> None:
    if accumulate == 1:
        return
    if not worker.two_phase:
        raise ValueError(
            f"accumulate={accumulate}: the optimizer of '{model.name}' updates the weights inside a training step, so "
            "gradients cannot be accumulated; create the model with accumulate=None."
        )
    if worker.prepare_second_pass:
        raise ValueError(
            f"accumulate={accumulate}: several workers share each batch of '{model.name}', expected 1. Use larger "
            "batches."
        )


def _has_synchronized_layer(model: keras.Model) -> bool:
    """Return whether a layer shares its statistics between replicas."""
    layers = keras_internals.inner_layers(model)
    return any(getattr(layer, "synchronized", False) for layer in layers)

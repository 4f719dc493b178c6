"""Training position and state, written to checkpoints and read back."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import keras

from tfbig.errors import WorkerError
from tfbig.training import training_state
from tfbig.training.checkpoint_files import Checkpoints
from tfbig.training.gradient_sums import Sums
from tfbig.training.replicas import Replicas
from tfbig.training.single_process import Single


@dataclass
class Place:
    """Position of a training run. Checkpoints contain these fields by name.

    Attributes:
        epoch: Number of finished epochs.
        step: Number of finished batches of the current epoch.
        seen: Number of finished batches of all epochs, which numbers checkpoints.
        batches: Number of batches since the last update of the weights.
        learned: Whether one of these had gradients.
        ended: Whether a callback has ended training.
        logs: Latest logs of the epoch.
    """

    epoch: int = 0
    step: int = 0
    seen: int = 0
    batches: int = 0
    learned: bool = False
    ended: bool = False
    logs: dict[str, float] = field(default_factory=dict)

    def add(self, batches: int, learned: bool) -> None:
        """Count finished batches."""
        self.step += batches
        self.seen += batches
        self.batches += batches
        self.learned = self.learned or learned

    def stepped(self) -> None:
        """Record an update of the weights."""
        self.batches, self.learned = 0, False

    def to_epoch(self, epoch: int) -> None:
        """Move to the start of an epoch."""
        self.epoch, self.step, self.logs = epoch, 0, {}
        self.stepped()


class Checkpointer:
    """Writer and reader of the checkpoints of a training run.

    Args:
        model: Compiled model.
        worker: Worker that trains it.
        checkpoints: Checkpoint files; None writes and reads nothing.
        data: Digest of the training data.
        settings: Digest of the settings that must be equal on all workers.
        callbacks: Callbacks with state, by name.
    """

    def __init__(
        self,
        model: keras.Model,
        worker: Single | Replicas,
        checkpoints: Checkpoints | None,
        data: str,
        settings: str,
        callbacks: Mapping[str, training_state.Resumable],
    ) -> None:
        self.model = model
        self.worker = worker
        self.checkpoints = checkpoints
        self.data = data
        self.settings = settings
        self.callbacks = callbacks
        # Metrics of a checkpoint, whose variables are created by the first batch.
        self._pending: list[Any] = []

    def check(self) -> None:
        """Check that all workers have equal images and settings; otherwise they would block or diverge.

        Raises:
            WorkerError: This worker differs from the first.
        """
        of_chief, _ = self.worker.broadcast(f"{self.data} {self.settings}", {})
        data, settings = of_chief.split()
        if data != self.data:
            raise WorkerError(
                "the images differ from those of the first worker. Check that all workers see the same files."
            )
        if settings != self.settings:
            raise WorkerError(
                "the settings differ from those of the first worker. Start all workers with the same flags."
            )

    def write(self, place: Place) -> None:
        """Write a checkpoint, on the chief."""
        if self.checkpoints is None:
            return
        sums = self.worker.sums()
        named = {
            **training_state.variables_of(self.model),
            **self.worker.metric_values(training_state.metrics_of(self.model)),
            **training_state.sums_of(sums),
        }
        if not self.worker.chief:
            return
        values = {
            "place": asdict(place),
            "sums": [sums.batches, sums.items],
            "data": self.data,
            "callbacks": {name: c.checkpoint_state() for name, c in self.callbacks.items()},
            "generators": training_state.generators(),
        }
        self.checkpoints.write(place.seen, training_state.to_arrays(named), values)
        for callback in self.callbacks.values():
            callback.checkpoint_written()

    def read(self) -> Place | None:
        """Restore the newest checkpoint, which the chief reads, and return its position; None if there is none."""
        if self.checkpoints is None:
            return None
        variables = training_state.variables_of(self.model)
        newest = None
        if self.worker.chief:
            newest = self.checkpoints.newest(lambda each: training_state.check(variables, each))
        text, arrays = self.worker.broadcast(
            json.dumps(newest and newest.values), dict(newest.arrays) if newest else {}
        )
        values = json.loads(text)
        if values is None:
            return None
        other = (training_state.METRIC, training_state.SUM)
        names = [name for name in arrays if not name.startswith(other)]
        training_state.assign(variables, [arrays[name] for name in names])
        self._pending = [arrays[n] for n in arrays if n.startswith(training_state.METRIC)]
        batches, items = values["sums"]
        count = len(self.model.trainable_variables)
        self.worker.set_sums(training_state.sums_from(arrays, batches, items, count))
        for name, state in values["callbacks"].items():
            if name in self.callbacks:
                self.callbacks[name].restore_state(state)
        training_state.set_generators(values["generators"])
        place = Place(**values["place"])
        if values["data"] != self.data:
            self._restart_epoch(place)
        return place

    def set_metrics(self, place: Place) -> None:
        """Restore the metrics of the epoch, once a batch has created their variables."""
        if place.step > 0 and self._pending:
            metrics = training_state.metrics_of(self.model)
            training_state.assign_sums(metrics, self._pending, self.worker.chief)
        self._pending = []

    def _restart_epoch(self, place: Place) -> None:
        """Start the epoch again, because the images or the batch size differ; the weights remain."""
        print(
            f"the images or the batch size have changed: epoch {place.epoch + 1} starts again",
            file=sys.stderr,
        )
        place.to_epoch(place.epoch)
        self.worker.set_sums(Sums())

"""Training position and state, written to checkpoints and read back."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import keras

from tfbig.errors import WorkerError
from tfbig.training import training_state
from tfbig.training.checkpoint_files import Arrays, Checkpoints
from tfbig.training.gradient_sums import Sums
from tfbig.training.replicas import Replicas
from tfbig.training.single_process import Single


@dataclass
class Position:
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

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the fields."""
        return {}, asdict(self)

    def set_state(self, arrays: Arrays, values: dict[str, Any]) -> None:
        """Restore the fields."""
        for name, value in values.items():
            setattr(self, name, value)


class Checkpointer:
    """Writer and reader of the checkpoints of a training run; without `checkpoints` nothing is written or read.

    `data` and `settings` are digests, which must be equal on all workers.
    """

    def __init__(
        self,
        model: keras.Model,
        worker: Single | Replicas,
        checkpoints: Checkpoints | None,
        position: Position,
        data: str,
        settings: str,
        callbacks: Iterable[keras.callbacks.Callback],
    ) -> None:
        self.worker = worker
        self.collective = worker.collective
        self.checkpoints = checkpoints
        self.position = position
        self.data = data
        self.settings = settings
        self._variables = training_state.Variables(model)
        self._metrics = training_state.Metrics(model, worker)
        self._callbacks = training_state.Callbacks(callbacks, worker.collective.chief)
        self._states: dict[str, training_state.State] = {
            "place": position,
            "variables": self._variables,
            "metrics": self._metrics,
            "sums": training_state.Gradients(model, worker),
            "callbacks": self._callbacks,
            "generators": training_state.Generators(),
        }

    def check(self) -> None:
        """Check that all workers have equal images and settings; otherwise they would block or diverge.

        Raises:
            WorkerError: This worker differs from the first.
        """
        of_chief, _ = self.collective.broadcast(f"{self.data} {self.settings}", {})
        data, settings = of_chief.split()
        if data != self.data:
            raise WorkerError(
                "the images differ from those of the first worker. Check that all workers see the same files."
            )
        if settings != self.settings:
            raise WorkerError(
                "the settings differ from those of the first worker. Start all workers with the same flags."
            )

    def write(self) -> None:
        """Write a checkpoint, on the chief."""
        if self.checkpoints is None:
            return
        named: dict[str, Any] = {}
        values: dict[str, Any] = {"data": self.data}
        for name, part in self._states.items():
            own, value = part.state()
            named |= own
            if value is not None:
                values[name] = value
        if self.collective.chief:
            self.checkpoints.write(self.position.seen, training_state.to_arrays(named), values)
            self._callbacks.checkpoint_written()

    def read(self) -> None:
        """Restore the newest checkpoint, which the chief reads, if there is one."""
        if self.checkpoints is None:
            return
        newest = self.checkpoints.newest(self._variables.check) if self.collective.chief else None
        text, arrays = self.collective.broadcast(
            json.dumps(newest and newest.values), dict(newest.arrays) if newest else {}
        )
        values = json.loads(text)
        if values is None:
            return
        for name, part in self._states.items():
            part.set_state(arrays, values.get(name))
        if values["data"] != self.data:
            self._restart_epoch()

    def set_metrics(self) -> None:
        """Restore the metrics of the epoch, once a batch has created their variables."""
        self._metrics.assign(in_epoch=self.position.step > 0)

    def _restart_epoch(self) -> None:
        """Start the epoch again, because the images or the batch size differ; the weights remain."""
        print(
            f"the images or the batch size have changed: epoch {self.position.epoch + 1} starts again",
            file=sys.stderr,
        )
        self.position.to_epoch(self.position.epoch)
        self.worker.set_sums(Sums())

"""How far training is, and everything that it changes, to checkpoints and back."""

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
    """How far training is.

    Attributes:
        epoch, step: how many epochs, and batches of the next one, are done.
        seen: batches of all epochs, by which checkpoints are numbered.
        batches: those since the optimizer stepped.
        learned: whether one of these gave gradients.
        ended: whether a callback has ended training.
        logs: of the epoch, when they were last taken.
    """

    epoch: int = 0
    step: int = 0
    seen: int = 0
    batches: int = 0
    learned: bool = False
    ended: bool = False
    logs: dict[str, float] = field(default_factory=dict)

    def add(self, batches: int, learned: bool) -> None:
        """So many were worked on."""
        self.step += batches
        self.seen += batches
        self.batches += batches
        self.learned = self.learned or learned

    def stepped(self) -> None:
        """The optimizer has used what was learned."""
        self.batches, self.learned = 0, False

    def to_epoch(self, epoch: int) -> None:
        """At its beginning."""
        self.epoch, self.step, self.logs = epoch, 0, {}
        self.stepped()


class Keeping:
    """Writes and reads checkpoints of a training.

    Args:
        model: compiled.
        worker: that trains it.
        checkpoints: where they are; None writes nothing and reads nothing.
        data: by which its images are known.
        alike: by which it is known that workers do the same.
        remembering: callbacks that are kept too, by name.
    """

    def __init__(
        self,
        model: keras.Model,
        worker: Single | Replicas,
        checkpoints: Checkpoints | None,
        data: str,
        alike: str,
        remembering: Mapping[str, training_state.Remembering],
    ) -> None:
        self.model = model
        self.worker = worker
        self.checkpoints = checkpoints
        self.data = data
        self.alike = alike
        self.remembering = remembering
        # Metrics of a checkpoint, whose variables there are with the first batch.
        self._pending: list[Any] = []

    def check(self) -> None:
        """That all workers do the same with the same images, or they would wait for each other, or drift apart.

        Raises:
            WorkerError: this one has others than the first.
        """
        of_chief, _ = self.worker.shared(f"{self.data} {self.alike}", {})
        data, alike = of_chief.split()
        if data != self.data:
            raise WorkerError(
                "the images are others than those of the first worker. Check that all workers see the same files."
            )
        if alike != self.alike:
            raise WorkerError(
                "the settings are others than those of the first worker. Give all workers the same flags."
            )

    def write(self, place: Place) -> None:
        """Everything that goes on changing; the chief writes it."""
        if self.checkpoints is None:
            return
        sums = self.worker.sums()
        named = {
            **training_state.variables_of(self.model),
            **self.worker.values(training_state.metrics_of(self.model)),
            **training_state.sums_of(sums),
        }
        if not self.worker.chief:
            return
        values = {
            "place": asdict(place),
            "sums": [sums.batches, sums.items],
            "data": self.data,
            "callbacks": {name: c.remembered() for name, c in self.remembering.items()},
            "generators": training_state.generators(),
        }
        self.checkpoints.write(place.seen, training_state.arrays(named), values)
        for callback in self.remembering.values():
            callback.written()

    def read(self) -> Place | None:
        """Sets everything as the newest checkpoint has it, that which the chief reads; None if there is none."""
        if self.checkpoints is None:
            return None
        known = training_state.variables_of(self.model)
        found = None
        if self.worker.chief:
            found = self.checkpoints.newest(lambda found: training_state.check(known, found))
        text, arrays = self.worker.shared(
            json.dumps(found and found.values), dict(found.arrays) if found else {}
        )
        values = json.loads(text)
        if values is None:
            return None
        rest = [n for n in arrays if not n.startswith((training_state.METRIC, training_state.SUM))]
        training_state.assign(known, [arrays[name] for name in rest])
        self._pending = [arrays[n] for n in arrays if n.startswith(training_state.METRIC)]
        batches, items = values["sums"]
        variables = len(self.model.trainable_variables)
        self.worker.set_sums(training_state.kept_sums(arrays, batches, items, variables))
        for name, remembered in values["callbacks"].items():
            if name in self.remembering:
                self.remembering[name].remember(remembered)
        training_state.set_generators(values["generators"])
        place = Place(**values["place"])
        if values["data"] != self.data:
            self._begin_anew(place)
        return place

    def set_metrics(self, place: Place) -> None:
        """Metrics of the epoch go on, now that a batch has made their variables."""
        if place.step > 0 and self._pending:
            training_state.assign(training_state.metrics_of(self.model), self._pending)
        self._pending = []

    def _begin_anew(self, place: Place) -> None:
        """The epoch, with other images than those of the checkpoint; what was learned stays."""
        print(
            f"the images, or how many are a batch, are others than before: epoch {place.epoch + 1} begins again",
            file=sys.stderr,
        )
        place.to_epoch(place.epoch)
        self.worker.set_sums(Sums())

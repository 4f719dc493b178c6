"""The interface of a task of `--task`: what a run of it reads, builds, plans, trains and writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from tfbig.cli import load_model
from tfbig.cli.data.run_data import Data
from tfbig.cli.settings.tasks import TrainSettings
from tfbig.plan.plan import Plan

History = list[Mapping[str, Any]]
"""Columns of `history.csv` for each epoch."""


class Models(NamedTuple):
    """The model to train and the plain model to save, which share their variables; they may be the same."""

    model: Any
    twin: Any


class Plans(NamedTuple):
    """The plans of a training step and of a validation step."""

    training: Plan
    validation: Plan


class Curve(NamedTuple):
    """The learning curve of a run: its columns with their labels, and what it is validated on."""

    labels: Mapping[str, str]
    validated_on: str


S = TypeVar("S", bound=TrainSettings)


class Task(ABC, Generic[S]):
    """A task of `--task`; settings and data are passed to its methods, it holds neither.

    Attributes:
        measured: Columns of the history whose last values are saved with the metrics.
    """

    measured: tuple[str, ...] = ("loss", "val_loss", "seconds_per_step")

    def resolved(self, settings: S) -> S:
        """Fill in defaults that depend on other settings."""
        return settings

    @abstractmethod
    def load(self, settings: S) -> Data:
        """Open the data of the run, and print what they are."""

    @abstractmethod
    def models(self, settings: S, data: Data) -> Models:
        """Build models, compiled with one optimizer."""

    @abstractmethod
    def plans(self, models: Models, settings: S, data: Data) -> Plans | None:
        """The plans of the largest steps, or None if the model is not streamed."""

    @abstractmethod
    def fit(self, models: Models, settings: S, data: Data, folder: Path) -> History:
        """Train from the last checkpoint, and return the history of all epochs."""

    @abstractmethod
    def curve(self, settings: S) -> Curve:
        """Return what the learning curve shows."""

    @abstractmethod
    def write_results(
        self, models: Models, settings: S, data: Data, folder: Path, measured: Mapping[str, Any]
    ) -> None:
        """Write predictions, pictures, and last the metrics, whose presence means that the run has ended.

        `measured` are numbers to save with the metrics.
        """

    def restore(self, models: Models, path: Path) -> None:
        """Load the weights of a trained model, whose file also holds the state of the optimizer, into new models.

        `path` is `model.keras` of the run.
        """
        models.twin.optimizer.build(models.twin.trainable_variables)
        load_model.load_weights(models.twin, path)

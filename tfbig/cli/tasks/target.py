"""The interface of a target of `--target`: what a model learns, and how its predictions are judged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from tfbig.cli.data.run_data import Data

Numbers: TypeAlias = npt.NDArray[Any]
Row: TypeAlias = dict[str, Any]


class Part(Protocol):
    """A split of bags or images.

    Attributes:
        ITEMS: What they are, in the plural.
    """

    ITEMS: ClassVar[str]

    @property
    def labels(self) -> Numbers:
        """What is to be predicted of each, `[n, ...]`."""


Predict: TypeAlias = Callable[[Any], Numbers]
"""Function from a split to the predictions of its bags or images, `[n, width]`."""


class Target(ABC):
    """A target of `--target`; data are passed to its methods.

    A prediction is a row of numbers, such as probabilities, that may be averaged over samples of a bag.

    Attributes:
        curves: Columns of the history that are drawn, with their labels.
    """

    curves: ClassVar[Mapping[str, str]]

    # ------------------------------------------------------------------ training

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """Number of outputs of the model."""

    def labels(self, part: Part, data: Data) -> Numbers:
        """Return the labels that the model is trained with, `[n, ...]`.

        Args:
            part: A split.
            data: Data of the run.
        """
        return part.labels

    @abstractmethod
    def loss(self) -> Any:
        """Return the loss of the model."""

    @abstractmethod
    def metrics(self, data: Data) -> list[Any]:
        """Return new metrics of the model."""

    @abstractmethod
    def counts(self, part: Part) -> str:
        """Return a few words about the labels of a split."""

    # ---------------------------------------------------------------- prediction

    @abstractmethod
    def predicted(self, logits: Numbers) -> Numbers:
        """Return predictions `[n, width]` of the outputs of the model, `[n, num_outputs]`."""

    @abstractmethod
    def columns(self, prediction: Numbers) -> Row:
        """Return the columns of a prediction in a table."""

    @abstractmethod
    def caption(self, prediction: Numbers) -> str:
        """Return a prediction in a few words."""

    @abstractmethod
    def tile_numbers(self, scores: Numbers) -> dict[str, Numbers]:
        """Return numbers of tiles by name, of the outputs `[n, num_outputs]` for each tile alone."""

    def tile_classes(self, scores: Numbers) -> tuple[Numbers, Sequence[str]] | None:
        """Return the class of each tile `[n]` and the names of all classes, or None if the target has none."""
        return None

    # ---------------------------------------------------------------- evaluation

    @abstractmethod
    def truth(self, label: Any, data: Data) -> Row:
        """Return the columns of a label in a table."""

    @abstractmethod
    def judged(self, predictions: Numbers, part: Part) -> dict[str, float]:
        """Return figures of merit of predictions by name; NaN if one is not defined."""

    def reference(self, predict: Predict, data: Data, run: str | None) -> Any:
        """Return what the evaluation needs of training or validation data, such as a threshold.

        Args:
            predict: Function from a split to its predictions.
            data: Data of the run.
            run: The folder of the run that is evaluated, which has a reference already; None after training.
        """
        return None

    @abstractmethod
    def write(
        self, folder: Path, repeats: Sequence[Numbers], part: Part, reference: Any
    ) -> dict[str, Any]:
        """Write tables and figures into a run folder, and return further metrics.

        Args:
            folder: Run folder.
            repeats: Predictions of the test set, of each repeat.
            part: The test set.
            reference: Of `reference`.
        """

    def first_drawn(self, part: Part, predictions: Numbers) -> Sequence[int]:
        """Return numbers of bags, in the order in which attention without a slide is drawn: largest first."""
        return [int(number) for number in np.argsort(-predictions[:, 0], kind="stable")]

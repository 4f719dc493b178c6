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
        """The labels of each, `[n, ...]`."""


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
        """The labels that the model is trained with, `[n, ...]`."""
        return part.labels

    @abstractmethod
    def loss(self) -> Any:
        """The loss of the model."""

    @abstractmethod
    def metrics(self, data: Data) -> list[Any]:
        """New metrics of the model."""

    @abstractmethod
    def counts(self, part: Part) -> str:
        """Describe the labels of a split in a few words."""

    # ---------------------------------------------------------------- prediction

    @abstractmethod
    def predicted(self, logits: Numbers) -> Numbers:
        """Turn outputs `[n, num_outputs]` of the model into predictions `[n, width]`."""

    @abstractmethod
    def columns(self, prediction: Numbers) -> Row:
        """The columns of a prediction in a table."""

    @abstractmethod
    def caption(self, prediction: Numbers) -> str:
        """Describe a prediction in a few words."""

    @abstractmethod
    def tile_numbers(self, scores: Numbers) -> dict[str, Numbers]:
        """Numbers of tiles by name, from the outputs `[n, num_outputs]` for each tile alone."""

    def tile_classes(self, scores: Numbers) -> tuple[Numbers, Sequence[str]] | None:
        """The class of each tile `[n]` and the names of all classes, or None if the target has none."""
        return None

    # ---------------------------------------------------------------- evaluation

    @abstractmethod
    def truth(self, label: Any, data: Data) -> Row:
        """The columns of a label in a table."""

    @abstractmethod
    def judged(self, predictions: Numbers, part: Part) -> dict[str, float]:
        """Compute figures of merit of predictions by name; NaN if one is not defined."""

    def reference(self, predict: Predict, data: Data, run: str | None) -> Any:
        """Return what the evaluation needs of training or validation data, such as a threshold.

        `run` is the folder of the run that is evaluated, which has a reference already; None after training.
        """
        return None

    @abstractmethod
    def write(
        self, folder: Path, repeats: Sequence[Numbers], part: Part, reference: Any
    ) -> dict[str, Any]:
        """Write tables and figures into a run folder, and return further metrics.

        `repeats` are the predictions of the test set `part`, of each repeat; `reference` is that of the method of
        this name.
        """

    def first_drawn(self, part: Part, predictions: Numbers) -> Sequence[int]:
        """Order bags as attention without a slide is drawn, largest first, and give their numbers."""
        return [int(number) for number in np.argsort(-predictions[:, 0], kind="stable")]

"""`--target regression`: a number for each bag or image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import keras
import numpy as np

from tfbig import SourceError
from tfbig.cli.data.run_data import Data
from tfbig.cli.tasks.target import Numbers, Part, Row, Target
from tfbig.mil.target_metrics import ScaledError
from tfbig.results import regression


@dataclass(frozen=True)
class RegressionTarget(Target):
    """A number, learned by the mean squared error of scaled values; a prediction is the value itself.

    `mean` and `deviation` are those of the values of the training set.
    """

    curves = MappingProxyType({"loss": "mean squared error, scaled", "mae": "mean absolute error"})
    mean: float
    deviation: float

    num_outputs = 1

    def labels(self, part: Part, data: Data) -> Numbers:
        """Scaled values `[n, 1]`."""
        return np.asarray((part.labels - self.mean) / self.deviation, keras.config.floatx())

    def loss(self) -> Any:
        """The mean squared error."""
        return keras.losses.MeanSquaredError()

    def metrics(self, data: Data) -> list[Any]:
        """The mean absolute error, in the unit of the values."""
        return [ScaledError(self.deviation)]

    def counts(self, part: Part) -> str:
        """The range of the values."""
        return f"values {part.labels.min():g} to {part.labels.max():g}"

    def predicted(self, logits: Numbers) -> Numbers:
        """Values in the unit of the table."""
        return np.asarray(logits, np.float64) * self.deviation + self.mean

    def columns(self, prediction: Numbers) -> Row:
        """The predicted value."""
        return {"predicted": float(prediction[0])}

    def caption(self, prediction: Numbers) -> str:
        """The predicted value."""
        return f"{prediction[0]:.4g}"

    def tile_numbers(self, scores: Numbers) -> dict[str, Numbers]:
        """The value of each tile."""
        return {"value": self.predicted(scores)[:, 0]}

    def truth(self, label: Any, data: Data) -> Row:
        """The value."""
        return {"value": float(label[0])}

    def judged(self, predictions: Numbers, part: Part) -> dict[str, float]:
        """Compute errors and correlations."""
        return regression.merits(part.labels[:, 0], predictions[:, 0])

    def write(
        self, folder: Path, repeats: Sequence[Numbers], part: Part, reference: None
    ) -> dict[str, Any]:
        """Draw predicted against true values."""
        predictions = np.mean([each[:, 0] for each in repeats], axis=0)
        regression.write(folder, part.labels[:, 0], predictions)
        return {}


def scale_of(part: Part) -> tuple[float, float]:
    """The mean and standard deviation of the values of the training set.

    Raises:
        SourceError: All values are equal.
    """
    mean, deviation = float(part.labels.mean()), float(part.labels.std())
    if not deviation > 0:
        raise SourceError(
            f"the {len(part.labels)} {part.ITEMS} of split 'train' all have value {mean:g}, expected different values. "
            f"Use other splits, or more {part.ITEMS}."
        )
    return mean, deviation

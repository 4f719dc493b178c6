"""`--target multilabel`: several labels of a bag or an image, each 0, 1 or unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy.special import expit

from tfbig.cli.data import target_columns
from tfbig.cli.data.run_data import Data
from tfbig.cli.tasks.target import Numbers, Part, Predict, Row, Target
from tfbig.mil.target_losses import LabelCrossEntropy
from tfbig.mil.target_metrics import LabelAUC, mean_auc
from tfbig.results import classification


@dataclass(frozen=True)
class LabelTarget(Target):
    """Several labels, learned by the binary cross-entropy of those known; a prediction is the probability of each."""

    curves = MappingProxyType({"loss": "binary cross-entropy", "auc": "mean AUC"})
    names: tuple[str, ...]

    @property
    def num_outputs(self) -> int:
        """Number of labels."""
        return len(self.names)

    def labels(self, part: Part, data: Data) -> Numbers:
        """The labels and the number of the item, `[n, labels + 1]`."""
        return np.column_stack([part.labels, np.arange(len(part.labels))])

    def loss(self) -> Any:
        """The cross-entropy of known labels."""
        return LabelCrossEntropy()

    def metrics(self, data: Data) -> list[Any]:
        """The mean area under the curve."""
        most = max(len(part.labels) for part in (data.train, data.val))
        return [LabelAUC(most, self.num_outputs)]

    def counts(self, part: Part) -> str:
        """Count how many have each label, of those of which it is known."""
        known = (part.labels != target_columns.UNKNOWN).sum(0)
        return ", ".join(
            f"{name} {ones} of {number}"
            for name, ones, number in zip(self.names, (part.labels == 1).sum(0), known, strict=True)
        )

    def predicted(self, logits: Numbers) -> Numbers:
        """Probabilities of the labels."""
        shares: Numbers = expit(np.asarray(logits, np.float64))
        return shares

    def columns(self, prediction: Numbers) -> Row:
        """The probability of each label."""
        return {
            f"probability_{name}": float(share)
            for name, share in zip(self.names, prediction, strict=True)
        }

    def caption(self, prediction: Numbers) -> str:
        """The probability of each label."""
        pairs = zip(self.names, prediction, strict=True)
        return ", ".join(f"{name} {share:.1%}" for name, share in pairs)

    def tile_numbers(self, scores: Numbers) -> dict[str, Numbers]:
        """The probability of each label."""
        shares = self.predicted(scores)
        return {f"probability_{name}": shares[:, k] for k, name in enumerate(self.names)}

    def truth(self, label: Any, data: Data) -> Row:
        """The labels, empty if unknown."""
        return {
            f"{target_columns.LABEL}{name}": "" if value == target_columns.UNKNOWN else int(value)
            for name, value in zip(self.names, label, strict=True)
        }

    def judged(self, predictions: Numbers, part: Part) -> dict[str, float]:
        """The mean area under the curve."""
        return {"auc": mean_auc(part.labels, predictions)}

    def reference(self, predict: Predict, data: Data, run: str | None) -> list[float] | None:
        """The threshold of each label: of the evaluated run, or chosen on the validation set."""
        if run:
            return classification.thresholds_of_run(run, self.names)
        columns = classification.known_columns(self.names, data.val.labels, predict(data.val))
        return [classification.best_threshold(each.positive, each.scores) for each in columns]

    def write(
        self, folder: Path, repeats: Sequence[Numbers], part: Part, reference: Any
    ) -> dict[str, Any]:
        """Write the table of the labels, and their curves."""
        mean = np.mean(repeats, axis=0)
        columns = classification.known_columns(self.names, part.labels, mean)
        classification.write_columns(folder, columns, reference)
        return {}


def check_splits(data: Data) -> None:
    """Check that each label can be learned from the training set.

    Raises:
        SourceError: All items to train on of which a label is known have the same.
    """
    for name, labels in zip(data.classes, data.train.labels.T, strict=True):
        what = f"split 'train': column '{target_columns.LABEL}{name}'"
        target_columns.check_both(what, labels)

"""`--target class`: one class of a bag or an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import keras
import numpy as np

import tfbig
from tfbig.cli.data.run_data import Data
from tfbig.cli.tasks import class_scores
from tfbig.cli.tasks.target import Numbers, Part, Predict, Row, Target
from tfbig.results import classification, figures


@dataclass(frozen=True)
class ClassTarget(Target):
    """A class, learned by cross-entropy; a prediction is the probability of each."""

    curves = MappingProxyType({"loss": "loss", "accuracy": "accuracy"})
    classes: tuple[str, ...]

    @property
    def num_outputs(self) -> int:
        """Number of classes."""
        return len(self.classes)

    def loss(self) -> Any:
        """The cross-entropy."""
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def metrics(self, data: Data) -> list[Any]:
        """Accuracy and kappa."""
        return ["accuracy", tfbig.metrics.QuadraticWeightedKappa(self.num_outputs)]

    def counts(self, part: Part) -> str:
        """Count the bags or images of each class."""
        counts = np.bincount(part.labels, minlength=len(self.classes))
        return ", ".join(f"{n} {name}" for n, name in zip(counts, self.classes, strict=True))

    def predicted(self, logits: Numbers) -> Numbers:
        """Probabilities of the classes."""
        return class_scores.softmax(logits)

    def columns(self, prediction: Numbers) -> Row:
        """The most probable class, and all probabilities."""
        return class_scores.columns(self.classes, prediction)

    def caption(self, prediction: Numbers) -> str:
        """The most probable class and its probability."""
        return f"{self.classes[int(prediction.argmax())]} {prediction.max():.1%}"

    def tile_numbers(self, scores: Numbers) -> dict[str, Numbers]:
        """The probability of each class."""
        shares = class_scores.softmax(scores)
        return {f"probability_{name}": shares[:, k] for k, name in enumerate(self.classes)}

    def tile_classes(self, scores: Numbers) -> tuple[Numbers, Sequence[str]]:
        """The most probable class of each tile."""
        return scores.argmax(1), self.classes

    def truth(self, label: Any, data: Data) -> Row:
        """The name of a class."""
        return {"label": self.classes[int(label)]}

    def judged(self, predictions: Numbers, part: Part) -> dict[str, float]:
        """Compute accuracy, kappa and the area under the curve."""
        scores = class_scores.scores(part.labels, predictions, self.num_outputs)
        return {name: scores[name] for name in ("accuracy", "qwk", "auc")}

    def reference(self, predict: Predict, data: Data, run: str | None) -> list[float] | None:
        """The threshold of each class: of the evaluated run, or chosen on the validation set."""
        if run:
            return classification.thresholds_of_run(run, self.classes)
        return classification.best_thresholds(data.val.labels, predict(data.val))

    def write(
        self, folder: Path, repeats: Sequence[Numbers], part: Part, reference: Any
    ) -> dict[str, Any]:
        """Write the table of the classes, their curves and the confusion matrix, which is returned."""
        counts = np.sum(
            [
                class_scores.scores(part.labels, each, self.num_outputs)["confusion"]
                for each in repeats
            ],
            axis=0,
        )
        title = f"{len(part.labels)} test {part.ITEMS}" + (
            f" x {len(repeats)}" if len(repeats) > 1 else ""
        )
        figures.confusion(folder / "confusion.png", counts, self.classes, title)
        mean = np.mean(repeats, axis=0)
        classification.write(folder, part.labels, mean, self.classes, reference)
        return {"confusion": counts.tolist()}

    def first_drawn(self, part: Part, predictions: Numbers) -> Sequence[int]:
        """Choose those of the last class, if there are any."""
        last = len(self.classes) - 1
        chosen = [number for number, label in enumerate(part.labels) if label == last]
        return chosen or range(len(part.labels))

"""`--target survival`: the time of an event, of which a case may be censored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from tfbig import SourceError
from tfbig import survival as survival_analysis
from tfbig.cli.data.run_data import Data
from tfbig.cli.paths import FlagError
from tfbig.cli.tasks.target import Numbers, Part, Predict, Row, Target
from tfbig.mil.target_losses import CoxLoss, DiscreteTimeLoss, Survival
from tfbig.mil.target_metrics import Concordance, risks_of
from tfbig.results import run_folder, survival
from tfbig.sources.table import SPLITS

TIME, EVENT, CASE = range(3)
"""Columns of the labels of a split."""
MEDIAN = "median_risk"
"""Metric of a run: the median risk of its training cases."""


@dataclass(frozen=True)
class SurvivalTarget(Target):
    """Risk of an event: a prediction is the risk, a higher one is worse, and the chance of no event up to each cut.

    `cuts` are the times that separate the bins; None for Cox's model, which predicts no chances. `alpha` says how
    far censored cases count less.
    """

    curves = MappingProxyType({"loss": "loss", "concordance": "concordance"})
    cuts: tuple[float, ...] | None
    alpha: float = 0.0

    @property
    def num_outputs(self) -> int:
        """Number of bins, or 1."""
        return 1 if self.cuts is None else len(self.cuts) + 1

    def labels(self, part: Part, data: Data) -> Numbers:
        """The columns of `Survival`; ranks are those among all times of the run."""
        times = part.labels[:, TIME]
        every = np.unique(np.concatenate([getattr(data, s).labels[:, TIME] for s in SPLITS]))
        labels = np.zeros((len(times), len(Survival)), np.int64)
        if self.cuts is not None:
            labels[:, Survival.BIN] = survival_analysis.TimeBins(self.cuts).bins_of(times)
        labels[:, Survival.EVENT] = part.labels[:, EVENT]
        labels[:, Survival.RANK] = np.searchsorted(every, times)
        labels[:, Survival.CASE] = part.labels[:, CASE]
        return labels

    def loss(self) -> Any:
        """The loss of hazards, or of Cox's model."""
        return CoxLoss() if self.cuts is None else DiscreteTimeLoss(self.alpha)

    def metrics(self, data: Data) -> list[Any]:
        """The concordance."""
        return [Concordance(len(data.cases))]

    def counts(self, part: Part) -> str:
        """Count the bags or images with an event, and the others."""
        events = int(part.labels[:, EVENT].sum())
        cases = len(np.unique(part.labels[:, CASE]))
        return f"{events} with an event, {len(part.labels) - events} censored, of {cases} cases"

    def predicted(self, logits: Numbers) -> Numbers:
        """The risk, and the chances of no event."""
        logits = np.asarray(logits, np.float64)
        risks = np.asarray(risks_of(logits))[:, None]
        if self.cuts is None:
            return risks
        chances = np.asarray(survival_analysis.survival_function(logits))
        return np.concatenate([risks, chances[:, :-1]], axis=1)

    def columns(self, prediction: Numbers) -> Row:
        """The risk, and the chance of no event up to each cut."""
        chances = zip(self.cuts or (), prediction[1:], strict=True)
        return {
            "risk": float(prediction[0]),
            **{f"survival_{cut:.6g}": float(chance) for cut, chance in chances},
        }

    def caption(self, prediction: Numbers) -> str:
        """The risk."""
        return f"risk {prediction[0]:.3g}"

    def tile_numbers(self, scores: Numbers) -> dict[str, Numbers]:
        """The risk of each tile."""
        return {"risk": self.predicted(scores)[:, 0]}

    def truth(self, label: Any, data: Data) -> Row:
        """The case, the time and the event."""
        case = data.cases[int(label[CASE])]
        return {"case": case, "time": float(label[TIME]), "event": int(label[EVENT])}

    def judged(self, predictions: Numbers, part: Part) -> dict[str, float]:
        """Compute concordance with its interval, and areas under the curve, of the mean risks of cases."""
        return survival.merits(*by_case(predictions[:, 0], part))

    def reference(self, predict: Predict, data: Data, run: str | None) -> float:
        """The median risk of the training cases, in the evaluated run or of the model.

        Raises:
            SourceError: The evaluated run has none.
        """
        if not run:
            risks, _, _ = by_case(predict(data.train)[:, 0], data.train)
            return float(np.median(risks))
        metrics = run_folder.read_json(Path(run) / run_folder.METRICS)
        if MEDIAN not in metrics:
            raise SourceError(
                f"{run}: has no {MEDIAN} in {run_folder.METRICS}, expected that of a finished run. Finish it with "
                "tfbig train --resume."
            )
        return float(metrics[MEDIAN])

    def write(
        self, folder: Path, repeats: Sequence[Numbers], part: Part, reference: float
    ) -> dict[str, Any]:
        """Write the curves of cases above and below the median risk, and tables; return what they were made with."""
        risks = np.mean([each[:, 0] for each in repeats], axis=0)
        p_value = survival.write(folder, *by_case(risks, part), reference)
        found = {} if np.isnan(p_value) else {"test_log_rank_p": p_value}
        return {MEDIAN: reference, **found}


def by_case(risks: Numbers, part: Part) -> tuple[Numbers, Numbers, Numbers]:
    """Average the risks `[n]` of the bags or images of each case: risks, times and events, each `[cases]`."""
    _, first, place = np.unique(part.labels[:, CASE], return_index=True, return_inverse=True)
    means = np.bincount(place, risks) / np.bincount(place)
    return means, part.labels[first, TIME], part.labels[first, EVENT].astype(int)


def cuts_of(part: Part, num_bins: int) -> tuple[float, ...]:
    """Find the times that cut the events of training cases into equal parts.

    Raises:
        SourceError: There are too few events, or at too few times.
    """
    _, times, events = by_case(np.zeros(len(part.labels)), part)
    try:
        return survival_analysis.TimeBins.of_events(times, events, num_bins).cuts
    except ValueError as error:
        at = np.unique(times[events > 0])
        raise FlagError(
            f"--time-bins {num_bins}: the {int(events.sum())} events of {len(times)} training cases are at {len(at)} "
            "different times, expected enough for an event in each bin. Lower --time-bins, or give --time-cuts."
        ) from error


def check_splits(data: Data, validates: bool) -> None:
    """Check that each split to train with has what its loss and its metric need.

    With `validates`, validation needs an event too, as Cox's loss and concordance do.

    Raises:
        SourceError: The training set, or the validation set, has no event, or the times of the former are equal.
    """
    for split in ("train", "val") if validates else ("train",):
        part = getattr(data, split)
        labels = part.labels
        number = f"the {len(labels)} {part.ITEMS} of split '{split}'"
        more = f"Use other splits, or more {part.ITEMS}."
        if not labels[:, EVENT].any():
            raise SourceError(f"{number} have no event, expected at least one. {more}")
        if split == "train" and len(np.unique(labels[:, TIME])) == 1:
            raise SourceError(
                f"{number} all have time {labels[0, TIME]:g}, expected different times. {more}"
            )

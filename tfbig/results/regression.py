"""Figures of merit and the figure of predicted numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from scipy import stats

from tfbig.results import figures
from tfbig.results.geojson import COLOURS, hex_of

FIGURE: Final = "regression.png"

Numbers = npt.NDArray[Any]


def merits(values: Numbers, predicted: Numbers) -> dict[str, float]:
    """Compute figures of merit of predicted values `[n]`, given true values `[n]`.

    These are the mean absolute error, root of the mean squared error, share of the variance that is explained (R2),
    and Spearman's and Pearson's correlation. R2 is NaN if all true values are equal, correlations also if all
    predicted ones are.
    """
    error = predicted - values
    spread = float(((values - values.mean()) ** 2).sum())
    varies = spread > 0 and bool((predicted != predicted[0]).any())
    return {
        "mae": float(np.abs(error).mean()),
        "rmse": float(np.sqrt((error**2).mean())),
        "r2": 1 - float((error**2).sum()) / spread if spread > 0 else math.nan,
        "spearman": float(stats.spearmanr(values, predicted).statistic) if varies else math.nan,
        "pearson": float(stats.pearsonr(values, predicted).statistic) if varies else math.nan,
    }


def write(folder: str | Path, values: Numbers, predicted: Numbers) -> None:
    """Draw predicted against true values, both `[n]`, into a run folder."""
    found = merits(values, predicted)
    figure = Figure(figsize=(5.4, 5.4), layout="constrained")
    axes = figure.subplots()
    axes.scatter(values, predicted, s=18, alpha=0.7, color=hex_of(COLOURS[0]), linewidths=0)
    low, high = (f(np.concatenate([values, predicted])) for f in (np.min, np.max))
    margin = 0.05 * (high - low) or 1.0
    ends = low - margin, high + margin
    axes.plot(ends, ends, color="grey", linewidth=0.8, linestyle="--", label="predicted = true")
    axes.set(xlim=ends, ylim=ends, aspect="equal", xlabel="true value", ylabel="predicted value")
    names = {"mae": "mean absolute error", "r2": "R2", "spearman": "Spearman"}
    words = [f"{name} {found[key]:.3g}" for key, name in names.items() if found[key] == found[key]]
    axes.set_title(", ".join(words), fontsize="medium")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", fontsize="small")
    figures.save(figure, Path(folder) / FIGURE)

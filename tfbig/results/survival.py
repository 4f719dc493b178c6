"""Figures of merit, tables and curves of predicted risks of an event. A higher risk is worse."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tfbig import survival
from tfbig.results import figures, run_folder
from tfbig.results.geojson import COLOURS, hex_of
from tfbig.units import counted

GROUPS: Final = "risk_groups.csv"
AREAS: Final = "survival_auc.csv"
CURVES: Final = "survival.png"
QUARTERS: Final = (0.25, 0.5, 0.75)
LEVEL: Final = 0.95
"""Level of confidence intervals and bands."""
_TICKS: Final = 6
_NAMES: Final = ("low risk", "high risk")

Numbers = npt.NDArray[Any]


def merits(risks: Numbers, times: Numbers, events: Numbers) -> dict[str, float]:
    """Compute figures of merit of risks, which are NaN if there is no event or no comparable pair.

    Risks, times and events are `[n]`, each event 0 or 1; a higher risk is worse. The figures are the concordance,
    the ends of its interval, and the area under the curve, as the mean of those at the quarters of the times of
    events.
    """
    if not events.any():
        return dict.fromkeys(
            ("concordance", "concordance_low", "concordance_high", "auc"), math.nan
        )
    low, high = survival.concordance_interval(risks, times, events, LEVEL)
    areas = [row["auc"] for row in _areas(risks, times, events) if row["auc"] != ""]
    return {
        "concordance": survival.concordance_index(risks, times, events),
        "concordance_low": low,
        "concordance_high": high,
        "auc": float(np.mean(areas)) if areas else math.nan,
    }


def write(
    folder: str | Path, risks: Numbers, times: Numbers, events: Numbers, threshold: float
) -> float:
    """Write the curves of two groups of cases, and the tables of both and of areas under the curve.

    Risks, times and events are `[n]`, each event 0 or 1; cases with a risk above the threshold are the group of
    high risk. The result is the p value of the log-rank test of both groups; NaN if it is not defined.
    """
    high = risks > threshold
    p_value = math.nan
    if events.any() and high.any() and not high.all():
        p_value = survival.log_rank_test(times, events, high).p_value
    run_folder.write_csv(Path(folder) / GROUPS, _groups(times, events, high))
    if events.any():
        run_folder.write_csv(Path(folder) / AREAS, _areas(risks, times, events))
    _draw(Path(folder) / CURVES, times, events, high, p_value)
    return p_value


def _groups(times: Numbers, events: Numbers, high: Numbers) -> list[dict[str, Any]]:
    """A row for each risk group: cases, events, and median time without an event, empty if it is not reached."""
    rows = []
    for name, chosen in zip(_NAMES, (~high, high), strict=True):
        median = math.inf
        if chosen.any():
            median = survival.kaplan_meier(times[chosen], events[chosen]).median
        rows.append(
            {
                "group": name,
                "cases": int(chosen.sum()),
                "events": int(events[chosen].sum()),
                "median_time": median if math.isfinite(median) else "",
            }
        )
    return rows


def _areas(risks: Numbers, times: Numbers, events: Numbers) -> list[dict[str, Any]]:
    """The area under the curve at each quarter of the times of events; empty if it is not defined."""
    at = np.quantile(times[events > 0], QUARTERS)
    areas = survival.time_dependent_auc(risks, times, events, at)
    return [
        {
            "time": float(time),
            "events_before": int((events[times <= time] > 0).sum()),
            "cases_beyond": int((times > time).sum()),
            "auc": "" if math.isnan(area) else float(area),
        }
        for time, area in zip(at, areas, strict=True)
    ]


def _draw(path: Path, times: Numbers, events: Numbers, high: Numbers, p_value: float) -> None:
    """Draw the survival curve of each group with its band, and below it the numbers at risk."""
    figure = Figure(figsize=(7, 5.4), layout="constrained")
    curves, table = figure.subplots(2, 1, sharex=True, height_ratios=(5, 1))
    end = float(times.max()) or 1.0
    for chosen, name, colour in zip((~high, high), _NAMES, COLOURS[:2], strict=True):
        if chosen.any():
            label = (
                f"{name}: {counted(int(chosen.sum()), 'case')}, {int(events[chosen].sum())} events"
            )
            _draw_curve(curves, times[chosen], events[chosen], hex_of(colour), label)
    p_text = "" if math.isnan(p_value) else f", log-rank p {_p_text(p_value)}"
    curves.set(
        title=f"cases above and below the median risk of training{p_text}",
        xlabel="time, in the unit of the table",
        ylabel="share without an event",
        ylim=(-0.02, 1.05),
        xlim=(0, 1.03 * end),
    )
    curves.title.set_fontsize("medium")
    curves.grid(alpha=0.3)
    figure.legend(
        loc="outside upper center", fontsize="small", ncols=2, title="bands: 95 % confidence"
    )
    curves.tick_params(labelbottom=True)
    _write_numbers(table, curves, times, high)
    figures.save(figure, path)


def _draw_curve(axes: Axes, times: Numbers, events: Numbers, colour: str, label: str) -> None:
    curve = survival.kaplan_meier(times, events, LEVEL)
    axes.step(curve.times, curve.survival, where="post", color=colour, label=label)
    defined = np.isfinite(curve.low) & np.isfinite(curve.high)
    axes.fill_between(
        curve.times,
        np.where(defined, curve.low, curve.survival),
        np.where(defined, curve.high, curve.survival),
        step="post",
        color=colour,
        alpha=0.18,
        linewidth=0,
    )
    censored = np.unique(times[events == 0])
    places = np.searchsorted(curve.times, censored, "right") - 1
    axes.plot(censored, curve.survival[places], "|", color=colour, markersize=7)


def _write_numbers(table: Axes, curves: Axes, times: Numbers, high: Numbers) -> None:
    """Write the numbers at risk of each group at the ticks of the time."""
    curves.locator_params(axis="x", nbins=_TICKS)
    last = curves.get_xlim()[1]
    ticks = [tick for tick in curves.get_xticks() if 0 <= tick <= last]
    for row, (chosen, colour) in enumerate(zip((~high, high), COLOURS[:2], strict=True)):
        for tick in ticks:
            number = int((times[chosen] >= tick).sum())
            table.text(tick, 1 - row, f"{number}", ha="center", va="center", color=hex_of(colour))
    table.set_ylim(-0.6, 1.6)
    table.set_title("numbers at risk", fontsize="small")
    table.set_xticks(ticks)
    table.set_yticks((1, 0), _NAMES)
    table.tick_params(length=0, labelbottom=False, pad=14)
    for side in table.spines.values():
        side.set_visible(False)


def _p_text(p_value: float) -> str:
    return "< 0.0001" if p_value < 1e-4 else f"= {p_value:.2g}"

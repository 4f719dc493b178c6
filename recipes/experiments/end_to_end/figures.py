"""What the lines of finished runs say: a table with intervals, curves over time, and the difference that is visible."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from recipes.experiments.end_to_end.plan import (
    FINAL_SEEDS,
    TASKS,
    WAYS,
    Line,
    chosen,
    is_perfect,
    is_same_choice,
    pairs,
)

LEVEL, POWER, GOOD = 0.95, 0.8, 0.9
Row = dict[str, Any]
Key = tuple[str, str, bool]
"""Task, way, and whether it was trained with random stains."""


# ------------------------------------------------------------------------------------- statistics


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean, and half the width of its 95 % confidence interval by Student's t over the seeds."""
    if len(values) < 2:
        return statistics.fmean(values), float("nan")
    quantile = stats.t.ppf((1 + LEVEL) / 2, len(values) - 1)
    return statistics.fmean(values), float(quantile * stats.sem(values))


def pooled_deviation(groups: Iterable[Sequence[float]]) -> float:
    """Return the standard deviation within groups, each around its own mean."""
    several = [group for group in groups if len(group) > 1]
    squares = sum(statistics.variance(group) * (len(group) - 1) for group in several)
    return float(np.sqrt(squares / sum(len(group) - 1 for group in several)))


def detectable(deviation: float, seeds: int) -> float:
    """Return the difference of two ways that a two-sided t test of two samples finds with a power of 80 %.

    Args:
        deviation: Standard deviation of the AUC over seeds, the same for both ways.
        seeds: Number of seeds of each way.
    """
    freedom = 2 * seeds - 2
    critical = stats.t.ppf((1 + LEVEL) / 2, freedom)
    low, high = 0.0, 10.0  # of the distance of the means, in standard errors
    for _ in range(60):
        middle = (low + high) / 2
        power = stats.nct.sf(critical, freedom, middle) + stats.nct.cdf(-critical, freedom, middle)
        low, high = (low, middle) if power > POWER else (middle, high)
    return float(high * deviation * np.sqrt(2 / seeds))


# ------------------------------------------------------------------------------------------ rows


def grouped(lines: Iterable[Line]) -> dict[Key, list[Line]]:
    """Return the lines of each task and way, in the order of the plan."""
    found: dict[Key, list[Line]] = defaultdict(list)
    for line in lines:
        found[line["task"], line["way"], line["augmented"]].append(line)
    order = sorted(found, key=lambda key: (TASKS.index(key[0]), key[2], WAYS.index(key[1])))
    return {key: found[key] for key in order}


def equal_epochs(groups: dict[Key, list[Line]], task: str) -> int:
    """Return the most epochs, a power of two, that all runs of a task have had that did not end as perfect."""
    runs = [line["looks"] for key, lines in groups.items() if key[0] == task for line in lines]
    full = [looks for looks in runs if not is_perfect(looks)] or runs
    return 2 ** int(np.log2(max(1.0, min(looks[-1]["epochs"] for looks in full))))


def at_epoch(line: Line, epoch: int) -> float:
    """Return the AUC on the validation images after an epoch; that of a run that ended as perfect before is 1."""
    found = (look["auc"] for look in line["looks"] if look["epochs"] == epoch)
    return next(found, 1.0 if is_perfect(line["looks"]) else float("nan"))


def seconds_to_good(line: Line) -> float | None:
    """Return the processor seconds of training until the AUC on validation images is 0.9, or None."""
    return next((look["seconds"] for look in line["looks"] if look["auc"] >= GOOD), None)


def row(key: Key, lines: Sequence[Line], epoch: int) -> Row:
    """Return the figures of a task and way: AUCs with intervals, at equal time and at equal epochs."""
    figures: Row = dict(zip(("task", "way", "augmented"), key, strict=True))
    figures |= {"seeds": len(lines), "epoch": epoch, **chosen_options(lines[0])}
    for name in ("test", "other_stain", "validation"):
        values = [line[name] for line in lines if name in line]
        figures[name] = interval(values) if values else None
    figures["at_epoch"] = interval([at_epoch(line, epoch) for line in lines])
    figures["epochs"] = statistics.fmean(line["looks"][-1]["epochs"] for line in lines)
    figures["seconds"] = statistics.fmean(line["looks"][-1]["seconds"] for line in lines)
    figures["to_good"] = [seconds_to_good(line) for line in lines]
    figures["pretraining"] = statistics.fmean(line.get("pretraining", 0.0) for line in lines)
    return figures


def chosen_options(line: Line) -> Row:
    """Return what the pilots chose."""
    return {name: line[name] for name in ("rate", "head", "encoder")}


def rows(lines: Iterable[Line]) -> list[Row]:
    """Return the figures of all tasks and ways."""
    groups = grouped(lines)
    return [row(key, group, equal_epochs(groups, key[0])) for key, group in groups.items()]


COLUMNS = (
    "task", "way", "rate, head", "seeds", "AUC, validation", "AUC, test", "AUC, other stain",
    "epochs", "seconds", "seconds to 0.9", "validation at equal epochs",
)  # fmt: skip


def cells(of: Row) -> list[str]:
    """Return the cells of a row of the table."""
    choice = ", ".join(filter(None, (f"{of['rate']:g}", of["head"], of["encoder"])))
    way = of["way"] + (", random stains" if of["augmented"] else "")
    before = f" + {of['pretraining']:.0f} before" if of["pretraining"] else ""
    return [
        *(of["task"], way, choice, str(of["seeds"])),
        *(with_interval(of[name]) for name in ("validation", "test", "other_stain")),
        *(f"{of['epochs']:.1f}", f"{of['seconds']:.0f}{before}", mean_or_share(of["to_good"])),
        f"{with_interval(of['at_epoch'])} after {of['epoch']}",
    ]


def mean_or_share(seconds: Sequence[float | None]) -> str:
    """Return the mean in words, or how many of the seeds have a value."""
    known = [each for each in seconds if each is not None]
    if len(known) < len(seconds):
        return f"{len(known)} of {len(seconds)} seeds" if known else "never"
    return f"{statistics.fmean(known):.0f}"


def with_interval(value: tuple[float, float] | None) -> str:
    """Return a mean and half of its interval in words."""
    if value is None:
        return "not tested"
    mean, half = value
    return f"{mean:.3f}" if np.isnan(half) else f"{mean:.3f} +- {half:.3f}"


def table(lines: Iterable[Line]) -> str:
    """Return a table in Markdown."""
    body = [list(COLUMNS), ["---"] * len(COLUMNS), *map(cells, rows(lines))]
    return "\n".join(f"| {' | '.join(line)} |" for line in body)


def differences(lines: Iterable[Line]) -> dict[Key, tuple[float, float]]:
    """Return how much better each way is on test images than fixed features of the same seed.

    Images and seeds are the same for all ways, so the interval is that of the differences, seed by seed.
    """
    scores = {
        key: {line["seed"]: line["test"] for line in group if "test" in line}
        for key, group in grouped(lines).items()
    }
    found = {}
    for (task, way, augmented), of_way in scores.items():
        frozen = scores.get((task, "frozen", augmented), {})
        pairs = [of_way[seed] - frozen[seed] for seed in of_way if seed in frozen]
        if way != "frozen" and pairs:
            found[task, way, augmented] = interval(pairs)
    return found


def power(pilots: Sequence[Line]) -> dict[str, float]:
    """Return the spread of the pilots with the chosen options, and the difference that the final runs could show.

    The spread is that of the AUC on validation images between seeds, pooled over ways, for each task.
    """
    found = {}
    for task in TASKS:
        groups = []
        for _, way in pairs([task]):
            best = chosen(pilots, task, way)
            same = [line for line in pilots if best and is_same_choice(line, best)]
            groups.append([line["validation"] for line in same])
        if any(len(group) > 1 for group in groups):
            found[task] = detectable(pooled_deviation(groups), len(FINAL_SEEDS))
    return found


# ---------------------------------------------------------------------------------------- picture


def curve(lines: Sequence[Line]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return seconds `[n]`, and the AUC of every line at these, `[lines, n]`.

    Between two looks it is on a straight line, and after the last one, if the run ended as perfect, it stays.
    """
    end = max(line["looks"][-1]["seconds"] for line in lines)
    begin = max(line["looks"][0]["seconds"] for line in lines)
    seconds = np.linspace(begin, end, 50)
    values = [np.interp(seconds, column(line, "seconds"), column(line, "auc")) for line in lines]
    return seconds, np.stack(values)


def column(line: Line, name: str) -> list[float]:
    """Return a figure of all looks of a run."""
    return [look[name] for look in line["looks"]]


def draw(lines: Sequence[Line], path: Path) -> None:
    """Plot the AUC on validation images against processor time: the mean over the seeds, and their range."""
    from matplotlib.figure import Figure

    groups = {key: group for key, group in grouped(lines).items() if not key[2]}
    tasks = [task for task in TASKS if any(key[0] == task for key in groups)]
    figure = Figure(figsize=(3.4 * len(tasks), 3.6), layout="constrained")
    axes = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
    for (task, way, _), group in groups.items():
        axis, colour = axes[tasks.index(task)], f"C{WAYS.index(way)}"
        seconds, values = curve(group)
        before = statistics.fmean(line.get("pretraining", 0.0) for line in group)
        label = f"{way}, after {before:.0f} s of pretraining" if before else way
        axis.plot(seconds, values.mean(axis=0), color=colour, label=label)
        axis.fill_between(seconds, values.min(0), values.max(0), color=colour, alpha=0.2, lw=0)
    for axis, task in zip(axes, tasks, strict=True):
        axis.axhline(0.5, color="grey", linewidth=0.8, linestyle=":")
        axis.set(title=task, xlabel="processor time of one thread (s)", ylim=(0.35, 1.02))
        axis.grid(alpha=0.3)
        axis.legend(loc="lower right", fontsize=7)
    axes[0].set_ylabel("AUC on validation images")
    figure.savefig(path, dpi=110)

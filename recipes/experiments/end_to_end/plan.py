"""What there is to train: one value for each run, the runs of each phase, and the file of those that are finished."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

SLIDE_WAYS = ("skipped", "computed")
WAYS = ("frozen", "sampling", "tiles", "whole", *SLIDE_WAYS)
SLIDES = "slides"
"""The task relation on slides, of which a tenth is tissue; the ways differ in what is computed of the others."""
TASKS = ("needle", "texture", "relation", "count", SLIDES)
RATES = (1e-3, 3e-4, 3e-3)
ENCODERS = ("views", "pictures", "annotations")
HEADS = ("attention", "mean")
PILOT_SEEDS, FINAL_SEEDS = (100, 101), (0, 1, 2, 3, 4)
AUGMENTED = ("needle", "texture")
"""Tasks that are also trained with random stains."""

PERFECT = 3
"""A run ends after so many perfect evaluations, one after the other."""

Line = dict[str, Any]
Look = dict[str, float]
"""What was found in an evaluation: seconds, steps, epochs, and AUC on the validation images."""


@dataclass(frozen=True)
class Setting:
    """Sizes and budgets, the same for all tasks.

    Args:
        train: Number of images to train on.
        validation: Number of images that choose among rates, heads, encoders, and weights of a run.
        test: Number of images of the test.
        seconds: Budget of a run that trains its encoder, in processor seconds of one thread.
        head_seconds: The same for a head on fixed features, which are computed once.
        pretraining: The same for an encoder before it is fixed.
        slides: Number of slides to train on, and as many to test with; half as many choose.
        slide_seconds: Budget of a run on slides.
    """

    train: int = 1024
    validation: int = 256
    test: int = 1000
    seconds: float = 400.0
    head_seconds: float = 60.0
    pretraining: float = 400.0
    slides: int = 64
    slide_seconds: float = 900.0

    @property
    def name(self) -> str:
        """Return a name for folders."""
        return "-".join(f"{value:g}" for value in asdict(self).values())

    def budget(self, way: str) -> float:
        """Return the budget of a way in processor seconds."""
        special = {"frozen": self.head_seconds, **dict.fromkeys(SLIDE_WAYS, self.slide_seconds)}
        return special.get(way, self.seconds)


@dataclass(frozen=True)
class Run:
    """One training.

    Args:
        phase: `pilot` or `final`.
        task: One of `TASKS`.
        way: One of `WAYS`.
        rate: Learning rate of Adam.
        seed: Of images, weights and order.
        head: `attention` or `mean`.
        encoder: Of a frozen run: trained by `views` without labels, by the labels of other `pictures`, or by
            `annotations` of single tiles; else empty.
        augmented: Whether training images have random stains.
    """

    phase: str
    task: str
    way: str
    rate: float
    seed: int
    head: str
    encoder: str = ""
    augmented: bool = False

    @property
    def name(self) -> str:
        """Return a name for files."""
        return "-".join(str(value) for value in asdict(self).values() if value != "")


def run_of(line: Line) -> Run:
    """Return the run of a line."""
    return Run(**{each.name: line[each.name] for each in fields(Run)})


# ------------------------------------------------------------------------------------------ plan


def pairs(tasks: Sequence[str] = TASKS, ways: Sequence[str] = WAYS) -> list[tuple[str, str]]:
    """Return the tasks and the ways that they have: slides, which are not cut into tiles, have two of their own."""
    return [
        (task, way) for task in tasks for way in ways if (way in SLIDE_WAYS) == (task == SLIDES)
    ]


def options(task: str, way: str) -> Iterator[dict[str, Any]]:
    """Yield heads, encoders and rates among which the pilots of a way choose.

    The head of a way that trains its encoder follows from the task, to save time. Fixed features have every choice.
    """
    given = "mean" if task == "count" else "attention"
    frozen = way == "frozen"
    for head in HEADS if frozen else (given,):
        for encoder in ENCODERS if frozen else ("",):
            for rate in RATES:
                yield {"head": head, "encoder": encoder, "rate": rate}


def pilots(tasks: Sequence[str] = TASKS, ways: Sequence[str] = WAYS) -> list[Run]:
    """Return the runs that choose, one seed after the other, and of a seed one rate after the other.

    Slides of which everything is computed have none: their steps are those of `skipped`, so that its choice is theirs.
    """
    runs = [
        Run(phase="pilot", task=task, way=way, seed=seed, **given)
        for seed in PILOT_SEEDS
        for task, way in pairs(tasks, ways)
        if way != "computed"
        for given in options(task, way)
    ]
    return sorted(runs, key=lambda run: (PILOT_SEEDS.index(run.seed), RATES.index(run.rate)))


def chosen(lines: Sequence[Line], task: str, way: str) -> Run | None:
    """Return the pilot with the best mean AUC on validation images over all seeds, or None if one is missing.

    Of several with the same AUC, it is the one that ended first.
    """
    if way == "computed":
        same = chosen(lines, task, "skipped")
        return same and replace(same, way=way)
    found: dict[Run, dict[int, tuple[float, float]]] = defaultdict(dict)
    for line in lines:
        run = run_of(line)
        if (run.phase, run.task, run.way) == ("pilot", task, way):
            found[replace(run, seed=0)][run.seed] = (
                line["validation"],
                -line["looks"][-1]["seconds"],
            )
    wanted = {replace(run, seed=0) for run in pilots([task], [way])}
    if any(set(found[run]) != set(PILOT_SEEDS) for run in wanted):
        return None

    def merit(run: Run) -> list[float]:
        return [statistics.mean(values) for values in zip(*found[run].values(), strict=True)]

    return replace(max(sorted(wanted, key=str), key=merit), seed=PILOT_SEEDS[0])


def is_same_choice(line: Line, run: Run) -> bool:
    """Say whether a line is of a run, or of the same with another seed."""
    return replace(run_of(line), seed=run.seed) == run


def finals(
    lines: Sequence[Line], tasks: Sequence[str] = TASKS, ways: Sequence[str] = WAYS
) -> list[Run]:
    """Return the final runs of all tasks and ways whose pilots are finished, one seed after the other."""
    best = {(task, way): chosen(lines, task, way) for task, way in pairs(tasks, ways)}
    return [
        replace(run, phase="final", seed=seed, augmented=augmented)
        for augmented in (False, True)
        for seed in FINAL_SEEDS
        for (task, _), run in best.items()
        if run and (task in AUGMENTED or not augmented)
    ]


def is_perfect(looks: Sequence[Look]) -> bool:
    """Say whether the AUC of the last three looks is 1."""
    return len(looks) >= PERFECT and all(look["auc"] == 1 for look in looks[-PERFECT:])


# ------------------------------------------------------------------------------------------ file


def read(path: Path) -> list[Line]:
    """Return the lines of a file, those without a newline left out, since they are not complete."""
    if not path.exists():
        return []
    complete = [text for text in path.read_text().splitlines(keepends=True) if text.endswith("\n")]
    return [json.loads(text) for text in complete]


def append(path: Path, line: Line) -> None:
    """Add a line to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def remaining(runs: Iterable[Run], lines: Iterable[Line]) -> list[Run]:
    """Return the runs that no line has."""
    done = {run_of(line) for line in lines}
    return [run for run in runs if run not in done]

"""Columns of a table that say what is to be predicted: a class, survival, a number, several labels."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tfbig import SourceError
from tfbig.cli.data import splits
from tfbig.cli.data.splits import Row
from tfbig.cli.settings.tasks import ImageSettings, MILSettings
from tfbig.sources import number_text

UNKNOWN = -1
"""Label of an empty cell of `--target multilabel`."""
_A_TIME = "a number from 0, such as the months to the event or to the last visit"
LABEL = "label_"
"""Beginning of the columns of `--target multilabel`."""


@dataclass(frozen=True)
class Labelled:
    """Rows of a table, with what is to be predicted.

    Attributes:
        rows: Rows with `label`: the number of a class, or a tuple of numbers; and `stratum`, by which rows are split.
        classes: Names of the classes, or of several labels; else empty.
        cases: Names of the cases that `label` of survival numbers; else empty.
    """

    rows: list[Row]
    classes: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()


class TargetColumns(ABC):
    """Reader of the columns of a target.

    Args:
        settings: Settings of the run.

    Attributes:
        names: Columns that a table must have.
        whole: Whether labels are class numbers.
    """

    names: ClassVar[tuple[str, ...]]
    whole: ClassVar[bool] = False

    def __init__(self, settings: Any) -> None:
        self.settings = settings
        self.learns = not settings.test_only

    @abstractmethod
    def labelled(self, rows: Sequence[Row], path: Path, key: str) -> Labelled:
        """Return the rows with what is to be predicted.

        Args:
            rows: Rows of `splits.read_table`.
            path: Path of the table, for errors.
            key: Column that names a bag, an image or a slide.

        Raises:
            SourceError: A cell is wrong, or nothing can be learned from the column.
        """

    def shown(self, row: Row, classes: Sequence[str]) -> dict[str, str]:
        """Return the columns of a row as the table of a run shows them."""
        return {name: row[name] for name in self.names}


class ClassColumn(TargetColumns):
    """The column `label` of `--target class`: names, or numbers from 0."""

    names = ("label",)
    whole = True

    def labelled(self, rows: Sequence[Row], path: Path, key: str) -> Labelled:
        """Return the rows with the number of their class."""
        count = getattr(self.settings, "num_classes", None) if key != "slide_id" else None
        return Labelled(*splits.with_classes(rows, path, self.settings.class_names, count))

    def shown(self, row: Row, classes: Sequence[str]) -> dict[str, str]:
        """Return the name of the class of a row."""
        return {"label": classes[row["label"]]}


class SurvivalColumns(TargetColumns):
    """The columns `time` and `event` of `--target survival`; slides of a case have the same."""

    names = ("time", "event")

    def labelled(self, rows: Sequence[Row], path: Path, key: str) -> Labelled:
        """Return the rows with the tuple of time, event and number of the case."""
        times = _numbers(rows, "time", _A_TIME, least=0)
        observed = [(time, _event(row)) for time, row in zip(times, rows, strict=True)]
        if self.learns:
            _check_observations(observed, path)
        numbers: dict[tuple[str, str], int] = {}
        first: dict[int, int] = {}
        labelled = []
        for place, (row, (time, event)) in enumerate(zip(rows, observed, strict=True)):
            case = splits.case_of(row)
            number = numbers.setdefault(
                ("case", case) if case else ("item", row[key]), len(numbers)
            )
            before = first.setdefault(number, place)
            if observed[before] != (time, event):
                _raise_different(case or row[key], row, rows[before])
            labelled.append({**row, "label": (time, event, number), "stratum": event})
        return Labelled(labelled, cases=tuple(name for _, name in numbers))


class ValueColumn(TargetColumns):
    """The column `value` of `--target regression`: a number for each bag or image."""

    names = ("value",)

    def labelled(self, rows: Sequence[Row], path: Path, key: str) -> Labelled:
        """Return the rows with the tuple of their value, split by the quarter of it."""
        values = np.array(_numbers(rows, "value", "a finite number"))
        if self.learns and (values == values[0]).all():
            raise SourceError(
                f"{path}: column 'value' is {values[0]:g} in all {len(rows)} lines, expected different numbers. Check "
                "the table."
            )
        quarters = np.searchsorted(np.quantile(values, (0.25, 0.5, 0.75)), values, "right")
        return Labelled(
            [
                {**row, "label": (float(value),), "stratum": int(quarter)}
                for row, value, quarter in zip(rows, values, quarters, strict=True)
            ]
        )


class LabelColumns(TargetColumns):
    """The columns `label_NAME` of `--target multilabel`: 0, 1 or nothing for each bag or image and name."""

    names = ()

    def labelled(self, rows: Sequence[Row], path: Path, key: str) -> Labelled:
        """Return the rows with the tuple of their labels, `UNKNOWN` for empty cells."""
        names = self._label_names(rows[0], path)
        labels = [tuple(_label(row, name) for name in names) for row in rows]
        if self.learns:
            for name, column in zip(names, zip(*labels, strict=True), strict=True):
                check_both(f"{path}: column '{LABEL}{name}'", column)
        return Labelled(
            [
                {**row, "label": label, "stratum": label[0]}
                for row, label in zip(rows, labels, strict=True)
            ],
            names,
        )

    def _label_names(self, row: Row, path: Path) -> tuple[str, ...]:
        found = tuple(name.removeprefix(LABEL) for name in row if name and name.startswith(LABEL))
        expected = "expected columns label_NAME, one for each name, with 0, 1 or nothing"
        missing = [name for name in self.settings.class_names or () if name not in found]
        if missing:
            raise SourceError(f"{path}: line 1: has no column '{LABEL}{missing[0]}'; {expected}.")
        if not found:
            raise SourceError(f"{path}: line 1: has no column '{LABEL}NAME'; {expected}.")
        return tuple(self.settings.class_names or found)

    def shown(self, row: Row, classes: Sequence[str]) -> dict[str, str]:
        """Return the labels of a row."""
        return {f"{LABEL}{name}": row[f"{LABEL}{name}"] for name in classes}


COLUMNS: dict[str, type[TargetColumns]] = {
    "class": ClassColumn,
    "survival": SurvivalColumns,
    "regression": ValueColumn,
    "multilabel": LabelColumns,
}


def of(settings: MILSettings | ImageSettings) -> TargetColumns:
    """Return the columns of the target of a run."""
    return COLUMNS[settings.target](settings)


def check_both(what: str, labels: Sequence[int] | npt.NDArray[Any]) -> None:
    """Check that labels, where they are known, are 0 and 1.

    Args:
        what: What they are, for the error.
        labels: Labels 0, 1 or `UNKNOWN`.

    Raises:
        SourceError: One of both is missing.
    """
    known = sorted({int(label) for label in labels if label != UNKNOWN})
    if known != [0, 1]:
        found = f"only {known[0]} in" if known else "none in"
        number = sum(label != UNKNOWN for label in labels) if known else len(labels)
        raise SourceError(
            f"{what} has {found} {number} {'known ' if known else ''}cells, expected 0 and 1. Correct it, or name the "
            "other labels with --class-names."
        )


def _numbers(
    rows: Sequence[Row], column: str, expected: str, least: float = -math.inf
) -> list[float]:
    """Return a column as finite numbers.

    Raises:
        SourceError: A cell is something else, less than `least`, or has a comma of unclear meaning.
    """
    found, texts = [], number_text.Column()
    for row in rows:
        text = row[column].strip()
        try:
            number, reason = texts.number(text), ""
        except ValueError as error:
            number, reason = math.nan, f" ({error})" if "comma" in str(error) else ""
        if not (math.isfinite(number) and number >= least):
            raise SourceError(f"{row['place']}: {column} '{text}'{reason}; expected {expected}.")
        found.append(number)
    return found


def _event(row: Row) -> int:
    text = row["event"].strip()
    found = _zero_or_one(text)
    if found is None:
        raise SourceError(
            f"{row['place']}: event '{text}'; expected 1 for an event, or 0 for a case that was censored."
        )
    return found


def _label(row: Row, name: str) -> int:
    text = (row[f"{LABEL}{name}"] or "").strip()
    found = _zero_or_one(text) if text else UNKNOWN
    if found is None:
        raise SourceError(
            f"{row['place']}: {LABEL}{name} '{text}'; expected 0, 1, or an empty cell if it is unknown."
        )
    return found


def _zero_or_one(text: str) -> int | None:
    """Return 0 or 1, which a spreadsheet may write as 1.0 or 1,0; None for anything else."""
    try:
        number = number_text.number(text)
    except ValueError:
        return None
    return int(number) if number in (0, 1) else None


def _check_observations(observed: Sequence[tuple[float, int]], path: Path) -> None:
    times = {time for time, _ in observed}
    if not any(event for _, event in observed):
        raise SourceError(
            f"{path}: column 'event' is 0 in all {len(observed)} lines, expected 1 in some. Check the table: 1 is an "
            "event, 0 a case that was censored."
        )
    if len(times) == 1:
        raise SourceError(
            f"{path}: column 'time' is {times.pop():g} in all {len(observed)} lines, expected different times. Check "
            "the table."
        )


def _raise_different(case: str, row: Row, before: Row) -> None:
    raise SourceError(
        f"{row['place']}: case '{case}' has time {row['time']} and event {row['event']}, but {before['time']} and "
        f"{before['event']} in {before['place'].rpartition(': ')[2]}; expected the same in all lines of a case."
    )

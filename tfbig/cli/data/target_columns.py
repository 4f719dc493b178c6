"""Columns of a table that say what is to be predicted: a class, survival, a number, several labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tfbig import SourceError
from tfbig.cli.data import run_data, splits, splitting
from tfbig.cli.data.run_data import Data
from tfbig.cli.settings.tasks import ImageSettings, MILSettings
from tfbig.sources import number_text
from tfbig.sources.table import Row, Table, case_of

UNKNOWN = -1
"""Label of an empty cell of `--target multilabel`."""
_AN_EVENT = "1 for an event, or 0 for a case that was censored"
_A_TIME = "a number from 0, such as the months to the event or to the last visit"
LABEL = "label_"
"""Beginning of the columns of `--target multilabel`."""


@dataclass(frozen=True)
class Labelled:
    """A table, with what is to be predicted.

    Attributes:
        table: Rows have `label`: the number of a class, or a tuple of numbers; and `stratum`, by which rows are split.
        columns: What reads the columns of the target.
        classes: Names of the classes, or of several labels; else empty.
        cases: Names of the cases that `label` of survival numbers; else empty.
    """

    table: Table
    columns: TargetColumns
    classes: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()

    @property
    def count(self) -> int | None:
        """Number of classes; None if labels are no class numbers."""
        return len(self.classes) if self.columns.whole else None

    def data(self, sets: Sequence[Any]) -> Data:
        """The data of all splits, or in an evaluation of the one that is evaluated."""
        decided = {} if self.count is None else {"num_classes": self.count}
        return Data.of(sets, self.classes, cases=self.cases, decided=decided)

    def saved(self, key: str, test_only: bool) -> tuple[dict[str, Any], ...]:
        """The rows as a run saves them, such as `{"image": "a.tif", "label": "tumour", "split": "val"}`.

        They have the case if a row has one. In an evaluation, they are those of the split that is evaluated.
        """
        rows = self.table.rows
        cases = [name for name in ("patient", "case_id") if any(row.get(name) for row in rows)]
        return tuple(
            {key: row[key], **self.columns.shown(row, self.classes), "split": row["split"]}
            | {name: row.get(name) or "" for name in cases}
            for row in run_data.rows_of_run(self.table, test_only)
        )


class TargetColumns(ABC):
    """Reader of the columns of a target.

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
    def labelled(self, table: Table, key: str) -> Labelled:
        """Label a table with what is to be predicted; its column `key` names a bag, an image or a slide.

        Raises:
            SourceError: A cell is wrong, or nothing can be learned from the column.
        """

    def shown(self, row: Row, classes: Sequence[str]) -> dict[str, str]:
        """The columns of a row as the table of a run shows them."""
        return {name: row[name] for name in self.names}


class ClassColumn(TargetColumns):
    """The column `label` of `--target class`: names, or numbers from 0."""

    names = ("label",)
    whole = True

    def labelled(self, table: Table, key: str) -> Labelled:
        """Label rows with the number of their class."""
        count = getattr(self.settings, "num_classes", None) if key != "slide_id" else None
        numbered, classes = splits.with_classes(table, self.settings.class_names, count)
        return Labelled(numbered, self, classes)

    def shown(self, row: Row, classes: Sequence[str]) -> dict[str, str]:
        """The name of the class of a row."""
        return {"label": classes[row["label"]]}


class SurvivalColumns(TargetColumns):
    """The columns `time` and `event` of `--target survival`; slides of a case have the same."""

    names = ("time", "event")

    def labelled(self, table: Table, key: str) -> Labelled:
        """Label rows with the tuple of time, event and number of the case."""
        rows, times = table.rows, table.numbers("time", _A_TIME, least=0)
        observed = [
            (time, _zero_or_one(row, "event", _AN_EVENT))
            for time, row in zip(times, rows, strict=True)
        ]
        if self.learns:
            _check_observations(observed, table)
        numbers: dict[tuple[str, str], int] = {}
        first: dict[int, int] = {}
        labelled = []
        for place, (row, (time, event)) in enumerate(zip(rows, observed, strict=True)):
            case = case_of(row)
            number = numbers.setdefault(
                ("case", case) if case else ("item", row[key]), len(numbers)
            )
            before = first.setdefault(number, place)
            if observed[before] != (time, event):
                _raise_different(case or row[key], row, rows[before])
            labelled.append(row | {"label": (time, event, number), "stratum": event})
        cases = tuple(name for _, name in numbers)
        return Labelled(table.with_rows(labelled), self, cases=cases)


class ValueColumn(TargetColumns):
    """The column `value` of `--target regression`: a number for each bag or image."""

    names = ("value",)

    def labelled(self, table: Table, key: str) -> Labelled:
        """Label rows with the tuple of their value, and split them by the quarter of it."""
        values = np.array(table.numbers("value", "a finite number"))
        if self.learns and (values == values[0]).all():
            raise SourceError(
                f"{table.path}: column 'value' is {values[0]:g} in all {len(values)} lines, expected different "
                "numbers. Check the table."
            )
        quarters = np.searchsorted(np.quantile(values, (0.25, 0.5, 0.75)), values, "right")
        labelled = (
            row | {"label": (float(value),), "stratum": int(quarter)}
            for row, value, quarter in zip(table.rows, values, quarters, strict=True)
        )
        return Labelled(table.with_rows(labelled), self)


class LabelColumns(TargetColumns):
    """The columns `label_NAME` of `--target multilabel`: 0, 1 or nothing for each bag or image and name."""

    names = ()

    def labelled(self, table: Table, key: str) -> Labelled:
        """Label rows with the tuple of their labels, `UNKNOWN` for empty cells."""
        names = self._label_names(table)
        labels = [tuple(_label(row, f"{LABEL}{name}") for name in names) for row in table.rows]
        if self.learns:
            for name, column in zip(names, zip(*labels, strict=True), strict=True):
                check_both(f"{table.path}: column '{LABEL}{name}'", column)
        labelled = (
            row | {"label": label, "stratum": label[0]}
            for row, label in zip(table.rows, labels, strict=True)
        )
        return Labelled(table.with_rows(labelled), self, names)

    def _label_names(self, table: Table) -> tuple[str, ...]:
        path, found = table.path, [name.removeprefix(LABEL) for name in table.like(f"{LABEL}*")]
        expected = "expected columns label_NAME, one for each name, with 0, 1 or nothing"
        missing = [name for name in self.settings.class_names or () if name not in found]
        if missing:
            raise SourceError(f"{path}: line 1: has no column '{LABEL}{missing[0]}'; {expected}.")
        if not found:
            raise SourceError(f"{path}: line 1: has no column '{LABEL}NAME'; {expected}.")
        return tuple(self.settings.class_names or found)

    def shown(self, row: Row, classes: Sequence[str]) -> dict[str, str]:
        """The labels of a row."""
        return {f"{LABEL}{name}": row[f"{LABEL}{name}"] for name in classes}


COLUMNS: dict[str, type[TargetColumns]] = {
    "class": ClassColumn,
    "survival": SurvivalColumns,
    "regression": ValueColumn,
    "multilabel": LabelColumns,
}


def of(settings: MILSettings | ImageSettings) -> TargetColumns:
    """The columns of the target of a run."""
    return COLUMNS[settings.target](settings)


def read(path: Path, key: str, settings: MILSettings | ImageSettings) -> Labelled:
    """Read a table of images or bags with `label`, `split` and `path`, which is that of the column `key`.

    Raises:
        SourceError: The table is wrong, or with `--confine` a file is elsewhere.
    """
    columns = of(settings)
    table = Table.read(path, (key, *columns.names))
    table = table.with_rows(row | {"path": table.file(row[key])} for row in table.rows)
    if settings.confine:
        table.check_inside(row["path"] for row in table.rows)
    found = columns.labelled(table, key)
    return replace(found, table=splitting.with_splits(found.table, settings, key))


def check_both(what: str, labels: Sequence[int] | npt.NDArray[Any]) -> None:
    """Check that labels, where they are known, are 0 and 1.

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


def _label(row: Row, column: str) -> int:
    expected = "0, 1, or an empty cell if it is unknown"
    return _zero_or_one(row, column, expected) if row[column] else UNKNOWN


def _zero_or_one(row: Row, column: str, expected: str) -> int:
    """Read 0 or 1, which a spreadsheet may write as 1.0 or 1,0.

    Raises:
        SourceError: The cell is anything else.
    """
    with suppress(ValueError):
        if (number := number_text.number(row[column])) in (0, 1):
            return int(number)
    raise SourceError(f"{row.place}: {column} '{row[column]}'; expected {expected}.")


def _check_observations(observed: Sequence[tuple[float, int]], table: Table) -> None:
    times = {time for time, _ in observed}
    if not any(event for _, event in observed):
        raise SourceError(
            f"{table.path}: column 'event' is 0 in all {len(observed)} lines, expected 1 in some. Check the table: 1 "
            "is an event, 0 a case that was censored."
        )
    if len(times) == 1:
        raise SourceError(
            f"{table.path}: column 'time' is {times.pop():g} in all {len(observed)} lines, expected different times. "
            "Check the table."
        )


def _raise_different(case: str, row: Row, before: Row) -> None:
    raise SourceError(
        f"{row.place}: case '{case}' has time {row['time']} and event {row['event']}, but {before['time']} and "
        f"{before['event']} in {before.line}; expected the same in all lines of a case."
    )

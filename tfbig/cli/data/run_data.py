"""The data of a run by split, and what is done with files that cannot be opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

from tfbig.cli import messages
from tfbig.errors import SourceError, TfbigError, one_line
from tfbig.sources import Bag, Coords, Slide
from tfbig.sources.table import SPLITS, Row, Table

Origin: TypeAlias = tuple[Callable[[], Slide], Coords]
"""Function that opens the slide of a bag, and the tiles of the bag."""
UNREADABLE = (TfbigError, OSError, ValueError, MemoryError)
"""Errors of a file that is left out."""


@dataclass(frozen=True)
class Opened:
    """The opened items of the rows of a table; rows that cannot be opened are left out, with the reason.

    Attributes:
        ITEMS: Attribute that has what was opened.
        items: What was opened.
        rows: Their rows.
        failed: `(name, reason)` of the others; the reason begins with the line of the table, if there is one.
        name: Column that names a row.
    """

    ITEMS: ClassVar[str] = "items"

    items: tuple[Any, ...] = ()
    rows: tuple[Row, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    name: str = ""

    @classmethod
    def of(cls, rows: Sequence[Row], open_row: Callable[[Row], Any], name: str) -> Opened:
        """Open each row by a function of it; `name` is the column that names a row."""
        return cls(tuple(rows), tuple(rows), (), name).then(open_row)

    def then(self, change: Callable[[Any], Any]) -> Opened:
        """Return the results of a function of each item, without the items for which it raises an error of a file."""
        items, rows, failed = [], [], [*self.failed]
        for item, row in zip(self.items, self.rows, strict=True):
            try:
                items.append(change(item))
                rows.append(row)
            except UNREADABLE as error:
                failed.append((str(row[self.name]), _reason(error, row)))
        return Opened(tuple(items), tuple(rows), tuple(failed), self.name)

    def usable(self, items: str, split: str) -> Opened:
        """Return it, after checking that something of the split is left; `items` are what they are, in the plural.

        Raises:
            SourceError: No row could be opened.
        """
        if not self.items:
            raise SourceError(
                f"none of the {items} in split '{split}' can be used ({len(self.failed)} of {len(self.failed)} "
                f"failed). The first: {self.failed[0][1]} Correct it, or change the splits by --shares or a column "
                "split."
            )
        return self

    @property
    def labels(self) -> list[Any]:
        """The `label` of each row."""
        return [row["label"] for row in self.rows]


def _reason(error: Exception, row: Row) -> str:
    """Return why a row is left out, and in which line it is."""
    text = one_line(messages.in_flags(error, "train")).removeprefix(f"{row.place}: ")
    is_line = row.line != row.place  # else it is of a folder, and errors name the file
    return f"{row.place}: {text}" if is_line else text


@dataclass(frozen=True)
class Data:
    """Bags or images of a run, by split; in an evaluation, each split is what is evaluated.

    Attributes:
        train: Training set: `Opened`, or with labels an `ImageSet` or `BagSet`, which have `failed` too.
        val: Validation set.
        test: Test set.
        classes: Names of the classes, or of several labels; empty for survival and numbers.
        cases: Names of the cases, if labels number them.
        table: Rows that say which slide is in which split, if known.
        decided: Settings that the data decide, which are saved with the run.
        origin_of: Function from a bag to a function that opens its slide, and its tiles; None for other bags.
    """

    train: Any
    val: Any
    test: Any
    classes: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    table: tuple[dict[str, Any], ...] = ()
    decided: Mapping[str, Any] = field(default_factory=dict)
    origin_of: Callable[[Bag], Origin | None] = lambda bag: None

    @classmethod
    def of(cls, sets: Sequence[Any], classes: tuple[str, ...] = (), **others: Any) -> Data:
        """Return the data of a training, a validation and a test set, or of the one that is evaluated."""
        train, val, test = sets if len(sets) > 1 else [*sets] * 3
        return cls(train, val, test, classes, **others)

    @property
    def sets(self) -> dict[str, Any]:
        """The different sets by split: three, or in an evaluation that of `test`."""
        found = {split: getattr(self, split) for split in SPLITS}
        return found if self.train is not self.test else {"test": self.test}

    @property
    def every(self) -> list[Any]:
        """The items of all splits, if these are `Opened`."""
        return [item for part in self.sets.values() for item in part.items]

    @property
    def judged(self) -> Any:
        """The set of the results: that to test on, or if it is empty, that for validation."""
        return self.test if items_of(self.test) else self.val

    def checked(self) -> Data:
        """Return it, after checking that no set is empty that must have items.

        Raises:
            SourceError: One is; the reason is that of its last item.
        """
        for split, part in self.sets.items():
            if split in _needed(self.sets) and not items_of(part):
                raise SourceError(part.failed[-1][1])
        return self

    @property
    def failed(self) -> list[tuple[str, str]]:
        """`(name, reason)` of every skipped item."""
        return list(dict.fromkeys(f for part in self.sets.values() for f in part.failed))

    def mapped(self, change: Callable[[Any], Any]) -> Data:
        """Return a copy with each set replaced by `change(set)`."""
        changed = {split: change(part) for split, part in self.sets.items()}
        return replace(self, **(dict.fromkeys(SPLITS, changed["test"]) | changed))


def rows_of_run(table: Table, test_only: bool) -> list[Row]:
    """Return the rows that a run reads: all, or in an evaluation those for testing, else those for validation."""
    return [row for row in table.rows if not test_only or row["split"] == table.tested]


def parts(table: Table, test_only: bool, items: str) -> dict[str, list[Row]]:
    """Return the rows to open by split: in an evaluation those for testing, or if there are none, for validation.

    Args:
        table: Rows with a `split`.
        test_only: Whether it is an evaluation. A training needs no rows to test on.
        items: What the rows are, in the plural.

    Raises:
        SourceError: A split has no row that must have one.
    """
    if test_only:
        return {"test": table.of_split(table.tested, items)}
    return {split: table.of_split(split, items, split == "test") for split in SPLITS}


def usable(opened: Mapping[str, Opened], items: str) -> list[Opened]:
    """Return what was opened of each of `parts`, after checking that something is left.

    Args:
        opened: What was opened, by split.
        items: What it is, in the plural.

    Raises:
        SourceError: Nothing of a split can be used; a training needs nothing to test on.
    """
    needed = _needed(opened)
    return [part.usable(items, s) if s in needed else part for s, part in opened.items()]


def _needed(sets: Mapping[str, Any]) -> tuple[str, ...]:
    """The splits that must have items: a training needs nothing to test on."""
    return ("train", "val") if len(sets) > 1 else ("test",)


def items_of(part: Any) -> Sequence[Any]:
    """The items of a set: of `Opened`, or the images or bags of a set with labels."""
    items: Sequence[Any] = getattr(part, part.ITEMS)
    return items


def with_labels(opened: Sequence[Opened], gather: Callable[[Opened], Any]) -> list[Any]:
    """Gather what was opened of each split in a set with labels.

    Args:
        opened: What was opened of each split; that to test on may be empty.
        gather: Function that makes the set of a split, with `labels` and `failed`, of one or more items.
    """
    sets = [gather(part) for part in opened if part.items]
    for part in opened[len(sets) :]:
        first = sets[0]  # labels of no items have its kind
        empty: dict[str, Any] = {first.ITEMS: (), "labels": first.labels[:0]}
        sets.append(replace(first, failed=part.failed, **empty))
    return sets


def open_all(
    table: Table, open_row: Callable[[Row], Any], settings: Any, name: str, items: str
) -> list[Opened]:
    """Open the rows of each split: one set for each, or in an evaluation one.

    Args:
        table: Rows with a `split`.
        open_row: Function that opens a row.
        settings: Settings of the run.
        name: Column that names a row.
        items: What the rows are, in the plural.

    Raises:
        SourceError: A split has no row, or none that can be used, and must have one.
    """
    rows = parts(table, bool(settings.test_only), items)
    opened = {split: Opened.of(each, open_row, name) for split, each in rows.items()}
    return usable(opened, items)

"""Tables of people and spreadsheets: slides, images, bags, volumes, scenes, and what is said about them beside.

A `Table` is read once, with all checks. It says what its cells mean: which files they name, which numbers they are, and
which rows are in which split.
"""

from __future__ import annotations

import csv
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeAlias

from tfbig.errors import SourceError, one_line
from tfbig.sources import csv_table, number_text
from tfbig.sources.csv_table import Line
from tfbig.sources.files import PathLike
from tfbig.sources.names import whole_number

SPLITS = ("train", "val", "test")
"""What rows are for."""
Cells: TypeAlias = Mapping[str, Any]
"""A row, of whatever table."""


class Row(dict[str, Any]):
    """Cells of a row by column; `row | cells` is the row with others, at the same place.

    Attributes:
        place: Where it is, such as "slides.csv: line 2", for errors.
    """

    def __init__(self, cells: Cells, place: str = "the table") -> None:
        super().__init__(cells)
        self.place = place

    def __or__(self, cells: dict[str, Any], /) -> Row:  # type: ignore[override]
        return Row({**self, **cells}, self.place)

    @property
    def line(self) -> str:
        """The place of the row, without the file."""
        return self.place.rpartition(": ")[2]


@dataclass(frozen=True)
class Table:
    """Rows of a CSV file, or of what is in a folder.

    Attributes:
        path: The file or folder.
        columns: Names of the columns, as they are in the file.
        rows: The rows, cells without spaces around them.

    Example:
        >>> with open("slides.csv", "w") as file:
        ...     print("slide_id;time", "a;12,5", "b;7", sep=chr(10), file=file)
        >>> table = Table.read("slides.csv", ["slide_id"])
        >>> table.rows[1]["slide_id"], table.rows[1].place, table.numbers("time", "months")
        ('b', 'slides.csv: line 3', [12.5, 7.0])
    """

    path: Path
    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    @classmethod
    def read(
        cls,
        path: PathLike,
        columns: Sequence[str] = (),
        either: Sequence[Sequence[str]] = (),
        flag: str = "--data",
    ) -> Table:
        """Read a CSV file as people and spreadsheets write it, or as tfbig does.

        Args:
            path: Path of the file.
            columns: Columns that it must have, with a value in each row.
            either: Columns that it must have by one of several names or patterns, such as `("image", "image_*")`;
                their cells may be empty.
            flag: Flag that names the file, for errors.

        Raises:
            SourceError: The file is missing, is no table, has two columns of one name, or lacks a column or a value.
        """
        path = Path(path)
        wanted = [*(" or ".join(names) for names in either), *columns]
        expected = f"; expected a table with columns {', '.join(wanted)}" if wanted else ""
        check = f" Check {flag}." if flag else ""
        if not path.exists():
            raise SourceError(f"{path}: no such file{expected}.{check}")
        try:
            names, lines = csv_table.read(path)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise SourceError(
                f"{path}: cannot be read as a CSV file in UTF-8 ({one_line(error)}).{check}"
            ) from error
        if not lines:
            raise SourceError(f"{path}: has no rows{expected}.{check}")
        names = [_text(name) for name in names]
        _check_columns(path, names, lines)
        rows = (
            Row(
                dict(zip(names, map(_text, line.cells), strict=True)), f"{path}: line {line.number}"
            )
            for line in lines
        )
        table = cls(path, tuple(names), tuple(rows))
        table._check_names(columns, either, expected)
        table._check_filled(columns)
        return table

    @classmethod
    def of(cls, path: PathLike, rows: Iterable[Cells]) -> Table:
        """Make a table of rows that no file has, such as those of the images in a folder."""
        found = [row if isinstance(row, Row) else Row(row, str(path)) for row in rows]
        return cls(Path(path), tuple(found[0]), tuple(found))

    def with_rows(self, rows: Iterable[Row]) -> Table:
        """The table with other rows, which may have more cells."""
        return replace(self, rows=tuple(rows))

    @property
    def folder(self) -> Path:
        """The folder of the table, to which its paths are relative."""
        return self.path.parent

    def like(self, *patterns: str) -> list[str]:
        """The columns whose names fit one of the patterns."""
        return [n for n in self.columns if any(fnmatchcase(n, pattern) for pattern in patterns)]

    def places(self, name: PathLike) -> list[Path]:
        """Find where a path of a cell leads: in the folder of the table, and in the working directory.

        Returns:
            The files and folders that exist, of which the first counts.
        """
        found = [path for path in (self.folder / name, Path(name)) if os.path.exists(path)]
        return found[:1] if len(found) == 2 and os.path.samefile(*found) else found

    def file(self, name: PathLike) -> Path:
        """Find the file that a cell names: relative to the table, else to the working directory.

        Returns:
            Its path; that relative to the table if there is no such file.

        Raises:
            SourceError: There are two, which are not the same.
        """
        found = self.places(name)
        if len(found) > 1:
            raise SourceError(
                f"{self.path}: {name} may be {found[0].resolve()}, relative to the table, or {found[1].resolve()}, "
                "relative to the working directory. Write the whole path, or run from another folder."
            )
        return found[0] if found else self.folder / name

    def numbers(self, column: str, expected: str, least: float = -math.inf) -> list[float]:
        """Read a column as finite numbers, which may have a decimal comma; `expected` says what they are.

        Raises:
            SourceError: A cell is something else, less than `least`, or has a comma of unclear meaning.
        """
        found, texts = [], number_text.Column()
        for row in self.rows:
            try:
                number, reason = texts.number(row[column]), ""
            except ValueError as error:
                number, reason = math.nan, f" ({error})" if "comma" in str(error) else ""
            if not (math.isfinite(number) and number >= least):
                raise SourceError(
                    f"{row.place}: {column} '{row[column]}'{reason}; expected {expected}."
                )
            found.append(number)
        return found

    def of_split(self, split: str, items: str = "images", may_be_empty: bool = False) -> list[Row]:
        """The rows of a split; `items` is the plural noun for them in the error.

        Raises:
            SourceError: There is none, and that is not allowed.
        """
        chosen = [row for row in self.rows if row["split"] == split]
        if not chosen and not may_be_empty:
            raise SourceError(
                f"{self.path}: none of {len(self.rows)} {items} of {len({*cases_of(self.rows)})} cases is in split "
                f"'{split}'. Correct the column split (train, val, test); if there is none, add {items}, or give the "
                "split a larger part in --shares."
            )
        return chosen

    def check_unique(self, column: str, item: str) -> None:
        """Check that no cell of a column is in two rows.

        Raises:
            SourceError: One is.
        """
        first: dict[str, Row] = {}
        for row in self.rows:
            if (other := first.setdefault(row[column], row)) is not row:
                raise SourceError(
                    f"{self.path}: {item} {row[column]} is in {other.line} and {row.line}. Remove one."
                )

    @property
    def tested(self) -> str:
        """The split that an evaluation judges: test, or val if no row is in test."""
        return "test" if any(row["split"] == "test" for row in self.rows) else "val"

    def check_splits(self) -> None:
        """Check that the split of each row is train, val or test.

        Raises:
            SourceError: One is not.
        """
        for row in self.rows:
            if row["split"] not in SPLITS:
                raise SourceError(
                    f"{row.place}: split '{row['split']}'; expected train, val or test."
                )

    def check_cases(self) -> None:
        """Check that all rows of a case are in one split, so that nothing is tested on that was trained on.

        Raises:
            SourceError: A case is in several.
        """
        found: dict[str, set[str]] = {}
        for row in self.rows:
            if case_of(row) and row["split"]:
                found.setdefault(case_of(row), set()).add(row["split"])
        several = {case: split for case, split in found.items() if len(split) > 1}
        if several:
            case, names = next(iter(several.items()))
            more = (
                f", and so are {len(several) - 1} more cases in several" if len(several) > 1 else ""
            )
            raise SourceError(
                f"the case '{case}' is in the splits {' and '.join(sorted(names))}{more}; expected all rows of a case "
                "in one. Correct the splits, or leave out the column split to draw them by case."
            )

    def files_in_two_splits(self, column: str) -> dict[Path, tuple[Row, Row]]:
        """Return the files that are in two splits, and two rows with each; links are followed.

        Args:
            column: Column of the path of a row, of several, or of None.
        """
        first: dict[Path, Row] = {}
        twice: dict[Path, tuple[Row, Row]] = {}
        for row in self.rows:
            found = row.get(column) or ()
            for path in [found] if isinstance(found, str | Path) else found:
                other = first.setdefault(Path(path).resolve(), row)
                if row["split"] and other["split"] and row["split"] != other["split"]:
                    twice.setdefault(Path(path), (other, row))
        return twice

    def check_inside(self, paths: Iterable[PathLike], *folders: PathLike) -> None:
        """Check that files are in the folder of the table or in other ones, after following links and `..`.

        Raises:
            SourceError: A file is elsewhere.
        """
        allowed = [Path(folder).resolve() for folder in (*folders, self.folder)]
        for path in paths:
            real = Path(path).resolve()
            if not any(real.is_relative_to(folder) for folder in allowed):
                raise SourceError(
                    f"{path}: lies outside of {' and '.join(map(str, dict.fromkeys(allowed)))}, and --confine is set. "
                    "Copy it there, or remove --confine if you trust the table."
                )

    def _check_names(
        self, columns: Sequence[str], either: Sequence[Sequence[str]], expected: str
    ) -> None:
        missing = [" or ".join(map(repr, names)) for names in either if not self.like(*names)]
        missing += [repr(name) for name in columns if name not in self.columns]
        if missing:
            there = ", ".join(name for name in self.columns if name)
            has = f"It has {there}. Rename or add columns." if there else "Its first line is empty."
            raise SourceError(
                f"{self.path}: line 1: has no column {' and no column '.join(missing)}{expected}. {has}"
            )

    def _check_filled(self, columns: Sequence[str]) -> None:
        for row in self.rows:
            if empty := [name for name in columns if not row[name]]:
                raise SourceError(f"{row.place}: has no {empty[0]}. Add one, or remove the line.")


def case_of(row: Cells) -> str:
    """Return the case of a row, whose rows stay in one split, or an empty string.

    It is the `patient`, or without one the `case_id`; 10005.0 of a spreadsheet is the case 10005.
    """
    return whole_number(row.get("patient") or row.get("case_id") or "")


def cases_of(rows: Sequence[Cells]) -> list[str]:
    """The case of every row; a row without one is its own case."""
    return [case_of(row) or f"row {number}" for number, row in enumerate(rows)]


def _check_columns(path: Path, names: Sequence[str], lines: Iterable[Line]) -> None:
    """Check that columns of one name, as joining two tables makes them, have the same cells.

    Raises:
        SourceError: They have not: which of them is meant is not known.
    """
    twice = [name for name, count in Counter(filter(None, names)).items() if count > 1]
    for line in lines if twice else ():
        for name in twice:
            cells = {
                _text(cell) for other, cell in zip(names, line.cells, strict=True) if other == name
            }
            if len(cells) > 1:
                raise SourceError(
                    f"{path}: line {line.number}: has two columns '{name}', with {' and '.join(sorted(cells))}; "
                    "expected one. Rename or remove the other."
                )


def _text(cell: str) -> str:
    """Put a cell into one line without spaces around it."""
    cell = csv_table.unescaped(cell)
    return " ".join(cell.split()) if {*cell} & {*"\n\r\t"} else cell.strip()

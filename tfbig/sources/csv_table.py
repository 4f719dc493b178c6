"""CSV files that people and spreadsheets write, with commas, semicolons or tabs between the columns."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tfbig.sources.files import PathLike
from tfbig.sources.untrusted import regular_file
from tfbig.units import format_bytes

SEPARATORS = (",", ";", "\t")
"""Characters between columns; spreadsheets write semicolons where the decimal separator is a comma."""

MOST_ROWS, MOST_CELLS, MOST_BYTES = 10**6, 10**7, 2**28
"""Largest table, of which each cell takes some 100 bytes of memory; a cohort of 100,000 may have 100 columns."""
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029]")
_SMALLER = "Write a table of fewer rows, and of the columns that are needed"
FORMULA = re.compile("'*[=+\\-@\t\r]")
"""Start of a text that spreadsheets compute (https://owasp.org/www-community/attacks/CSV_Injection), or of one that has
an apostrophe against that."""


class Line(NamedTuple):
    """A row of a table.

    Attributes:
        number: Number of its first line in the file, from 1.
        cells: Its cells.
    """

    number: int
    cells: list[str]


def read(path: PathLike) -> tuple[list[str], list[Line]]:
    """Read the columns and rows of a CSV file in UTF-8, which may begin with a byte order mark.

    Rows have as many cells as there are columns; missing ones are empty.

    Columns are separated by commas, semicolons or tabs, whichever divide the first line into most columns. Empty cells
    after the last column do not count, and neither do empty lines.

    Raises:
        OSError: The file cannot be read.
        UnicodeDecodeError: It is not text in UTF-8.
        csv.Error: It is not a CSV file, or a larger one than `MOST_ROWS`, `MOST_CELLS` or `MOST_BYTES`, or a row has
            more cells than there are columns, as where a decimal comma is not in quotes.
        SourceError: It is a pipe or a device.
    """
    if Path(path).exists() and (size := regular_file(path).st_size) > MOST_BYTES:
        raise csv.Error(
            f"it has {format_bytes(size)}, and at most {format_bytes(MOST_BYTES)} are read. {_SMALLER}"
        )
    with Path(path).open(newline="", encoding="utf-8-sig") as file:
        first = file.readline()
        file.seek(0)
        counts = {mark: len(next(csv.reader([first], delimiter=mark), ())) for mark in SEPARATORS}
        separator = max(SEPARATORS, key=counts.__getitem__)  # the first of equal ones
        columns, *rows = [*lines(_text(file), separator)] or [Line(1, [])]
    return columns.cells, [_whole(row, len(columns.cells), separator) for row in rows]


def lines(text: Iterable[str], separator: str = ",") -> Iterator[Line]:
    """Yield the first line of a table, and its rows that are not empty, as they are.

    Raises:
        csv.Error: There are more than `MOST_ROWS` or `MOST_CELLS`, where a short row takes the memory of all columns.
    """
    reader = csv.reader(text, delimiter=separator)
    columns = next(reader, [])
    yield Line(1, columns)
    end, rows, cells = reader.line_num, 0, 0
    for row in reader:
        start, end = end + 1, reader.line_num
        if row:
            rows, cells = rows + 1, cells + max(len(row), len(columns))
            if rows > MOST_ROWS or cells > MOST_CELLS:
                raise csv.Error(
                    f"it has more than {MOST_ROWS} rows, or {MOST_CELLS} cells. {_SMALLER}"
                )
            yield Line(start, row)


def unescaped(text: str) -> str:
    """Strip the apostrophe that tables of tfbig have before what a spreadsheet would compute."""
    return text[1:] if text.startswith("'") and FORMULA.match(text) else text


def _whole(row: Line, columns: int, separator: str) -> Line:
    """Cut or fill a row to as many cells as there are columns.

    Raises:
        csv.Error: There are more, which are not empty: cells may be in wrong columns.
    """
    if any(cell.strip() for cell in row.cells[columns:]):
        advice = (
            ': put a cell with a comma, such as "12,5", in quotes, or write decimal points'
            if separator == ","
            else ""
        )
        raise csv.Error(
            f"line {row.number} has {len(row.cells)} cells for {columns} columns{advice}"
        )
    return Line(row.number, [*row.cells, *[""] * (columns - len(row.cells))][:columns])


def _text(file: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a file, which have no control characters: they would be printed with the cells."""
    for number, line in enumerate(file, start=1):
        if found := _CONTROL.search(line):
            raise csv.Error(
                f"line {number} has the control character {found[0]!r}, so it is no text"
            )
        yield line

"""CSV files that people and spreadsheets write, with commas, semicolons or tabs between the columns."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tfbig.sources.files import PathLike
from tfbig.sources.untrusted import regular_file
from tfbig.units import format_bytes

SEPARATORS = (",", ";", "\t")
"""Characters between columns; spreadsheets write semicolons where the decimal separator is a comma."""

MOST_ROWS, MOST_CELLS, MOST_BYTES = 10**6, 10**7, 2**28
"""Largest table, of which each cell takes some 100 bytes of memory; a cohort of 100,000 may have 100 columns."""
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029]")
_SMALLER = "Write a table of fewer rows, and of the columns that are needed"


def read_rows(path: PathLike) -> list[dict[str, str]]:
    """Return the rows of a CSV file in UTF-8, with the columns of its first line; it may begin with a byte order mark.

    Columns are separated by commas, semicolons or tabs, whichever divide the first line into most columns. As in
    `csv.DictReader`, a row that is too short has None in its last columns. Empty cells after the last column do not
    count.

    Args:
        path: Path of the file.

    Returns:
        A dictionary `{column: cell}` for each row.

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
        separator = max(SEPARATORS, key=counts.__getitem__)  # of equal ones the first
        table = csv.DictReader(_lines(file), delimiter=separator)
        return [_whole(row, table) for row in limited(table)]


def _whole(row: dict[Any, Any], table: csv.DictReader[str]) -> dict[str, str]:
    """Return a row without empty cells after its last column.

    Raises:
        csv.Error: Some of these are not empty: cells may be in wrong columns.
    """
    others = row.pop(None, None) or ()
    if any(cell.strip() for cell in others):
        columns = len(table.fieldnames or ())
        raise csv.Error(
            f"line {table.line_num} has {columns + len(others)} cells for {columns} columns: put a cell with a comma, "
            'such as "12,5", in quotes, or write decimal points'
            if table.reader.dialect.delimiter == ","
            else f"line {table.line_num} has {columns + len(others)} cells for {columns} columns"
        )
    return row


def _lines(file: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a file, which have no control characters: they would be printed with the cells."""
    for number, line in enumerate(file, start=1):
        if found := _CONTROL.search(line):
            raise csv.Error(
                f"line {number} has the control character {found[0]!r}, so it is no text"
            )
        yield line


def limited(table: csv.DictReader[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, in which a short row takes the memory of all columns.

    Args:
        table: Reader of the table.

    Raises:
        csv.Error: There are more than `MOST_ROWS` or `MOST_CELLS`.
    """
    cells = 0
    for number, row in enumerate(table, start=1):
        cells += len(row) + len(row.get(None) or ())
        if number > MOST_ROWS or cells > MOST_CELLS:
            raise csv.Error(f"it has more than {MOST_ROWS} rows, or {MOST_CELLS} cells. {_SMALLER}")
        yield row

"""CSV files that people and spreadsheets write, with commas, semicolons or tabs between the columns."""

from __future__ import annotations

import csv
from pathlib import Path

from tfbig.sources.files import PathLike

SEPARATORS = (",", ";", "\t")
"""Characters between columns; spreadsheets write semicolons where the decimal separator is a comma."""


def read_rows(path: PathLike) -> list[dict[str, str]]:
    """Return the rows of a CSV file in UTF-8, with the columns of its first line; it may begin with a byte order mark.

    Columns are separated by what the first line has: commas, else semicolons, else tabs. As in `csv.DictReader`, a row
    that is too short has None in its last columns, and one that is too long has a list of the others under None.

    Args:
        path: Path of the file.

    Returns:
        A dictionary `{column: cell}` for each row.

    Raises:
        OSError: The file cannot be read.
        UnicodeDecodeError: It is not text in UTF-8.
        csv.Error: It is not a CSV file.
    """
    with Path(path).open(newline="", encoding="utf-8-sig") as file:
        first = file.readline()
        file.seek(0)
        separator = next((mark for mark in SEPARATORS if mark in first), ",")
        return list(csv.DictReader(file, delimiter=separator))

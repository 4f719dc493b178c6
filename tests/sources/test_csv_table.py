"""Tables of people and spreadsheets."""

import csv
import os

import pytest

from tfbig import SourceError
from tfbig.sources import csv_table

ROWS = [{"slide_id": "a", "label": "no, none"}, {"slide_id": "b", "label": "1;2"}]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_separators(separator, encoding, tmp_path):
    path = tmp_path / "table.csv"
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.DictWriter(file, ROWS[0], delimiter=separator)
        writer.writeheader()
        writer.writerows(ROWS)
    assert csv_table.read(path) == (
        [*ROWS[0]],
        [(n, [*row.values()]) for n, row in enumerate(ROWS, 2)],
    )


def test_one_column(tmp_path):
    (tmp_path / "a.csv").write_text("slide\na;b\n")
    assert csv_table.read(tmp_path / "a.csv") == (["slide"], [(2, ["a;b"])])


def test_rows_of_other_lengths(tmp_path):
    (tmp_path / "a.csv").write_text("a;b\n1\n1;2;; \n")
    assert csv_table.read(tmp_path / "a.csv") == (["a", "b"], [(2, ["1", ""]), (3, ["1", "2"])])


def test_lines_are_those_of_the_file(tmp_path):
    """Cells of several lines, and empty lines, count."""
    (tmp_path / "a.csv").write_text('a,b\n\n"x\ny",1\n\nz,2\n')
    assert [line.number for line in csv_table.read(tmp_path / "a.csv")[1]] == [3, 6]


def test_more_cells_than_columns(tmp_path):
    """A decimal comma moves what is after it into the next column."""
    path = tmp_path / "a.csv"
    path.write_text('a,b\n"x\ny",1\nz,1,5000\n')
    with pytest.raises(csv.Error, match="line 4 has 3 cells for 2 columns: put a cell with a com"):
        csv_table.read(path)
    path.write_text('a,b\nz,"1,5000"\n')
    assert csv_table.read(path)[1] == [(2, ["z", "1,5000"])]
    path.write_text("a;b\nz;1,5;2\n")
    with pytest.raises(csv.Error, match=r"line 2 has 3 cells for 2 columns$"):
        csv_table.read(path)


@pytest.mark.parametrize(
    "first", ["slide;time, in months;event", '"a;b",c', "a\tb, c; d\te", "a,b;c"]
)
def test_the_separator_makes_most_columns(first, tmp_path):
    expected = {
        "slide;time, in months;event": ["slide", "time, in months", "event"],
        '"a;b",c': ["a;b", "c"],
        "a\tb, c; d\te": ["a", "b, c; d", "e"],
        "a,b;c": ["a", "b;c"],
    }[first]
    (tmp_path / "a.csv").write_text(f"{first}\nx\n")
    assert csv_table.read(tmp_path / "a.csv")[0] == expected


def test_no_rows(tmp_path):
    (tmp_path / "a.csv").write_text("")
    assert csv_table.read(tmp_path / "a.csv") == ([], [])


def test_errors(tmp_path):
    with pytest.raises(FileNotFoundError):
        csv_table.read(tmp_path / "none.csv")
    (tmp_path / "a.csv").write_bytes(b"a,b\n\xff,1\n")
    with pytest.raises(UnicodeDecodeError):
        csv_table.read(tmp_path / "a.csv")


@pytest.mark.parametrize(
    "text",
    ["a,b\n" + "1\n" * 11, ",".join(map(str, range(40))) + "\n" + "1\n" * 3, "a\n" + "," * 100],
)
def test_tables_that_take_much_memory(text, tmp_path, monkeypatch):
    """Many rows, short rows of many columns, and many cells beside the columns."""
    monkeypatch.setattr(csv_table, "MOST_ROWS", 10)
    monkeypatch.setattr(csv_table, "MOST_CELLS", 100)
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(csv.Error, match=r"it has more than 10 rows, or 100 cells\. Write a"):
        csv_table.read(tmp_path / "a.csv")
    monkeypatch.setattr(csv_table, "MOST_BYTES", 10)
    with pytest.raises(csv.Error, match="at most 10 B are read"):
        csv_table.read(tmp_path / "a.csv")


def test_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "a.csv")
    with pytest.raises(SourceError, match="is not a regular file"):
        csv_table.read(tmp_path / "a.csv")


@pytest.mark.parametrize("character", ["\0", "\x1b", "\x85", "\u2028"])
def test_control_characters(character, tmp_path):
    """They would be printed with the cell, in an error."""
    (tmp_path / "a.csv").write_text(f"a,b\n1,x{character}y\n", encoding="utf-8")
    with pytest.raises(csv.Error, match="line 2 has the control character"):
        csv_table.read(tmp_path / "a.csv")

"""Tables: what is refused, where the files of cells are, numbers, splits and cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tfbig import SourceError
from tfbig.results import run_folder
from tfbig.sources.table import Row, Table, case_of, cases_of


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("head", "advice"),
    [
        ("image,diagnosis", r"It has image, diagnosis\. Rename or add columns\."),
        (",", r"Its first line is empty\."),
        ("image;diagnosis", r"It has image, diagnosis\. Rename or add columns\."),
    ],
)
def test_other_columns_are_named(head: str, advice: str, tmp_path: Path) -> None:
    table = write(tmp_path / "a.csv", f"{head}\nx,y\n" if ";" not in head else f"{head}\nx;y\n")
    wanted = r"line 1: has no column 'slide_id' and no column 'label'; expected a table with columns slide_id, label\. "
    with pytest.raises(SourceError, match=wanted + advice):
        Table.read(table, ("slide_id", "label"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"a\.csv: no such file; expected a table with columns image or image_\*, label\. Check --data\."),
        ("image,label\n", r"a\.csv: has no rows; expected a table with columns image or image_\*, label\. Check --d"),
        ("label\nx\n", r"a\.csv: line 1: has no column 'image' or 'image_\*'; expected"),
        ("image,label\nx,a\n\ny, \n", r"a\.csv: line 4: has no label\. Add one, or remove the line\."),
        ("image,label,label \nx,a,a\nx,a,b\n", r"a\.csv: line 3: has two columns 'label', with a and b; expected"),
        ("image,label\nx,\0\n", r"a\.csv: cannot be read as a CSV file in UTF-8 \(line 2 has the control .*\)\. Che"),
    ],
)  # fmt: skip
def test_what_is_no_table(text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    if text is not None:
        write(path, text)
    with pytest.raises(SourceError, match=message):
        Table.read(path, ["label"], [("image", "image_*")])


def test_cells(tmp_path: Path) -> None:
    """Spaces around cells do not count, cells are one line, and short rows end with empty ones."""
    text = 'slide_id, label,place,,\ns0,red \n"s\n1", red,here\ns2,\tblue\n'
    table = Table.read(write(tmp_path / "a.csv", text), ("slide_id", "label"))
    assert [[row[name] for name in ("slide_id", "label", "place")] for row in table.rows] == [
        ["s0", "red", ""],
        ["s 1", "red", "here"],
        ["s2", "blue", ""],
    ]
    assert [row.place for row in table.rows] == [f"{table.path}: line {n}" for n in (2, 3, 5)]
    changed = table.rows[1] | {"label": 1}
    assert (changed["label"], changed.line, table.rows[1]["label"]) == (1, "line 3", "red")
    assert table.like("label", "pl*") == ["label", "place"]
    joined = Table.read(write(tmp_path / "b.csv", "case_id,,label,case_id,\na,x,1,a,y\n"))
    assert joined.rows[0]["case_id"] == "a"


def test_tables_that_tfbig_wrote(tmp_path: Path) -> None:
    """Names that a spreadsheet would compute are written with an apostrophe, which is no part of them."""
    names = ["=1+1.tif", "-a", "+b", "@c", "'=d", "e"]
    run_folder.write_csv(tmp_path / "slides.csv", [{"slide_id": name} for name in names])
    assert [r["slide_id"] for r in Table.read(tmp_path / "slides.csv").rows] == names


def test_a_path_is_relative_to_the_table_and_else_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two different files of one name are refused: which of both was meant is not known."""
    table = Table(tmp_path / "data" / "t.csv", (), ())
    here = tmp_path / "here"
    for file in (table.folder / "a.tif", table.folder / "both.tif", here / "both.tif", here / "b"):
        write(file, "")
    monkeypatch.chdir(here)
    assert table.file("a.tif") == table.folder / "a.tif"
    assert table.file("b") == Path("b")
    assert table.file("none.tif") == table.folder / "none.tif"
    assert table.file(here / "b") == here / "b"
    with pytest.raises(SourceError, match=r"t\.csv: both\.tif may be .*data/both\.tif, relative"):
        table.file("both.tif")
    monkeypatch.chdir(table.folder)
    assert table.file("both.tif") == table.folder / "both.tif"
    (here / "both.tif").unlink()
    (here / "both.tif").symlink_to(table.folder / "both.tif")
    monkeypatch.chdir(here)
    assert table.file("both.tif") == table.folder / "both.tif"
    assert table.file("x" * 5000) == table.folder / ("x" * 5000)


def test_numbers(tmp_path: Path) -> None:
    table = Table.read(write(tmp_path / "a.csv", "time;value\n12,5;1\n7;nan\n"))
    assert table.numbers("time", "a number", 7) == [12.5, 7.0]
    for column, least, message in (("value", 0, "value 'nan'"), ("time", 8, "time '7'")):
        with pytest.raises(SourceError, match=rf"a\.csv: line 3: {message}; expected a number\."):
            table.numbers(column, "a number", least)


def test_splits() -> None:
    table = Table.of("t.csv", [{"split": "train", "case_id": "7"}, {"split": "val"}])
    assert table.of_split("val") == [{"split": "val"}]
    assert table.of_split("test", may_be_empty=True) == []
    with pytest.raises(SourceError, match=r"t\.csv: none of 2 bags of 2 cases is in split 'test'"):
        table.of_split("test", "bags")
    assert table.tested == "val"
    assert table.with_rows([*table.rows, Row({"split": "test"})]).tested == "test"


def test_cases_of_spreadsheets() -> None:
    """10005 and 10005.0 are one case."""
    rows: list[dict[str, Any]] = [{"case_id": f"1{end}"} for end in ("", ".0", ",0")]
    assert cases_of([*rows, {"patient": "2"}, {}]) == ["1", "1", "1", "2", "row 4"]
    assert case_of({"case_id": "10005.5"}) == "10005.5"
    assert cases_of([{"case_id": "a", "patient": "p"}, {"case_id": "b", "patient": ""}]) == [
        "p",
        "b",
    ]


def test_a_name_has_one_row(tmp_path: Path) -> None:
    table = Table.read(write(tmp_path / "a.csv", "slide_id\na\n\nb\na\n"))
    with pytest.raises(SourceError, match=r"a\.csv: slide a is in line 2 and line 5\. Remove one"):
        table.check_unique("slide_id", "slide")


def test_files_elsewhere(tmp_path: Path) -> None:
    table = Table(tmp_path / "data" / "t.csv", (), ())
    inside, outside = write(table.folder / "a", ""), write(tmp_path / "secret", "")
    (table.folder / "link").symlink_to(outside)
    table.check_inside([inside])
    table.check_inside([inside, table.folder / "link"], tmp_path)
    for path in (outside, table.folder / "link", table.folder / "../secret"):
        with pytest.raises(SourceError, match=f"{path}: lies outside of {table.folder}, and --con"):
            table.check_inside([inside, path])

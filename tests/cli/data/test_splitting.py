"""Which rows train, validate and test: files of splits, folds, the column `split`, and what is drawn."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from cli_runs import write_table
from hypothesis import given
from hypothesis import strategies as st

from tfbig import SourceError
from tfbig.cli.data import splitting
from tfbig.cli.paths import FlagError
from tfbig.sources.table import SPLITS, Row, Table, cases_of

TABLE = Table.of("t.csv", [{"image": f"{number}.png", "label": number % 2} for number in range(20)])


def settings(data="data", test_only=None, **others):
    values = {"shares": (70, 10, 20), "seed": 0} | others
    return SimpleNamespace(data=data, test_only=test_only, **values)


@pytest.fixture
def run(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/config.yaml").write_text(yaml.safe_dump({"data": str(tmp_path / "data")}))
    return tmp_path / "mine"


def splits_of(table):
    return [row["split"] for row in table.rows]


def with_column(*split):
    rows = zip(TABLE.rows, split * 20, strict=False)
    return Table.of(TABLE.path, [row | {"split": split} for row, split in rows])


def test_of_a_training(tmp_path):
    found = splits_of(splitting.with_splits(TABLE, settings(str(tmp_path))))
    assert [found.count(split) for split in ("train", "val", "test")] == [14, 2, 4]


def test_the_column_wins(run):
    table = with_column("val")
    assert splitting.with_splits(table, settings("other", str(run))) == table


def test_an_evaluation_of_the_data_of_the_run_tests_its_share(run, tmp_path, monkeypatch):
    trained = splitting.with_splits(TABLE, settings(str(tmp_path / "data")))
    monkeypatch.chdir(tmp_path)
    assert splitting.with_splits(TABLE, settings("data", str(run))) == trained


def test_an_evaluation_of_other_data_tests_all(run):
    assert set(splits_of(splitting.with_splits(TABLE, settings("other", str(run))))) == {"test"}


def test_the_evaluated_run_had_no_data(tmp_path):
    (tmp_path / "config.yaml").write_text("task: mil\n")
    assert splitting.is_other_data(settings("other", str(tmp_path)))


def test_folds_and_files_of_splits_win_over_the_column(tmp_path):
    """For images and bags as for slides."""
    table = with_column("val")
    folds = splits_of(splitting.with_splits(table, settings(folds=5, fold=1)))
    assert Counter(folds) == {"train": 12, "val": 4, "test": 4}
    file = str(write_table(tmp_path / "s.csv", [{"train": "3.png", "val": "4.png", "test": "5"}]))
    chosen = splitting.with_splits(table, settings(splits=file), "image")
    found = {row["image"]: row["split"] for row in chosen.rows}
    assert found == {"3.png": "train", "4.png": "val", "5.png": "test"}
    with pytest.raises(FlagError, match="--group site: needs --folds"):
        splitting.with_splits(table, settings(group="site"))


@pytest.mark.parametrize("column", ["case_id", "patient"])
@pytest.mark.parametrize("several", [1, 3])
def test_a_case_in_two_splits_is_refused(column, several):
    """A case in two splits is refused in tables of images, slides, bags and masks, and in files of splits."""
    rows = [{column: f"P{n}", "split": s} for n in range(several) for s in ("test", "train")]
    table = Table.of("t.csv", rows)
    more = f", and so are {several - 1} more cases in several" if several > 1 else ""
    message = f"the case 'P0' is in the splits test and train{more}; expected all rows of a case in"
    with pytest.raises(SourceError, match=message):
        table.check_cases()
    with pytest.raises(SourceError, match=message):
        splitting.with_splits(table, settings())
    splitting.with_splits(table, settings(test_only="run"))  # trains on nothing
    Table.of(
        "t.csv", [{"split": "train"}, {column: "", "split": "test"}, {column: "", "split": ""}]
    ).check_cases()


@pytest.mark.parametrize("column", ["path", "files", "images"])
def test_a_file_in_two_splits_is_said(column, tmp_path, capsys):
    """A file is trained on and judged under two names, of which one may be a link; it may be twice in one split."""
    (tmp_path / "a.png").touch()
    (tmp_path / "link.png").symlink_to("a.png")
    paths = [tmp_path / name for name in ("a.png", "b.png", "link.png")]
    cells = [p if column == "path" else (p, tmp_path / f"{n}.npy") for n, p in enumerate(paths)]
    rows = [
        Row({column: cell, "split": "train"}, f"t.csv: line {n}") for n, cell in enumerate(cells)
    ]
    missing = Row({column: None, "split": "test"}, "t.csv: line 9")
    splitting.with_splits(Table.of("t.csv", [*rows, missing]), settings(), files=column)
    table = Table.of("t.csv", [*rows[:2], rows[2] | {"split": "val"}])
    splitting.with_splits(table, settings(test_only="run"), files=column)  # trains on nothing
    splitting.with_splits(table, settings(), files=None)
    assert not capsys.readouterr().err
    splitting.with_splits(table, settings(), files=column)
    said = (
        f"1 file is in two splits, such as {paths[2]} in train by line 0 and in val by line 2: res"
    )
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("flags", [{}, {"folds": 3}])
def test_rows_of_one_file_need_one_case(flags, tmp_path, capsys):
    """Splits and folds are drawn by case, so rows of one file may get two splits."""
    cells = [{"label": "0", "path": tmp_path / f"{n % 6}.svs"} for n in range(12)]
    cases = [row | {"case_id": f"P{n % 6}"} for n, row in enumerate(cells)]
    splitting.with_splits(Table.of("t.csv", cases), settings(**flags))
    assert not capsys.readouterr().err
    splitting.with_splits(Table.of("t.csv", cells), settings(**flags))
    assert "if splits are drawn, give both one case" in capsys.readouterr().err


def test_a_split_that_is_none(run):
    for flags in ({}, {"test_only": str(run)}):
        with pytest.raises(SourceError, match=r"t\.csv: split 'tarin'; expected train, val or t"):
            splitting.with_splits(with_column("train", "tarin"), settings(**flags))


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["", *"0123456789"])),
        min_size=1,
        max_size=40,
    ),
    st.tuples(*[st.integers(1, 9)] * 3),
    st.integers(0, 3),
)
def test_drawn_splits(rows, shares, seed):
    """Each row is in one split with all others of its case, and shares of cases are exact up to one."""
    cells = [{"label": label, "case_id": case, "n": n} for n, (label, case) in enumerate(rows)]
    table = Table.of("t.csv", cells)
    drawn = splitting.with_splits(table, settings(shares=shares, seed=seed))
    assert [row["n"] for row in drawn.rows] == [*range(len(rows))]
    drawn.check_splits()
    drawn.check_cases()
    split_of_case = dict(zip(cases_of(drawn.rows), splits_of(drawn), strict=True))
    counts = np.array([[*split_of_case.values()].count(split) for split in SPLITS])
    assert (abs(counts - np.array(shares) / sum(shares) * len(split_of_case)) < 1).all()
    assert drawn == splitting.with_splits(table, settings(shares=shares, seed=seed))


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 11)), min_size=40, max_size=60),
    st.integers(3, 4),
)
def test_folds(rows, folds):
    """Each case is tested in one fold, and is in one split of each."""
    cells = [{"label": "0", "case_id": f"P{case}", "n": n} for n, (_, case) in enumerate(rows)]
    table, tested = Table.of("t.csv", cells), []
    if len({*cases_of(table.rows)}) < folds:
        return
    for fold in range(folds):
        found = splitting.with_splits(table, settings(folds=folds, fold=fold))
        found.check_splits()
        found.check_cases()
        tested += [row["n"] for row in found.rows if row["split"] == "test"]
    assert sorted(tested) == [*range(len(rows))]

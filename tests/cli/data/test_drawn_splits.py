"""Splits of tables without a column `split`."""

from types import SimpleNamespace

import pytest
import yaml

from tfbig.cli.data import drawn_splits

ROWS = [{"image": f"{number}.png", "label": number % 2} for number in range(20)]


def settings(data, test_only=None):
    return SimpleNamespace(data=data, test_only=test_only, shares=(70, 10, 20), seed=0)


@pytest.fixture
def run(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/config.yaml").write_text(yaml.safe_dump({"data": str(tmp_path / "data")}))
    return tmp_path / "mine"


def splits_of(rows):
    return [row["split"] for row in rows]


def test_of_a_training(tmp_path):
    found = splits_of(drawn_splits.with_splits(ROWS, settings(str(tmp_path))))
    assert [found.count(split) for split in ("train", "val", "test")] == [14, 2, 4]


def test_the_column_wins(run):
    rows = [row | {"split": "val"} for row in ROWS]
    assert drawn_splits.with_splits(rows, settings("other", str(run))) == rows


def test_an_evaluation_of_the_data_of_the_run_tests_its_share(run, tmp_path, monkeypatch):
    trained = drawn_splits.with_splits(ROWS, settings(str(tmp_path / "data")))
    monkeypatch.chdir(tmp_path)
    assert drawn_splits.with_splits(ROWS, settings("data", str(run))) == trained


def test_an_evaluation_of_other_data_tests_all(run):
    assert set(splits_of(drawn_splits.with_splits(ROWS, settings("other", str(run))))) == {"test"}


def test_the_evaluated_run_had_no_data(tmp_path):
    (tmp_path / "config.yaml").write_text("task: mil\n")
    assert drawn_splits.is_other_data(settings("other", str(tmp_path)))

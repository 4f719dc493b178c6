"""Run folders: creation, tables, damaged files, and the history of a recorder."""

import csv
import os

import pytest

from tfbig import SourceError
from tfbig.results import run_folder


def test_create_refuses_a_run_and_a_file(tmp_path):
    folder = run_folder.create(tmp_path / "a" / "run")
    assert run_folder.create(folder) == folder  # empty
    run_folder.write_yaml(folder / run_folder.CONFIG, {"task": "mil"})
    with pytest.raises(FileExistsError, match=r"already contains a run\. Resume it with --resume"):
        run_folder.create(folder)
    with pytest.raises(FileExistsError, match=r"config\.yaml: is a file; expected a folder"):
        run_folder.create(folder / run_folder.CONFIG)


@pytest.mark.parametrize("name", ["checkpoints/step-1", "model.keras", "history.csv"])
def test_create_refuses_parts_of_a_run(name, tmp_path):
    write(tmp_path, {"plan.txt": "", name: ""})
    found = name.partition("/")[0]
    with pytest.raises(FileExistsError, match=rf"contains {found} of a run, but no config\.yaml"):
        run_folder.create(tmp_path)


ONE = "epoch,loss\n1,0.5\n"
TWO = f"{ONE}2,0.4\n"


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"config.yaml": "task: mil\n", "checkpoints/.epoch-1-kept.weights.h5": ""},
        {"history.csv": ONE},  # killed before the first checkpoint
        {"history.csv": TWO, "model.keras": "", "checkpoints/step-000000002.safetensors": ""},
    ],
)
def test_runs_that_can_be_continued(files, tmp_path):
    write(tmp_path, files)
    run_folder.check_checkpoints(tmp_path)


@pytest.mark.parametrize(
    ("files", "epochs"),
    [
        ({"history.csv": TWO}, "2 epochs"),
        ({"history.csv": f"{TWO}\0\0"}, "3 epochs"),
        (
            {"history.csv": ONE, "model.keras": "", "checkpoints/.epoch-1-kept.weights.h5": ""},
            "1 epoch",
        ),
        ({"model.keras": ""}, "0 epochs"),
    ],
)
def test_runs_without_checkpoints(files, epochs, tmp_path):
    write(tmp_path, files)
    message = rf"{tmp_path}: has results of {epochs}, but no file checkpoints/step-\*"
    with pytest.raises(SourceError, match=message):
        run_folder.check_checkpoints(tmp_path)


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def test_read_json(tmp_path):
    path = tmp_path / "a.json"
    assert run_folder.read_json(path) == {}
    run_folder.write_json(path, {"b": [1, 2], "a": None})
    assert list(run_folder.read_json(path).items()) == [("b", [1, 2]), ("a", None)]
    for text in ("{", "[]"):
        path.write_text(text)
        with pytest.raises(SourceError, match=r"a\.json: is damaged"):
            run_folder.read_json(path)


def test_text_with_file_names_that_are_not_utf8(tmp_path):
    run_folder.write_text(tmp_path / "a.txt", os.fsdecode(b"slide-\xff.tif"))
    assert (tmp_path / "a.txt").read_text() == r"slide-\udcff.tif"


FORMULAS = ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\tx", "'=x", "''-y", "=1"]
TEXTS = ["a=b", "-1.5", "+3", "-inf", "'quoted'", "", "a-b"]


def test_texts_that_spreadsheets_compute(tmp_path):
    rows = [{"slide": text, "=column": -0.5} for text in FORMULAS + TEXTS]
    run_folder.write_csv(tmp_path / "a.csv", rows)
    with open(tmp_path / "a.csv", newline="") as file:
        header, *stored = csv.reader(file)
    assert header == ["slide", "'=column"]
    assert [row[0] for row in stored] == [*(f"'{text}" for text in FORMULAS), *TEXTS]
    assert {row[1] for row in stored} == {"-0.5"}
    assert [row["slide"] for row in run_folder.read_rows(tmp_path / "a.csv")] == FORMULAS + TEXTS
    run_folder.replace_row(tmp_path / "a.csv", "slide", FORMULAS[0], None)
    remaining = [row["slide"] for row in run_folder.read_rows(tmp_path / "a.csv")]
    assert remaining == FORMULAS[1:] + TEXTS


def test_replace_row(tmp_path):
    table = tmp_path / "table.csv"
    run_folder.replace_row(table, "slide", "a", None)
    assert not table.exists()
    for slide, score in (("a", 1), ("b", 2), ("a", 3)):
        run_folder.replace_row(table, "slide", slide, {"slide": slide, "score": score})
    rows = [{"slide": "b", "score": "2"}, {"slide": "a", "score": "3"}]
    assert run_folder.read_rows(table) == rows
    for slide in "ab":
        run_folder.replace_row(table, "slide", slide, None)
    assert not table.exists()


def test_items_that_were_left_out(tmp_path):
    metrics = {"left_out": [["a", "is gone"]]}
    assert run_folder.left_out(tmp_path, {}) == []
    assert run_folder.left_out(tmp_path, metrics) == [{"item": "a", "reason": "is gone"}]
    rows = [{"item": name, "reason": "is gone"} for name in "ab"]
    run_folder.write_csv(tmp_path / run_folder.FAILED, rows)
    assert run_folder.left_out(tmp_path, metrics) == rows


def test_identity_of_a_run_does_not_change(tmp_path):
    run_folder.write_versions(tmp_path)
    identity = run_folder.identity(tmp_path)
    run_folder.write_versions(tmp_path)
    assert run_folder.identity(tmp_path) == identity


def test_recorder(tmp_path):
    """The third step takes longest; the table has the median."""
    times = iter([0.0, 1.0, 1.0, 3.0, 3.0, 9.0])
    recorder = run_folder.Recorder(tmp_path, lambda: next(times))
    for batch in range(3):
        recorder.on_train_batch_begin(batch)
        recorder.on_train_batch_end(batch)
    recorder.on_epoch_end(0, {"loss": 0.5})
    assert run_folder.read_csv(tmp_path / "history.csv") == [
        {"epoch": 1.0, "loss": 0.5, "seconds_per_step": 2.0}
    ]
    resumed = run_folder.Recorder(tmp_path)
    resumed.restore_state(recorder.checkpoint_state())
    assert (resumed.history, resumed.new, recorder.new) == (recorder.history, 0, 1)

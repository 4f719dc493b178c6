"""`--resume`: which settings may be others than those of the run, and what is told of a folder that is damaged."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import train

QUICK = [
    "--task",
    "mil",
    "--num-bags",
    "4",
    "4",
    "4",
    "--instances",
    "6",
    "--epochs",
    "1",
    "--quiet",
]


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The folder of a run."""
    folder = tmp_path_factory.mktemp("run") / "out"
    assert train.main([*QUICK, "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def out(ended, tmp_path):
    """A copy of it."""
    return Path(shutil.copytree(ended, tmp_path / "out"))


def resume(out, *flags):
    return train.main(["--out", str(out), "--resume", *flags])


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--seed", "3"), "--resume goes on as the run in .* began, but seed 0 -> 3. Leave"),
        (("--monitor", "accuracy", "--keep", "last"), "monitor loss -> accuracy"),
        (("--model", "dtfd"), "model abmil -> dtfd"),
        (("--precision", "float64"), "precision float32 -> float64"),
        (("--optimizer", "adamw"), "optimizer adam -> adamw"),
        (("--mode", "frozen"), "mode accumulate -> frozen"),
        (("--task", "patchgd"), "is a run of --task mil, not patchgd"),
    ],
)
def test_what_would_be_another_run_is_refused_and_nothing_changed(flags, told, out, capsys):
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    with pytest.raises(SystemExit) as stopped:
        resume(out, *flags)
    assert stopped.value.code == 2
    assert re.search(told, capsys.readouterr().err)
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before


def test_what_may_be_others_is_told(out, capsys):
    assert resume(out, "--epochs", "2", "--lr", "0.01") == 0
    assert "goes on with epochs 1 -> 2; lr 0.001 -> 0.01" in capsys.readouterr().out
    assert yaml.safe_load((out / "config.yaml").read_text())["lr"] == 0.01
    assert json.loads((out / "metrics.json").read_text())["epochs"] == 2


def test_a_run_that_goes_on_has_not_ended(out, monkeypatch):
    seen = []

    def fit(*given):
        seen.append((out / "metrics.json").exists())
        raise KeyboardInterrupt

    monkeypatch.setattr("tfbig.cli.tasks.mil.fit", fit)
    with pytest.raises(KeyboardInterrupt):
        resume(out, "--epochs", "2")
    assert seen == [False]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("config.yaml", "", "config.yaml: is empty; expected the settings of the run"),
        ("versions.json", "", "versions.json: is damaged"),
        ("versions.json", "[]", "versions.json: is damaged; expected names and values"),
        ("versions.json", None, "versions.json: is not there, by which the run knows"),
        ("rates.json", "{", "rates.json: is damaged"),
        ("rates.json", '{"a": {"b": 1}}', "rates.json: holds no rates of a machine"),
        ("kept.weights.h5", "", "kept.weights.h5: the weights of the epoch that --keep chose"),
        ("kept.weights.h5", None, "kept.weights.h5: the weights of the epoch that --keep chose"),
    ],
)
def test_a_damaged_file_of_the_folder_is_named(name, content, told, out, capsys):
    file = out / name
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    try:
        code = resume(out)
    except SystemExit as stopped:
        code = stopped.code
    assert code in (1, 2)
    assert told in capsys.readouterr().err


def test_a_folder_in_which_another_process_trains_is_left_alone(out, capsys):
    holds = (
        "import sys, fcntl, os; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX);"
        "print('has it', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", holds, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with other:
        assert other.stdout.readline() == b"has it\n"
        assert resume(out, "--epochs", "2") == 1
        assert "another process trains in it" in capsys.readouterr().err
        assert (out / "metrics.json").exists()
        other.stdin.close()
    assert resume(out) == 0
    assert "all of its epochs were done before" in capsys.readouterr().out


def test_labels_are_no_flags(out):
    """Whatever they begin with: names of classes come from a table, and are settings of the run."""
    known = yaml.safe_load((out / "config.yaml").read_text())
    known["class_names"] = ["-a", "--epochs=7"]
    (out / "config.yaml").write_text(yaml.safe_dump(known))
    found = train.settings_of(["--out", str(out), "--resume"])
    assert found.class_names == ["-a", "--epochs=7"]
    assert found.epochs == 1


def test_a_cluster_without_this_worker_is_refused(tmp_path, monkeypatch, capsys):
    assert train.main([*QUICK, "--strategy", "multiworker"]) == 1
    assert "needs --out FOLDER, which all workers see" in capsys.readouterr().err
    flags = [*QUICK, "--strategy", "multiworker", "--out", str(tmp_path / "out")]
    alone = json.dumps({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 3}})
    for text in ("{bad", "{}", "[]", alone):
        monkeypatch.setenv("TF_CONFIG", text)
        assert train.main(flags) == 1
        told = capsys.readouterr().err
        assert f"TF_CONFIG is {text!r}, in which this worker is not found" in told
    assert not (tmp_path / "out").exists()

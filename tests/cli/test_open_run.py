"""The lock of a run folder, and the epochs that were done in it."""

import shutil
import subprocess
import sys

import pytest
from cli_runs import MIL
from samples import PROGRAMS

import train
from tfbig.cli import open_run
from tfbig.cli.settings.flag import to_save
from tfbig.results import run_folder


@pytest.mark.slow
def test_locked_folder(mil_run, tmp_path, capsys):
    out = tmp_path / "out"
    shutil.copytree(mil_run.folder, out)
    resume = ["--out", str(out), "--resume"]
    command = [sys.executable, str(PROGRAMS / "hold_lock.py"), str(out)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with other:
        assert other.stdout.readline() == b"locked\n"
        assert train.main([*resume, "--epochs", "2"]) == 1
        assert "another process trains in it" in capsys.readouterr().err
        assert (out / "metrics.json").exists()
        other.stdin.close()
    assert train.main(resume) == 0
    assert "all epochs are already done" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "folders"), [((), ("",)), (("--seeds", "2"), ("seed-0", "seed-1"))]
)
def test_epochs_that_are_done(flags, folders, tmp_path):
    """A run, or a series, has at least the epochs that it has done."""
    argv = [*MIL, *flags, "--epochs", "3", "--out", str(tmp_path)]
    for number, name in enumerate(folders, 4):
        (tmp_path / name).mkdir(exist_ok=True)
        rows = [{"epoch": epoch, "loss": 0.5} for epoch in range(number)]
        run_folder.write_csv(tmp_path / name / run_folder.HISTORY, rows)
    settings = train.settings_of([*argv, "--resume"])
    assert open_run.with_done_epochs(settings).epochs == 3  # there is no run yet
    run_folder.write_yaml(tmp_path / run_folder.CONFIG, to_save(settings))
    for epochs, expected in (("2", 3 + len(folders)), ("7", 7)):
        settings = train.settings_of(["--out", str(tmp_path), "--resume", "--epochs", epochs])
        assert open_run.with_done_epochs(settings).epochs == expected
    assert open_run.with_done_epochs(train.settings_of(argv)).epochs == 3

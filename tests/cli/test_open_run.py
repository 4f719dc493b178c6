"""The lock of a run folder."""

import shutil
import subprocess
import sys

import pytest
from samples import PROGRAMS

import train


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

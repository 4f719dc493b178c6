"""Resources of a run: devices and clusters."""

import json

import pytest
from cli_runs import MIL, run_segmentation

import train
from tfbig.cli import machine
from tfbig.cli.settings import training
from tfbig.system import budget


def test_unknown_device(data, tmp_path, capsys):
    assert run_segmentation(data, tmp_path / "one", "--dry-run", "--devices", "CPU:0") == 0
    assert run_segmentation(data, tmp_path / "none", "--dry-run", "--devices", "GPU:99") == 2
    assert "--devices 'GPU:99': no such device" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("mode", "available", "warned"),
    [("device", 2**20, True), ("device", 2**40, False), ("offload", 2**32, False)],
)
def test_memory_of_plain_keras(mode, available, warned, data, tmp_path, monkeypatch, capsys):
    """Plain Keras has no limit of memory, so a step that cannot fit is named before it begins."""
    monkeypatch.setattr(budget, "available_bytes", lambda: available)
    assert run_segmentation(data, tmp_path / "out", "--dry-run", "--mode", mode) == 0
    errors = capsys.readouterr().err
    assert ("step of plain Keras on the largest image is planned to take" in errors) == warned
    assert ("0.0 GiB are available" in errors) == warned


def test_budgets_that_are_given_stay():
    flags = ["--host-memory", "3GB", "--disk", "5GB", "--device-memory", "1GB"]
    settings = machine.fixed_budget(training.parse([*MIL, *flags]))
    assert (settings.host_memory, settings.disk, settings.device_memory) == ("3GB", "5GB", "1GB")
    fixed = machine.fixed_budget(training.parse(MIL))
    assert int(fixed.host_memory) > 0 and int(fixed.disk) >= 0


def test_cluster_without_this_worker(tmp_path, monkeypatch, capsys):
    assert train.main([*MIL, "--strategy", "multiworker"]) == 2
    assert "needs --out FOLDER, on a file system that all workers share" in capsys.readouterr().err
    flags = [*MIL, "--strategy", "multiworker", "--out", str(tmp_path / "out")]
    alone = json.dumps({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 3}})
    for text in ("{bad", "{}", "[]", alone):
        monkeypatch.setenv("TF_CONFIG", text)
        assert train.main(flags) == 1
        errors = capsys.readouterr().err
        assert f"TF_CONFIG is {text!r}, which does not contain this worker" in errors
    assert not (tmp_path / "out").exists()

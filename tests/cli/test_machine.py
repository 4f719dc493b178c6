"""Resources of a run: devices and clusters."""

import json

from cli_runs import MIL, run_segmentation

import train


def test_unknown_device(data, tmp_path, capsys):
    assert run_segmentation(data, tmp_path / "one", "--dry-run", "--devices", "CPU:0") == 0
    assert run_segmentation(data, tmp_path / "none", "--dry-run", "--devices", "GPU:99") == 1
    assert "--devices 'GPU:99': no such device" in capsys.readouterr().err


def test_cluster_without_this_worker(tmp_path, monkeypatch, capsys):
    assert train.main([*MIL, "--strategy", "multiworker"]) == 1
    assert "needs --out FOLDER, on a file system that all workers share" in capsys.readouterr().err
    flags = [*MIL, "--strategy", "multiworker", "--out", str(tmp_path / "out")]
    alone = json.dumps({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 3}})
    for text in ("{bad", "{}", "[]", alone):
        monkeypatch.setenv("TF_CONFIG", text)
        assert train.main(flags) == 1
        errors = capsys.readouterr().err
        assert f"TF_CONFIG is {text!r}, which does not contain this worker" in errors
    assert not (tmp_path / "out").exists()

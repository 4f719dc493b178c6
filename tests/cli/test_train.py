"""`train.py` from the command line to the run folder, on small slides."""

import csv
import json

import keras
import numpy as np
import pytest
import tifffile
import yaml
from samples import tissue, write_slide

import train

QUICK = ["--crop", "128x256", "--crops", "3", "--epochs", "2", "--seed", "4"]
FILES = {
    "checkpoints",
    "config.yaml",
    "history.csv",
    "learning_curve.png",
    "metrics.json",
    "model.keras",
    "overlay.png",
    "plan.txt",
    "rates.json",
    "report.html",
    "versions.json",
    "views",
}


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "slides"
    for name in "abc":
        write_slide(folder / f"{name}.tif", ord(name))
    return folder


def run(data, out, *flags):
    return train.main(["--data", str(data), "--out", str(out), *QUICK, *flags])


def history(folder):
    rows = csv.DictReader((folder / "history.csv").read_text().splitlines())
    return [{key: float(value) for key, value in row.items()} for row in rows]


def metrics(folder):
    return json.loads((folder / "metrics.json").read_text())


def test_dry_run_prints_the_plan_and_writes_nothing(data, tmp_path, capsys):
    assert run(data, tmp_path / "out", "--dry-run") == 0
    assert "Plan for an image of 1 x 128 x 256 x 1" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_both_modes_train_alike_and_leave_a_whole_folder(data, tmp_path):
    offload, device = tmp_path / "offload", tmp_path / "device"
    assert run(data, offload, "--mode", "offload", "--device-memory", "1MB") == 0
    assert run(data, device, "--mode", "device") == 0
    for folder in (offload, device):
        assert {p.name for p in folder.iterdir()} == FILES
        assert yaml.safe_load((folder / "config.yaml").read_text())["seed"] == 4
        assert (folder / "overlay.png").read_bytes().startswith(b"\x89PNG")
        assert [r["epoch"] for r in history(folder)] in ([0, 1], [1, 2])
    a, b = metrics(offload), metrics(device)
    for key in ("loss", "val_loss"):
        assert abs(a[key] - b[key]) <= 1e-5
    assert abs(a["val_dice"] - b["val_dice"]) <= 1e-4  # a pixel at 0.5 may fall to either side
    for key in ("seconds_per_step", "peak_bytes", "planned_bytes"):
        assert a[key] > 0
    loaded = keras.saving.load_model(offload / "model.keras")
    assert loaded.count_params() == 4492


def test_unified_stands_beside_offload(data, tmp_path, capsys):
    """The same data and seed: the same loss, with time and memory of both in metrics and report."""
    offload, unified = tmp_path / "offload", tmp_path / "unified"
    assert run(data, offload, "--mode", "offload", "--device-memory", "1MB") == 0
    assert run(data, unified, "--mode", "unified", "--beside", str(offload)) == 0
    assert "unified memory on" in capsys.readouterr().out
    a, b = metrics(offload), metrics(unified)
    assert {p.name for p in unified.iterdir()} == FILES
    assert b["beside"]["loss_difference"] == abs(a["loss"] - b["loss"]) <= 1e-5
    for key in ("mode", "loss", "seconds_per_step", "peak_bytes"):
        assert b["beside"][key] == a[key]
    page = (unified / "report.html").read_text()
    assert "Beside another run" in page
    assert f"{a['loss']:.6f}" in page
    assert f"{b['loss']:.6f}" in page


def test_devices_are_named(data, tmp_path, capsys):
    assert run(data, tmp_path / "one", "--dry-run", "--devices", "CPU:0") == 0
    assert run(data, tmp_path / "none", "--dry-run", "--devices", "GPU:99") == 1
    assert "--devices: devices='GPU:99': there is none" in capsys.readouterr().err


def test_beside_a_run_that_has_not_ended_is_an_error(data, tmp_path, capsys):
    assert run(data, tmp_path / "out", "--beside", str(tmp_path / "none")) == 1
    assert "has no metrics.json" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_run_is_not_overwritten_but_continued_after_its_last_epoch(data, tmp_path, capsys):
    assert run(data, tmp_path / "out") == 0
    before = history(tmp_path / "out")
    assert run(data, tmp_path / "out") == 1
    assert "--resume" in capsys.readouterr().err
    assert history(tmp_path / "out") == before
    assert run(data, tmp_path / "out", "--resume", "--epochs", "3") == 0
    after = history(tmp_path / "out")
    assert after[:2] == before
    assert len(after) == 3


def test_flags_override_a_configuration_file(data, tmp_path):
    config = tmp_path / "mine.yaml"
    config.write_text("epochs: 7\nlr: 0.002\n")
    assert run(data, tmp_path / "out", "--config", str(config), "--epochs", "1") == 0
    saved = yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())
    assert (saved["epochs"], saved["lr"]) == (1, 0.002)


def test_a_budget_below_one_strip_ends_in_one_line(data, tmp_path, capsys):
    assert run(data, tmp_path / "out", "--device-memory", "1KB") == 1
    message = capsys.readouterr().err
    assert "smallest strip needs" in message
    assert "Raise `device` to" in message
    assert not (tmp_path / "out" / "metrics.json").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("b.tif", b"this is no image", "b.tif"),
        ("b.png", b"nor this", "b.png"),
    ],
)
def test_a_file_that_is_no_image_ends_in_one_line(data, tmp_path, capsys, name, content, message):
    (data / "b.tif").unlink()
    (data / name).write_bytes(content)
    assert run(data, tmp_path / "out", "--strict") == 1
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()


def test_a_truncated_tiff_ends_in_one_line(data, tmp_path, capsys):
    path = data / "b.tif"
    path.write_bytes(path.read_bytes()[:-2000])
    assert run(data, tmp_path / "out", "--strict") == 1
    assert "b.tif" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_slide_smaller_than_the_stride_is_named(data, tmp_path, capsys):
    tifffile.imwrite(data / "b.tif", tissue(1)[:100], photometric="rgb")
    assert run(data, tmp_path / "out", "--strict") == 1
    assert "expected at least 128 x 128, the stride" in capsys.readouterr().err


def test_a_mask_of_another_size_is_named(data, tmp_path, capsys):
    (data / "masks").mkdir()
    np.save(data / "masks" / "a.npy", np.ones((256, 200, 1), np.uint8))
    assert run(data, tmp_path / "out", "--strict") == 1
    error = capsys.readouterr().err
    assert "256 x 200" in error
    assert "256 x 384" in error


def test_a_loss_that_is_not_finite_stops_the_run(data, tmp_path, capsys):
    assert run(data, tmp_path / "out", "--lr", "1e30") == 1
    assert "loss" in capsys.readouterr().err
    assert not (tmp_path / "out" / "metrics.json").exists()


def test_a_history_for_tensorboard_and_no_bars(data, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(data, out, "--tensorboard", "--quiet") == 0
    events = list((out / "tensorboard").rglob("events.out.tfevents.*"))
    assert {path.parent.name for path in events} == {"train", "validation"}
    assert "Epoch 1/2" not in capsys.readouterr().out
    assert "quiet" not in yaml.safe_load((out / "config.yaml").read_text())


def test_without_tensorboard_the_line_that_installs_it(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run(data, tmp_path / "out", "--tensorboard") == 1
    assert "pip install 'tfbig[log]'" in capsys.readouterr().err

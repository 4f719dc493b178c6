"""train.py under failures: complete files, clear messages, and resumed runs equal undisturbed ones."""

import csv
import errno
import gc
import json
import os
import shutil
import signal
import subprocess
import time

import cli_runs
import keras
import numpy as np
import pytest
import target_bags
import yaml
from cli_runs import failures, history, predictions, rows_of, run_segmentation
from PIL import Image
from safetensors.numpy import load_file
from samples import write_slide

import train
from tfbig import training
from tfbig.results import figures
from tfbig.sources.slides.tiff import TiffSource
from tfbig.system import progress, signals

slow = pytest.mark.slow


def stop_by(number):
    """Send this process a signal, and wait until its handler has run."""
    os.kill(os.getpid(), number)
    end = time.monotonic() + 60
    while signals.requested() is None:
        assert time.monotonic() < end
        time.sleep(0.001)


def run(data, out, *flags):
    return run_segmentation(data, out, "--quiet", *flags)


def newest(out):
    return load_file(max((out / "checkpoints").glob("step-*.safetensors")))


def assert_as_undisturbed(out, undisturbed):
    """Check that a run equals one without failures, bit by bit."""
    weights, expected = newest(out), newest(undisturbed.folder)
    assert len(weights) == len(expected)
    for key, same in zip(
        sorted(weights), sorted(expected), strict=True
    ):  # in the order of variables
        np.testing.assert_array_equal(weights[key], expected[same], err_msg=key)
    assert (out / "metrics.json").exists()


def assert_whole(folder):
    """Check that every file can be read to its end."""
    readers = {
        ".json": lambda p: json.loads(p.read_text()),
        ".yaml": lambda p: yaml.safe_load(p.read_text()),
        ".csv": lambda p: list(csv.DictReader(p.read_text().splitlines())),
        ".png": lambda p: Image.open(p).load(),
        ".jpg": lambda p: Image.open(p).load(),
        ".keras": keras.models.load_model,
        ".safetensors": load_file,
        ".html": lambda p: p.read_text().rstrip().endswith("</html>") or pytest.fail(str(p)),
        ".txt": lambda p: p.read_text(),
        ".md": lambda p: p.read_text(),
        ".h5": lambda p: p.stat().st_size,
    }
    for path in folder.rglob("*"):
        if path.is_file() and not path.name.startswith("."):
            readers[path.suffix](path)


@pytest.fixture
def at_tick(monkeypatch):
    """Return a function that calls another one at the n-th strip of a sweep."""

    def do(number, action):
        left, tick = [number], progress.Meter.tick

        def ticking(self, what, *arguments):
            if what.startswith(("forward", "backward")):
                left[0] -= 1
                if left[0] == 0:
                    action()
            tick(self, what, *arguments)

        monkeypatch.setattr(progress.Meter, "tick", ticking)

    return do


def truncate(path):
    """Cut a slide, and forget its tiles: all tiles of such a small slide are in memory."""
    os.truncate(path, 3000)
    forget_tiles()


def forget_tiles():
    """Empty the caches of all open slides."""
    for item in gc.get_objects():
        if isinstance(item, TiffSource) and hasattr(item, "_cached"):  # opened in full
            item._cached.clear()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 130, marks=slow), (signal.SIGTERM, 143)]
)
def test_signal(number, code, data, segmentation_run, tmp_path, at_tick, capsys):
    at_tick(20, lambda: stop_by(number))
    out = tmp_path / "out"
    assert run(data, out) == code
    errors = capsys.readouterr().err
    assert "stopping after this strip, with a checkpoint; press again to quit at once" in errors
    assert f"stopped by {number.name}; --resume with --out continues from here" in errors
    assert not (out / "metrics.json").exists()
    assert_whole(out)
    assert run(data, out, "--resume") == 0
    assert_as_undisturbed(out, segmentation_run)


@pytest.mark.slow
def test_slide_becomes_unreadable(data, tmp_path, at_tick, capsys):
    path = data / "b.tif"
    at_tick(1, lambda: truncate(path))
    out = tmp_path / "out"
    assert run(data, out, "--epochs", "1") == 3
    (row,) = csv.DictReader((out / "failed.csv").read_text().splitlines())
    assert row["item"] == str(path)
    assert "skipped" in capsys.readouterr().err
    assert (out / "metrics.json").exists()
    assert_whole(out)


@slow
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_features_that_are_not_finite(split, tmp_path):
    splits = ["train"] * 4 + ["val"] * 2 + ["test"] * 2
    folder = target_bags.write(tmp_path / "bags", "class", splits=splits)
    path = folder / f"case{splits.index(split)}-0.npy"
    features = np.load(path)
    features[1, 2] = np.inf
    np.save(path, features)
    out = tmp_path / "out"
    assert target_bags.run(folder, out, "class", "--epochs", "1") == 3
    (row,) = failures(out)
    assert row["item"] == str(path)
    assert "the array has NaN or infinity in instance 1" in row["reason"]
    assert all(np.isfinite(float(value)) for value in history(out)[0].values())
    assert len(predictions(out)) == 2 - (split == "test")


@slow
@pytest.mark.parametrize("task", ["mil", "patchgd", "offload"])
def test_test_slide_becomes_unreadable(task, cohort_data, tmp_path, monkeypatch):
    """After training, before it is evaluated: the others are."""
    flags = [*cli_runs.SLIDE_BAGS] if task == "mil" else cli_runs.whole_slides(task)
    flags += ["--head", "smaller"] if task != "mil" else []
    out, draw = tmp_path / "out", figures.learning_curve

    def damage_and_draw(*arguments):
        tests = [row["slide_id"] for row in rows_of(out / "slides.csv") if row["split"] == "test"]
        damaged.append(next(cohort_data.parent.rglob(f"{tests[0]}*")))
        truncate(damaged[0])
        draw(*arguments)

    damaged = []
    monkeypatch.setattr(figures, "learning_curve", damage_and_draw)
    assert train.main([*flags, "--data", str(cohort_data), "--out", str(out)]) == 3
    assert str(damaged[0]) in {row["item"] for row in failures(out)}
    names = [row.get("bag") or row["image"] for row in predictions(out)]
    assert names
    assert not any(damaged[0].stem in name for name in names)
    assert_whole(out)


@slow
@pytest.mark.parametrize("when", ["open", "stale"])
def test_slide_deleted_while_read(when, data, segmentation_run, tmp_path, at_tick, monkeypatch):
    """An open file can be read to its end, but a file server reports a stale file handle."""
    path = data / "b.tif"

    def delete():
        path.unlink()
        if when == "stale":
            read = os.preadv

            def stale(descriptor, *arguments):
                if os.fstat(descriptor).st_nlink == 0:
                    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
                return read(descriptor, *arguments)

            monkeypatch.setattr(os, "preadv", stale)
            forget_tiles()

    whole = path.read_bytes()
    at_tick(1, delete)
    out = tmp_path / "out"
    assert run(data, out) == (0 if when == "open" else 3)
    if when == "open":
        path.write_bytes(whole)
        assert_as_undisturbed(out, segmentation_run)
    else:
        (row,) = csv.DictReader((out / "failed.csv").read_text().splitlines())
        assert row["item"] == str(path)
        assert "Stale file handle" in row["reason"]
    assert_whole(out)


@slow
def test_slide_deleted_before_resume(data, tmp_path, at_tick, capsys):
    """Training on the slide is kept, and the epoch starts again without it."""
    write_slide(data / "d.tif", 3)

    at_tick(20, lambda: stop_by(signal.SIGTERM))
    out = tmp_path / "out"
    assert run(data, out) == 143
    (data / "b.tif").unlink()
    assert run(data, out, "--resume") == 0
    message = "the images or the batch size have changed: epoch 1 starts again"
    assert message in capsys.readouterr().err
    assert_whole(out)


@slow
def test_strict(data, segmentation_run, tmp_path, at_tick, capsys):
    path = data / "b.tif"
    whole = path.read_bytes()
    at_tick(1, lambda: truncate(path))
    out = tmp_path / "out"
    assert run(data, out, "--strict") == 1
    assert "b.tif: ends" in capsys.readouterr().err
    assert_whole(out)
    path.write_bytes(whole)
    assert run(data, out, "--resume") == 0
    assert_as_undisturbed(out, segmentation_run)


@slow
def test_nan_loss(data, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(data, out, "--lr", "1e30") == 1
    assert "expected a finite number. Lower the learning rate" in capsys.readouterr().err
    kept = newest(out)
    assert all(np.isfinite(array).all() for array in kept.values())
    assert not (out / "metrics.json").exists()
    assert_whole(out)


@pytest.fixture
def disk(tmp_path):
    """Mount small file systems."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(options):
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("a file system cannot be mounted here")
        return folder

    yield mount
    subprocess.run(["umount", str(folder)], capture_output=True)


@pytest.mark.slow
@pytest.mark.parametrize("size", [20, 150, 250, 400, 520])
def test_full_disk(size, data, segmentation_run, tmp_path, disk, capsys):
    """Sizes in kB range from too small for the settings to too small for the pictures."""
    out = disk(f"size={size}k") / "out"
    code = run(data, out)
    errors = capsys.readouterr().err
    assert code == 1
    assert "No space left" in errors or "are free in" in errors
    assert "Traceback" not in errors
    assert_whole(out)
    assert not (out / "metrics.json").exists()
    disk("remount,size=50m")
    assert run(data, out, "--resume") == 0
    assert_as_undisturbed(out, segmentation_run)


def test_read_only_folder(data, tmp_path, disk, capsys):
    out = disk("size=1m,ro") / "out"
    assert run(data, out) == 2
    output = capsys.readouterr()
    assert f"--out {out}: the folder cannot be created: no folder can be made in " in output.err
    assert output.out == ""


@slow
def test_checkpoint_of_another_run(data, tmp_path, capsys):
    """A new file is refused, like all that tfbig did not write; one in place of a file of the run is not used."""
    out, other = tmp_path / "out", tmp_path / "other"
    assert run(data, out) == 0
    assert run(data, other, "--seed", "9") == 0
    foreign = max((other / "checkpoints").glob("step-*"))
    added = out / "checkpoints" / "step-999999999.safetensors"
    shutil.copy(foreign, added)
    capsys.readouterr()
    assert run(data, out, "--resume", "--epochs", "3") == 2
    assert f"holds checkpoints/{added.name}, which tfbig did not write" in capsys.readouterr().err
    added.unlink()
    replaced = max((out / "checkpoints").glob("step-*"))
    shutil.copy(foreign, replaced)
    assert run(data, out, "--resume", "--epochs", "3") == 0
    assert f"{replaced.name} is not used: belongs to another run" in capsys.readouterr().err
    kept = training.Checkpoints(out / "checkpoints", "any").paths()
    assert len(kept) == 2
    assert all(path.read_bytes() != foreign.read_bytes() for path in kept)

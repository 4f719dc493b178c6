"""train.py when the world fails: what it leaves is whole, says what to do, and goes on as if nothing had happened."""

import csv
import errno
import gc
import json
import os
import shutil
import signal
import subprocess
import time

import keras
import numpy as np
import pytest
import yaml
from PIL import Image
from safetensors.numpy import load_file
from samples import write_slide

import train
from tfbig import training
from tfbig.sources.slides.tiff import TiffSource
from tfbig.system import progress, signals

QUICK = ["--crop", "128x256", "--crops", "4", "--epochs", "2", "--seed", "4", "--quiet"]


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "slides"
    for name in "abc":
        write_slide(folder / f"{name}.tif", ord(name))
    return folder


def run(data, out, *flags):
    return train.main(["--data", str(data), "--out", str(out), *QUICK, *flags])


def newest(out):
    return load_file(max((out / "checkpoints").glob("step-*.safetensors")))


def assert_as_undisturbed(data, out, tmp_path, *flags):
    """A run that ended is, bit by bit, that which nothing happened to."""
    whole = tmp_path / "whole"
    assert run(data, whole, *flags) == 0
    found, expected = newest(out), newest(whole)
    assert len(found) == len(expected)
    for key, other in zip(sorted(found), sorted(expected), strict=True):  # by number
        np.testing.assert_array_equal(found[key], expected[other], err_msg=key)
    assert (out / "metrics.json").exists()


def assert_whole(folder):
    """Every file that is there under its name can be read to its end."""
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
        ".h5": lambda p: p.stat().st_size,
    }
    for path in folder.rglob("*"):
        if path.is_file() and not path.name.startswith("."):
            readers[path.suffix](path)


@pytest.fixture
def at_tick(monkeypatch):
    """Does something at the n-th strip."""

    def do(number, action):
        left, tick = [number], progress.Meter.tick

        def ticking(self, *given):
            left[0] -= 1
            if left[0] == 0:
                action()
            tick(self, *given)

        monkeypatch.setattr(progress.Meter, "tick", ticking)

    return do


def truncate(path):
    """A slide becomes shorter; of one so small all tiles would be in memory."""
    os.truncate(path, 3000)
    forget_tiles()


def forget_tiles():
    for found in gc.get_objects():
        if isinstance(found, TiffSource):
            found._cached.clear()


slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 130, marks=slow), (signal.SIGTERM, 143)]
)
def test_signals_end_after_the_strip_with_the_usual_code(
    number, code, data, tmp_path, at_tick, capsys
):
    def stop():
        os.kill(os.getpid(), number)
        while signals.asked() is None:
            time.sleep(0.001)

    at_tick(20, stop)
    out = tmp_path / "out"
    assert run(data, out) == code
    told = capsys.readouterr().err
    assert "stops after this strip and saves; once more ends it at once" in told
    assert f"stopped by {number.name}; --resume with --out goes on from here" in told
    assert not (out / "metrics.json").exists()
    assert_whole(out)
    assert run(data, out, "--resume") == 0
    assert_as_undisturbed(data, out, tmp_path)


def test_a_slide_that_becomes_unreadable_is_left_out_and_named(data, tmp_path, at_tick, capsys):
    path = data / "b.tif"
    at_tick(1, lambda: truncate(path))
    out = tmp_path / "out"
    assert run(data, out) == 3
    (row,) = csv.DictReader((out / "failed.csv").read_text().splitlines())
    assert row["slide"] == str(path)
    assert "left out" in capsys.readouterr().err
    assert (out / "metrics.json").exists()
    assert_whole(out)


@pytest.mark.parametrize("when", ["open", pytest.param("stale", marks=slow)])
def test_a_slide_that_is_deleted_while_it_is_read(when, data, tmp_path, at_tick, monkeypatch):
    """An open file can be read to its end; not so on a file server, which says that its handle is stale."""
    path = data / "b.tif"

    def delete():
        path.unlink()
        if when == "stale":
            read = os.preadv

            def stale(descriptor, *given):
                if os.fstat(descriptor).st_nlink == 0:
                    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
                return read(descriptor, *given)

            monkeypatch.setattr(os, "preadv", stale)
            forget_tiles()

    whole = path.read_bytes()
    at_tick(1, delete)
    out = tmp_path / "out"
    assert run(data, out) == (0 if when == "open" else 3)
    if when == "open":
        path.write_bytes(whole)
        assert_as_undisturbed(data, out, tmp_path)
    else:
        (row,) = csv.DictReader((out / "failed.csv").read_text().splitlines())
        assert row["slide"] == str(path)
        assert "Stale file handle" in row["reason"]
    assert_whole(out)


@slow
def test_a_slide_that_is_deleted_between(data, tmp_path, at_tick, capsys):
    """What was learned from it stays, and the epoch begins again without it."""
    write_slide(data / "d.tif", 3)

    def stop():
        os.kill(os.getpid(), signal.SIGTERM)
        while signals.asked() is None:
            time.sleep(0.001)

    at_tick(20, stop)
    out = tmp_path / "out"
    assert run(data, out) == 143
    (data / "b.tif").unlink()
    assert run(data, out, "--resume") == 0
    told = "the images, or how many are a batch, are others than before: epoch 1 begins again"
    assert told in capsys.readouterr().err
    assert_whole(out)


@slow
def test_strictly_it_ends_the_run_which_goes_on_when_it_is_back(data, tmp_path, at_tick, capsys):
    path = data / "b.tif"
    whole = path.read_bytes()
    at_tick(1, lambda: truncate(path))
    out = tmp_path / "out"
    assert run(data, out, "--strict") == 1
    assert "b.tif: ends" in capsys.readouterr().err
    assert_whole(out)
    path.write_bytes(whole)
    assert run(data, out, "--resume") == 0
    assert_as_undisturbed(data, out, tmp_path, "--strict")


def test_a_loss_of_nan_ends_the_run_with_the_weights_before_it(data, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(data, out, "--lr", "1e30") == 1
    assert "expected a finite number. Lower the learning rate" in capsys.readouterr().err
    kept = newest(out)
    assert all(np.isfinite(array).all() for array in kept.values())
    assert_whole(out)


@pytest.fixture
def disk(tmp_path):
    """Mounts small file systems."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(options):
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("a file system cannot be mounted here")
        return folder

    yield mount
    subprocess.run(["umount", str(folder)], capture_output=True)


@pytest.mark.parametrize(
    "size", [pytest.param(size, marks=slow) for size in (20, 150, 250, 400)] + [520]
)
def test_a_full_disk_leaves_nothing_that_looks_complete(size, data, tmp_path, disk, capsys):
    """Kilobytes, from too little for the settings to too little for the pictures."""
    out = disk(f"size={size}k") / "out"
    code = run(data, out)
    told = capsys.readouterr().err
    assert code == 1
    assert "No space left" in told or "are free in" in told
    assert "Traceback" not in told
    assert_whole(out)
    assert not (out / "metrics.json").exists()
    disk("remount,size=50m")
    assert run(data, out, "--resume") == 0
    assert_as_undisturbed(data, out, tmp_path)


def test_a_folder_that_may_not_be_written_to_is_named(data, tmp_path, disk, capsys):
    out = disk("size=1m,ro") / "out"
    assert run(data, out) == 1
    told = capsys.readouterr().err
    assert str(out) in told
    assert "Traceback" not in told


@slow
def test_a_checkpoint_of_another_run_is_not_used(data, tmp_path, capsys):
    out, other = tmp_path / "out", tmp_path / "other"
    assert run(data, out) == 0
    assert run(data, other, "--seed", "9") == 0
    foreign = max((other / "checkpoints").glob("step-*"))
    shutil.copy(foreign, out / "checkpoints" / "step-999999999.safetensors")
    assert run(data, out, "--resume", "--epochs", "3") == 0
    told = capsys.readouterr().err
    assert "step-999999999.safetensors is not used: is of another run" in told
    _, *own = training.Checkpoints(out / "checkpoints", "any").paths()
    assert len(own) == 2  # the other one does not take the place of one of these


def test_resume_begins_a_run_that_has_none_if_flags_say_which(data, tmp_path, capsys):
    assert run(data, tmp_path / "out", "--resume") == 0
    assert "holds no run yet; it begins" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        train.main(["--out", str(tmp_path / "none"), "--resume"])
    assert "holds no run to resume" in capsys.readouterr().err

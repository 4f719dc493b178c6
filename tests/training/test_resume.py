"""A run that is killed at any moment and resumed ends with the weights, history and predictions of a whole run."""

import csv
import random
import signal
import subprocess
import sys
from functools import partial

import drawn_folders
import keras
import numpy as np
import pytest
import target_bags
from safetensors.numpy import load_file
from samples import ENVIRONMENT, PROGRAMS, ROOT

import train
from tfbig import mil, sources
from tfbig.cli.data import dense_items, images, slides_and_masks
from tfbig.data.worker_shards import Shard
from tfbig.results import run_folder
from tfbig.training import Checkpoints

RUNS = {
    "segmentation": ["--crops", "30", "--crop", "256x256", "--epochs", "6"],
    "mil, offload": [
        *("--task", "mil", "--mode", "offload", "--epochs", "3"),
        *("--optimizer", "lookahead_radam", "--keep", "last"),
    ],
    "mil": [
        *("--task", "mil", "--epochs", "4", "--accumulate", "3", "--keep", "window"),
        *("--window", "2", "--sample", "6", "--augment"),
    ],
    "mil, dtfd": [
        *("--task", "mil", "--model", "dtfd", "--epochs", "3", "--mode", "device"),
        *("--monitor", "accuracy"),
    ],
    "patchgd": [
        *("--task", "images", "--mode", "patchgd", "--patch", "16", "--encoder", "small"),
        *("--epochs", "4", "--batch-size", "8", "--inner-accumulate", "2"),
    ],
}
DATA = {
    "mil, offload": partial(drawn_folders.bags, 40, 10, 10),
    "mil": partial(drawn_folders.bags, 60, 10, 10),
    "mil, dtfd": partial(drawn_folders.bags, 40, 10, 10),
    "patchgd": partial(drawn_folders.images, 120, 20, 20),
}
"""Functions that write the data of a run and return its folder; that of segmentation are the slides of the examples."""
ALWAYS = ["--deterministic", "--quiet", "--checkpoint-minutes", "0.01"]
KILLS = 50
OWN_RATES = {name: value for name, value in ENVIRONMENT.items() if name != "XDG_CACHE_HOME"}
"""Environment with the user's cache, in which the machine's rates are measured once."""


def start(flags, out, *more):
    command = [sys.executable, str(ROOT / "train.py"), *flags, *ALWAYS, "--out", str(out), *more]
    return subprocess.Popen(command, cwd=ROOT, env=OWN_RATES, stderr=subprocess.PIPE, text=True)


def finish(work):
    with work:
        _, errors = work.communicate()
    assert work.returncode == 0, errors
    return errors


def killed(work, seconds):
    """Kill a process after a number of seconds, and return whether it was still running."""
    with work:
        try:
            work.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            work.kill()
            work.communicate()
            return True
    return False


def results(out):
    """Return all results of a run except times."""
    newest = max((out / "checkpoints").glob("step-*.safetensors"))
    model = keras.models.load_model(out / "model.keras")
    with open(out / "history.csv", encoding="utf-8", newline="") as file:
        rows = [
            {k: v for k, v in row.items() if "seconds" not in k} for row in csv.DictReader(file)
        ]
    table = out / "predictions.csv"
    return {
        "checkpoint": load_file(newest),
        "model": dict(enumerate(model.get_weights())),
        "history": rows,
        "predictions": table.read_text() if table.exists() else "",
    }


def assert_equal(results, expected):
    assert results["history"] == expected["history"]
    assert results["predictions"] == expected["predictions"]
    for part in ("checkpoint", "model"):
        assert results[part].keys() == expected[part].keys()
        for name, array in expected[part].items():
            np.testing.assert_array_equal(results[part][name], array, err_msg=name, strict=True)


@pytest.mark.slow
def test_killed_run_resumes(tmp_path):
    """The run is killed two batches after a checkpoint in the middle of an epoch and of accumulated batches."""
    flags = [*RUNS["mil"], *ALWAYS, "--data", drawn_folders.bags(12, 4, 4), "--epochs", "3"]
    whole, out = tmp_path / "whole", tmp_path / "killed"
    program = PROGRAMS / "train_until_killed.py"
    work = subprocess.run(
        [sys.executable, str(program), str(whole), str(out), "17", *flags],
        env=OWN_RATES,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert work.returncode == -signal.SIGKILL, work.stderr
    place = Checkpoints(out / "checkpoints", run_folder.identity(out)).newest().values["place"]
    assert (place["epoch"], place["step"], place["batches"]) == (1, 4, 1)
    finish(start(flags, out, "--resume"))
    assert_equal(results(out), results(whole))


TARGETS = {
    "survival": ("survival", "8", ["--accumulate", "3"]),
    "cox": ("survival", "6", ["--survival-loss", "cox", "--accumulate", "12"]),
    "multilabel": ("multilabel", "40", ["--monitor", "auc"]),
}
"""Target, checkpoints before the kill and flags of runs on features."""


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_killed_run_of_a_target_resumes(name, tmp_path):
    """A run with Cox's loss is killed in the middle of an epoch, after whole risk sets."""
    target, checkpoints, flags = TARGETS[name]
    data = target_bags.write(tmp_path / "data", target)
    flags = [*target_bags.FLAGS, "--target", target, "--data", str(data), *flags]
    flags += [*ALWAYS, "--epochs", "4", "--model", "gated"]
    whole, out = tmp_path / "whole", tmp_path / "killed"
    work = subprocess.run(
        [
            *(sys.executable, str(PROGRAMS / "train_until_killed.py")),
            *(str(whole), str(out), checkpoints, *flags),
        ],
        env=OWN_RATES,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert work.returncode == -signal.SIGKILL, work.stderr
    place = Checkpoints(out / "checkpoints", run_folder.identity(out)).newest().values["place"]
    assert place["step"] > 0
    finish(start(flags, out, "--resume"))
    assert_equal(results(out), results(whole))


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_killed_at_random_moments(name, tmp_path):
    """Kills 50 runs in all, from the first second of the process on."""
    moments = random.Random(name)
    flags = [*RUNS[name], "--data", DATA[name]()] if name in DATA else RUNS[name]
    finish(start(flags, tmp_path / "whole"))
    expected = results(tmp_path / "whole")
    kills = number = 0
    while kills < KILLS // len(RUNS):
        out = tmp_path / f"run-{number}"
        more = ["--resume"] if (out / "config.yaml").exists() else []
        if killed(start(flags, out, *more), moments.uniform(0.5, 14)):
            kills += 1
            continue
        assert_equal(results(out), expected)
        number += 1
    out = tmp_path / f"run-{number}"
    if (out / "config.yaml").exists():
        errors = finish(start(flags, out, "--resume"))
        assert "is not used" not in errors
        assert_equal(results(out), expected)


def arrays(data):
    return [[np.asarray(t) for t in keras.tree.flatten(batch)] for batch in data]


def assert_rest(whole, rest, seen):
    assert len(whole) > seen > 0
    for batch, other in zip(whole[seen:], rest, strict=True):
        for a, b in zip(batch, other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("flags", [[], pytest.param(["--mode", "device"], marks=pytest.mark.slow)])
def test_remaining_batches_of_images(flags):
    data = ["--task", "images", "--data", drawn_folders.images(13, 4, 4), *flags]
    settings = train.settings_of([*data, "--batch-size", "2"])
    training = images.load(settings).train

    def epoch(first):
        return arrays(images.dataset(training, settings, True, Shard(3, first), bool(flags)))

    whole = epoch(0)
    assert_rest(whole, epoch(3), 3)
    other = arrays(images.dataset(training, settings, True, Shard(4), bool(flags)))
    assert any((a != b).any() for a, b in zip(whole[0], other[0], strict=True))


def test_remaining_batches_of_bags():
    bags = [sources.ArrayBag(np.full((9, 4), i, np.float32)) for i in range(7)]
    options = {"sample": 5, "shuffle": True, "dense": True}
    whole = arrays(mil.dataset(bags, np.arange(7), 2, shard=Shard(2), **options))
    rest = arrays(mil.dataset(bags, np.arange(7), 2, shard=Shard(2, 1), **options))
    assert_rest(whole, rest, 1)


def test_remaining_batches_of_crops():
    images = [sources.ArraySource(np.full((8, 8, 1), i, np.uint8)) for i in range(5)]
    crops = [slides_and_masks.LabelledSlide(str(i), image, image) for i, image in enumerate(images)]
    whole = arrays(dense_items.dataset(crops, crops[0], dense_items.LABELLED, 2, dense=True))
    assert_rest(
        whole,
        arrays(dense_items.dataset(crops[2:], crops[0], dense_items.LABELLED, 2, dense=True)),
        1,
    )

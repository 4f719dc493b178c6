"""Flags of `--target`: each is of a target, and combinations that cannot work are refused in one line."""

from __future__ import annotations

from typing import Any

import pytest

import train
from tfbig.cli.paths import FlagError
from tfbig.cli.settings import choices, target_settings
from tfbig.cli.settings.tasks import ImageSettings, MILSettings

SURVIVAL = {"target": "survival", "bags": "folder"}
COX = SURVIVAL | {"survival_loss": "cox", "accumulate": 32}
IMAGES = {"target": "survival", "images": "slides"}
COX_OF_IMAGES = IMAGES | {"survival_loss": "cox", "mode": "offload", "batch_size": 1}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"class_weights": True, "monitor": "qwk", "model": "dtfd"},
        SURVIVAL | {"monitor": "concordance", "time_bins": 6, "alpha": 0.4, "batch_size": 2},
        SURVIVAL | {"time_cuts": (1.0, 2.0)},
        COX,
        COX | {"accumulate": 1, "test_only": "runs/a"},
        {"target": "regression", "bags": "slides", "monitor": "mae", "value_scale": (-3.0, 2.0)},
        {"target": "multilabel", "bags": "slides", "monitor": "auc", "class_names": ("a", "b")},
    ],
)
def test_what_is_allowed(changes: dict[str, Any]) -> None:
    target_settings.check(MILSettings(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"monitor": "mae"}, "--monitor mae: --target class has loss and accuracy and qwk"),
        (SURVIVAL | {"monitor": "auc"}, "--target survival has loss and concordance"),
        (SURVIVAL | {"model": "dtfd"}, "--model dtfd: has a second loss of classes"),
        (SURVIVAL | {"time_cuts": (1.0,), "time_bins": 6}, "1 times make 2 bins, but --time-bins"),
        (
            {"target": "regression", "bags": "folder", "value_scale": (1.0, 0.0)},
            "the deviation is 0, expected a number above 0",
        ),
        (COX | {"accumulate": 1}, "--accumulate 1: is the number of bags of a risk set"),
        (COX | {"batch_size": 4}, "--batch-size 4: --survival-loss cox computes one bag at a time"),
        (COX | {"strategy": "mirrored"}, "--strategy mirrored: the devices of one process would"),
        (
            COX | {"strategy": "multiworker", "sync_norm": True},
            "--sync-norm: workers compute the members of a risk set",
        ),
        (COX | {"sum": True}, "--sum: cannot be combined with --survival-loss cox"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FlagError) as error:
        target_settings.check(MILSettings(**changes))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"class_weights": True, "monitor": "qwk"},
        IMAGES | {"monitor": "concordance", "time_bins": 6},
        COX_OF_IMAGES | {"accumulate": 16},
        COX_OF_IMAGES | {"mode": "patchgd", "batch_size": 8},
        COX_OF_IMAGES | {"strategy": "multiworker", "accumulate": 16},
        {"target": "regression", "images": "folder", "augment": "slide"},
    ],
)
def test_what_is_allowed_of_images(changes: dict[str, Any]) -> None:
    target_settings.check(ImageSettings(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (IMAGES | {"images": "pictures"}, "--images pictures: are of known classes"),
        (COX_OF_IMAGES, "--accumulate 1: is the number of images of a risk set"),
        (COX_OF_IMAGES | {"batch_size": 4}, "computes one image at a time, expected 1"),
        (
            COX_OF_IMAGES | {"mode": "patchgd"},
            "--batch-size 1: with --mode patchgd a batch is a risk set",
        ),
        (
            COX_OF_IMAGES | {"mode": "patchgd", "batch_size": 8, "accumulate": 2},
            "--accumulate 2: with --mode patchgd a batch is a risk set",
        ),
        (
            COX_OF_IMAGES | {"mode": "patchgd", "batch_size": 8, "strategy": "multiworker"},
            "--strategy multiworker: with --mode patchgd and --survival-loss cox, each worker",
        ),
    ],
)
def test_what_is_refused_of_images(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FlagError) as error:
        target_settings.check(ImageSettings(**changes))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("task", ["mil", "images"])
def test_each_monitor_can_be_chosen(task: str) -> None:
    for target, names in choices.MONITORS.items():
        for name in names:
            flags = ["--task", task, "--target", target, "--monitor", name]
            assert train.settings_of(flags).monitor == name


SURVIVAL_FLAGS = "--task mil --target survival"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--task mil --alpha 0.5", "--alpha 0.5: belongs to --target survival; this run"),
        ("--task mil --survival-loss cox", "--survival-loss cox: belongs to --target survival"),
        (f"{SURVIVAL_FLAGS} --class-weights", "--class-weights: belongs to --target class; this"),
        (f"{SURVIVAL_FLAGS} --tile-weights", "--tile-weights: belongs to --target class"),
        (f"{SURVIVAL_FLAGS} --class-names a", "--class-names a: belongs to --target class or mul"),
        (f"{SURVIVAL_FLAGS} --value-scale 0 1", "--value-scale 0.0 1.0: belongs to --target regr"),
        (f"{SURVIVAL_FLAGS} --survival-loss cox --alpha 0.1", "--alpha 0.1: belongs to --survival"),
        ("--task mil --pseudo-bags 5", "--pseudo-bags 5: belongs to --model dtfd; this run has"),
        ("--task mil --subtyping", "--subtyping: belongs to --model clam_sb or clam_mb; this run"),
        ("--task images --patch 64", "--patch 64: belongs to --mode patchgd; this run has --mode"),
        ("--crop whole --crops 5", "--crops 5: belongs to --crop other than whole; this run has"),
        ("--fold 1", "--fold 1: belongs to --folds; this run has no --folds."),
    ],
)
def test_what_belongs_to_another_choice(flags: str, message: str) -> None:
    with pytest.raises(FlagError) as error:
        train.settings_of(flags.split())
    assert message in str(error.value)

"""What is said about the settings and the results of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tfbig.cli.settings import training
from tfbig.cli.settings.flag import to_save
from tfbig.results import shown


@pytest.mark.parametrize(
    ("metrics", "tested", "sentence"),
    [
        ({"tested_on": "val", "test_dice": 1}, False, "no test images: <t> is of the validation"),
        ({"tested_on": "test", "test_dice": 1}, True, "begin with <t> are of images that neither"),
        ({"test_auc": 1, "val_loss": 1}, True, "begin with <t> are of images that neither"),
        ({"val_loss": 1}, False, "no test images: <v> is of images by which an epoch may"),
    ],
)
def test_which_images_results_are_of(metrics: dict[str, Any], tested: bool, sentence: str) -> None:
    assert shown.is_tested(metrics) == tested
    assert sentence in shown.about_results(metrics, "<t>", "<v>")


SURVIVAL = {"survival_loss", "time_bins", "time_cuts", "alpha"}
PATCHES = {"patch", "sampling", "inner_accumulate", "encoder_scale", "filling_norm"}
BY_SETTINGS: list[tuple[tuple[str, ...], set[str], set[str]]] = [
    (("images", "--images", "folder"), {"shares"}, {*SURVIVAL, "stain", "eval_split"}),
    (("images", "--images", "drawn"), {"canvas"}, {"shares", "stain", *PATCHES, "sampler"}),
    (("images", "--images", "drawn", "--mode", "patchgd"), {*PATCHES, "sampler"}, {"shares"}),
    (("patchgd-segmentation",), PATCHES, {"rate"}),
    (
        ("images", "--images", "slides", "--target", "survival"),
        {*SURVIVAL, "stain"},
        {"keep_aspect"},
    ),
    (
        ("mil", "--bags", "slides", "--target", "survival", "--survival-loss", "cox"),
        {"survival_loss", "tissue"},
        {"alpha", "time_bins", "pseudo_bags"},
    ),
    (
        ("mil", "--bags", "shapes", "--model", "dtfd"),
        {"pseudo_bags"},
        {"shares", "tissue"},
    ),
    (("mil", "--bags", "folder", "--keep", "window"), {"window", "shares"}, {"rate"}),
    (("images", "--images", "pictures"), {"shares"}, {"stain"}),
    (("segmentation",), {"crops", "schedule"}, {"shares", "rate", "window"}),
    (("segmentation", "--schedule", "exponential"), {"rate"}, {"shares"}),
]


@pytest.mark.parametrize(("arguments", "used", "unused"), BY_SETTINGS)
def test_settings_that_play_a_part(
    arguments: tuple[str, ...], used: set[str], unused: set[str], tmp_path: Path
) -> None:
    has_data = not {"segmentation", "drawn", "shapes"} & {*arguments}
    data = ("--data", str(tmp_path)) if has_data else ()
    accumulated = ("--accumulate", "8", "--batch-size", "1") if "cox" in arguments else ()
    flags = ["--task", *arguments, *accumulated, *data, "--out", str(tmp_path / "out")]
    values = to_save(training.parse(flags))
    assert used | unused <= {*values}
    names = {*shown.settings(training.in_use(values), tmp_path)}
    assert used <= names
    assert not unused & names
    assert names <= {*values}


def test_shares_are_told_if_the_splits_are_not(tmp_path: Path) -> None:
    values = {"task": "images", "images": "slides", "shares": [70, 10, 20]}
    assert (
        shown.settings(values, tmp_path)["shares"]
        == "70, 10, 20, if the data has no splits of its own"
    )
    (tmp_path / "slides.csv").write_text("slide_id,split\na,train\nb,val\nc,val\n")
    assert "shares" not in shown.settings(values, tmp_path)
    assert shown.slides(tmp_path) == "1 for training, 2 for validation"


@pytest.mark.parametrize(
    ("classes", "has_order"),
    [
        (["normal", "tumour"], True),
        (["0", "1", "2", "10"], True),
        (["ISUP 0", "ISUP 1", "ISUP 2"], True),
        (["lung", "breast", "colon"], False),
        (["2", "0", "1"], False),
        (["grade 1", "grade 1a", "grade 2"], False),
        (["benign", "grade 1", "grade 2"], False),
        ([], True),  # not known
    ],
)
def test_kappa_is_of_classes_in_order(classes: list[str], has_order: bool) -> None:
    metrics = {"test_accuracy": 0.5, "test_qwk": 0.25, "qwk": 0.1, "test_qwk_low": 0.0}
    expected = metrics if has_order else {"test_accuracy": 0.5}
    assert shown.results(metrics, classes) == expected
    row = {"bag": "a", "label": "b", **{f"probability_{name}": "0" for name in classes}}
    assert shown.class_names([row]) == classes


@pytest.mark.parametrize(
    ("settings", "items"),
    [
        ({"task": "images", "images": "slides"}, "slides"),
        ({"task": "images", "images": "folder"}, "images"),
        ({"task": "segmentation"}, "slides"),
        ({"task": "volume-segmentation"}, "volumes"),
    ],
)
def test_what_items_are(settings: dict[str, Any], items: str) -> None:
    assert shown.items(settings) == items


@pytest.mark.parametrize(
    ("row", "items"),
    [({"scene": "a"}, "scenes"), ({"volume": "a"}, "volumes"), ({"bag": "a"}, "slides")],
)
def test_what_items_of_a_prediction_are(row: dict[str, str], items: str) -> None:
    assert shown.items_of([row]) == items
    assert shown.items_of([]) == "slides"

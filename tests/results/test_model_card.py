"""Model cards, from the files of a run folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tfbig.cli.settings import training
from tfbig.errors import SourceError
from tfbig.results import model_card, report

SETTINGS: dict[str, Any] = {
    "task": "mil",
    "data": "/secret/place/slides.csv",
    "encoder": "resnet18",
    "model": "abmil",
    "shares": [70, 10, 20],
    "lr": 0.0001,
    "seed": 3,
    "folds": None,
    "fold": None,
    "class_names": ["a|b", "<b>c</b>"],
}
METRICS = {
    "loss": 0.25,
    "test_auc": 0.91234,
    "peak_bytes": 2**30,
    "confusion": [[1]],
    "left_out": [["x", "is gone"]],
}


def card(folder: Path, settings: dict[str, Any], metrics: dict[str, Any]) -> str:
    """Write a run folder and its card; return the text."""
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    (folder / "metrics.json").write_text(json.dumps(metrics))
    return model_card.write_card(folder, training.in_use).read_text()


def test_data_settings_results_and_limits(tmp_path: Path) -> None:
    (tmp_path / "predictions.csv").write_text("bag,label\nb0,a\nb1,a\n")
    (tmp_path / "failed.csv").write_text("slide,error\nbad.svs,is no TIFF\n")
    text = card(tmp_path, SETTINGS, METRICS)
    for line in (
        "| encoder | resnet18 |",
        "| data | slides.csv |",
        "| shares | 70, 10, 20, if the data has no splits of its own |",
        "| tested or validated | 2 |",
        "| left out | 1 |",
        "| test\\_auc | 0.9123 |",
        "| peak\\_bytes | 1.0 GiB |",
        "| lr | 0.0001 |",
        "- One seed (3): `--seeds` says how much results depend on it.",
        "- 1 file could not be read: bad.svs.",
    ):
        assert line in text.splitlines(), line
    assert "secret" not in text
    assert "confusion" not in text


def test_items_that_were_left_out_count_once(tmp_path: Path) -> None:
    metrics = METRICS | {"left_out": [["a", "is damaged"], ["b", "is gone"]]}
    assert "| left out | 2 |" in card(tmp_path, SETTINGS, metrics)
    (tmp_path / "failed.csv").write_text("item,reason\na,is damaged\nb,is gone\nc,is empty\n")
    text = card(tmp_path, SETTINGS, metrics)
    assert "| left out | 3 |" in text
    assert "3 files could not be read: a, b, c." in text


@pytest.mark.parametrize(
    ("settings", "title"),
    [
        ({"task": "images", "mode": "offload"}, "one result for a large image, streamed exactly,"),
        (
            {"task": "images", "mode": "patchgd"},
            "one result for a large image, by patch gradient descent,",
        ),
        ({"task": "images", "mode": "device"}, "one result for a large image,"),
        ({"task": "segmentation", "mode": "offload"}, "masks of images,"),
    ],
)
def test_the_method_is_that_of_the_mode(
    settings: dict[str, Any], title: str, tmp_path: Path
) -> None:
    assert f"A Keras model for {title} trained by" in card(tmp_path, settings, METRICS)


def test_results_of_validation_images_are_no_test(tmp_path: Path) -> None:
    text = card(tmp_path, SETTINGS, METRICS | {"tested_on": "val"})
    assert "`test_` is of the validation images" in text
    assert "Nothing was held back for a test." in text
    assert "neither training nor" not in text
    assert "neither training nor" in card(tmp_path, SETTINGS, METRICS | {"tested_on": "test"})


def test_settings_that_play_no_part_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "slides.csv").write_text("slide_id,split\na,train\nb,train\nc,test\n")
    text = card(tmp_path, SETTINGS | {"alpha": 0.5, "target": "class"}, METRICS)
    assert "| number of slides | 2 for training, 1 for testing |" in text
    assert "| target | class |" in text
    assert not {"alpha", "shares"} & {
        line.split(" ")[1] for line in text.splitlines() if "| " in line
    }


@pytest.mark.parametrize("names", [("lung", "breast", "colon"), ("0", "1", "2")])
def test_kappa_is_shown_of_classes_in_order(names: tuple[str, ...], tmp_path: Path) -> None:
    header = ",".join(["bag", *(f"probability_{name}" for name in names)])
    (tmp_path / "predictions.csv").write_text(f"{header}\na,0.2,0.3,0.5\n")
    text = card(tmp_path, SETTINGS, METRICS | {"test_qwk": 0.5})
    page = report.write_report(tmp_path).read_text()
    has_order = names[0] == "0"
    assert ("| test\\_qwk | 0.5 |" in text) == has_order
    assert ("<th>test qwk</th>" in page) == has_order


def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    assert "| class_names | a\\|b, &lt;b&gt;c&lt;/b&gt; |" in card(tmp_path, SETTINGS, METRICS)


def test_a_run_without_a_test_says_so(tmp_path: Path) -> None:
    text = card(
        tmp_path, {"task": "segmentation", "folds": 3, "fold": 1, "precision": "mixed_bfloat16"}, {}
    )
    assert "There were no test images" in text
    assert "Nothing was held back for a test." in text
    assert "Computed in mixed\\_bfloat16, which rounds." in text
    assert "One split" not in text
    assert "| test" not in text


@pytest.mark.parametrize(
    ("task", "items", "others", "is_medical"),
    [
        ("mil", "slides", "Other scanners, stains, organs, sensors or resolutions", True),
        ("scenes", "scenes", "Other places, seasons, sensors, bands or resolutions", False),
        ("volume-segmentation", "volumes", "Other scanners, protocols, organs or", True),
        ("instances", "images", "Other scanners, stains, organs, sensors or resolutions", True),
    ],
)
def test_words_fit_the_task(
    tmp_path: Path, task: str, items: str, others: str, is_medical: bool
) -> None:
    (tmp_path / "slides.csv").write_text("name,split\na,train\nb,val\n")
    has_folds = task == "mil"
    text = card(tmp_path, {"task": task, **({"folds": None} if has_folds else {})}, METRICS)
    assert f"| number of {items} | 1 for training, 1 for validation |" in text
    assert f"{others} " in text
    assert ("no medical device" in text) == is_medical
    assert "- One split of the data: " in text
    assert ("`--folds`" in text) == has_folds
    assert (
        f"{items.capitalize()}: 1 for training, 1 for val"
        in report.write_report(tmp_path).read_text()
    )


def test_damaged_settings_are_named(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("- 1\n")
    with pytest.raises(SourceError, match=r"config\.yaml: is damaged"):
        model_card.write_card(tmp_path)

"""Metrics of saved predictions are those of the run, and intervals are those of drawing cases."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from tfbig import metrics
from tfbig.results import judgement, run_folder
from tfbig.results.judgement import ScoredPredictions


def predictions(
    folder: Path, labels: Sequence[int], probabilities: np.ndarray, names: Sequence[str] = ()
) -> ScoredPredictions:
    """Write predictions of a run, and read them."""
    folder.mkdir(exist_ok=True)
    rows = [
        {"bag": name, "label": f"c{label}", "predicted": f"c{p.argmax()}"}
        | {f"probability_c{number}": value for number, value in enumerate(p.tolist())}
        for name, label, p in zip(
            names or [f"s{n}" for n in range(len(labels))], labels, probabilities, strict=True
        )
    ]
    run_folder.write_csv(folder / run_folder.PREDICTIONS, rows)
    return judgement.read(folder)


def drawn(count: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Labels, and probabilities that are better than chance and have ties."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    odds = rng.uniform(0.1, 1, (count, classes)).round(1) + 0.5 * np.eye(classes)[labels]
    return labels, odds / odds.sum(1, keepdims=True)


@pytest.mark.parametrize("classes", [2, 4])
def test_metrics_are_those_of_the_run(classes: int, tmp_path: Path) -> None:
    labels, probabilities = drawn(60, classes)
    found = judgement.means([predictions(tmp_path, labels.tolist(), probabilities)])
    kappa = metrics.QuadraticWeightedKappa(classes)
    kappa.update_state(labels, probabilities.astype("float32"))
    area = (
        metrics.auc(labels, probabilities[:, 1])
        if classes == 2
        else metrics.macro_auc(labels, probabilities)
    )
    assert found["test_accuracy"] == pytest.approx((probabilities.argmax(1) == labels).mean())
    assert found["test_qwk"] == pytest.approx(
        float(keras.ops.convert_to_numpy(kappa.result())), 1e-5
    )
    assert found["test_auc"] == pytest.approx(area, rel=1e-12)


@pytest.mark.parametrize(
    ("names", "has_order"), [(("LUAD", "LUSC", "other"), False), ("123", True)]
)
def test_kappa_is_of_classes_with_an_order(
    names: Sequence[str], has_order: bool, tmp_path: Path
) -> None:
    labels, probabilities = drawn(30, 3)
    rows = [
        {"slide": f"{n}.tif", "label": names[label]}
        | dict(zip((f"probability_{name}" for name in names), p, strict=True))
        for n, (label, p) in enumerate(zip(labels, probabilities.tolist(), strict=True))
    ]
    run_folder.write_csv(tmp_path / run_folder.PREDICTIONS, rows)
    found = judgement.means([judgement.read(tmp_path)])
    assert set(found) - {"test_qwk"} == {"test_accuracy", "test_auc"}
    assert ("test_qwk" in found) == has_order


def test_interval_of_an_accuracy_is_that_of_a_share(tmp_path: Path) -> None:
    """Near that of the normal distribution: 0.8 with a standard error of sqrt(0.8 * 0.2 / 400) = 0.02."""
    labels = np.arange(400) % 2
    right = np.where(np.arange(400) % 5 > 0, labels, 1 - labels)
    probabilities = np.eye(2)[right] * 0.8 + 0.1
    low, high = judgement.intervals([predictions(tmp_path, labels.tolist(), probabilities)])[
        "test_accuracy"
    ]
    assert low == pytest.approx(0.8 - 1.96 * 0.02, abs=0.006)
    assert high == pytest.approx(0.8 + 1.96 * 0.02, abs=0.006)


@pytest.mark.parametrize("column", ["case_id", "patient"])
def test_slides_of_a_case_are_drawn_together(tmp_path: Path, column: str) -> None:
    """Four equal slides of each case: the interval is that of a quarter as many samples, twice as wide."""
    labels = np.arange(400) // 4 % 2
    right = np.where(np.arange(400) // 4 % 5 > 0, labels, 1 - labels)
    probabilities = np.eye(2)[right] * 0.8 + 0.1
    of_slides = judgement.intervals([predictions(tmp_path, labels.tolist(), probabilities)])
    rows = [{"slide_id": f"s{n}", column: f"p{n // 4}", "path": ""} for n in range(400)]
    run_folder.write_csv(tmp_path / "slides.csv", rows)
    of_cases = judgement.intervals([judgement.read(tmp_path)])
    widths = [high - low for low, high in (of_slides["test_accuracy"], of_cases["test_accuracy"])]
    assert widths[1] / widths[0] == pytest.approx(2, rel=0.15)


def test_mean_over_folds_and_runs_without_a_class(tmp_path: Path) -> None:
    """A fold of one class has an accuracy, but no area; the interval of the mean is of the other."""
    labels, probabilities = drawn(30, 2)
    folds = [
        predictions(tmp_path / "a", labels.tolist(), probabilities),
        predictions(tmp_path / "b", [1, 1], np.eye(2)[[1, 0]], ["t0", "t1"]),
    ]
    found = judgement.means(folds)
    alone = judgement.means(folds[:1])
    assert found["test_accuracy"] == pytest.approx((alone["test_accuracy"] + 0.5) / 2)
    assert found["test_auc"] == alone["test_auc"]
    low, high = judgement.intervals(folds)["test_auc"]
    assert low < found["test_auc"] < high


def test_differences_are_paired(tmp_path: Path) -> None:
    """A run that is right where the first is, and in one more case of ten, is better in nearly every sample."""
    labels = np.arange(100) % 2
    runs = {}
    for name, wrong in (("first", 2), ("second", 1)):
        right = np.where(np.arange(100) % 10 >= wrong, labels, 1 - labels)
        runs[name] = [predictions(tmp_path / name, labels.tolist(), np.eye(2)[right])]
    value, low, high = judgement.differences(runs["first"], runs["second"])["test_accuracy"]
    assert value == pytest.approx(0.1)
    assert 0.03 < low < 0.1 < high < 0.17
    others = [f"t{n}" for n in range(100)]
    unpaired = [predictions(tmp_path / "third", labels.tolist(), np.eye(2)[right], others)]
    _, low, high = judgement.differences(runs["first"], unpaired)["test_accuracy"]
    assert low < 0.03 < 0.17 < high


def test_masks_are_judged_by_their_overlap(tmp_path: Path) -> None:
    rows = [
        {"slide": f"{n}.tif", "dice": dice, "iou": 0.5} for n, dice in enumerate((0.5, "", 0.9))
    ]
    run_folder.write_csv(tmp_path / run_folder.PREDICTIONS, rows)
    found = judgement.means([judgement.read(tmp_path)])
    assert found == pytest.approx({"test_dice": 0.7, "test_iou": 0.5})


def test_volumes_are_judged_by_the_overlap_of_each_class(tmp_path: Path) -> None:
    """A class that no volume has is no metric; the table of volumes names them by their case."""
    rows = [
        {"volume": "a", "dice": 0.4, "dice_artery": 0.2, "dice_vein": 0.6, "dice_bone": ""},
        {"volume": "b", "dice": 0.8, "dice_artery": 0.8, "dice_vein": "", "dice_bone": ""},
    ]
    run_folder.write_csv(tmp_path / run_folder.PREDICTIONS, rows)
    table = [{"case_id": name, "split": "test", "image": f"{name}.nii"} for name in "ab"]
    run_folder.write_csv(tmp_path / run_folder.SLIDES, table)
    judged = judgement.read(tmp_path)
    assert judged.cases == ("a", "b")
    expected = {"test_dice": 0.6, "test_dice_artery": 0.5, "test_dice_vein": 0.6}
    assert judgement.means([judged]) == pytest.approx(expected)
    assert judgement.intervals([judged])["test_dice"] == pytest.approx((0.4, 0.8))


def test_without_predictions(tmp_path: Path) -> None:
    nothing = judgement.read(tmp_path)
    assert nothing.measures == {}
    assert judgement.means([nothing]) == judgement.intervals([nothing]) == {}
    run_folder.write_csv(tmp_path / run_folder.PREDICTIONS, [{"slide": "a", "area": 3}])
    assert judgement.means([judgement.read(tmp_path)]) == {}


def test_survival_numbers_and_labels_are_judged_as_often_as_drawn(tmp_path: Path) -> None:
    """Drawing a case twice is the same as its rows twice; slides of a case count as their mean risk."""
    rng = np.random.default_rng(5)
    kinds: dict[str, list[dict[str, Any]]] = {"survival": [], "numbers": [], "labels": []}
    for n in range(20):
        item, case = {"bag": f"s{n}"}, {"case": f"P{n // 2}"}
        observed = {"time": n // 2 % 7, "event": n // 2 % 3 > 0}
        kinds["survival"].append({**item, **case, **observed, "risk": rng.normal()})
        kinds["numbers"].append({**item, "value": rng.normal(), "predicted": rng.normal()})
        known = {"label_a": n % 2, "label_b": ("", 1, 0)[n % 3]}
        shares = {f"probability_{name}": rng.random() for name in "ab"}
        kinds["labels"].append({**item, **known, **shares})
    for name, rows in kinds.items():
        weights = np.repeat(rng.integers(0, 3, 10), 2).astype(float)
        run_folder.write_csv(tmp_path / "predictions.csv", _with_numbers(rows))
        once = judgement.read(tmp_path)
        again = [
            row
            | {"bag": f"{row['bag']}-{k}"}
            | ({"case": f"{row['case']}-{k}"} if "case" in row else {})
            for row, weight in zip(rows, weights, strict=True)
            for k in range(int(weight))
        ]
        run_folder.write_csv(tmp_path / "predictions.csv", _with_numbers(again))
        expected = judgement.means([judgement.read(tmp_path)])
        found = {key: measure(weights[None])[0] for key, measure in once.measures.items()}
        assert found == pytest.approx(expected, rel=1e-9), name
        assert found


def _with_numbers(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: int(v) if isinstance(v, bool) else v for k, v in row.items()} for row in rows]

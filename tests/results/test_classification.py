"""Tables and curves of classifiers, compared with counting by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from tfbig.results import classification, run_folder

POSITIVE = np.array([1, 1, 1, 0, 0, 0, 0, 1], bool)
SCORES = np.array([0.9, 0.8, 0.3, 0.7, 0.2, 0.1, 0.4, 0.6])


def test_numbers_of_a_class() -> None:
    values = classification.evaluated(POSITIVE, SCORES, 0.5)
    assert values["samples"] == 4
    assert values["auc"] == pytest.approx(13 / 16)
    assert values["auc_low"] < 13 / 16 < values["auc_high"] == 1
    assert values["sensitivity"] == values["specificity"] == values["precision"] == 0.75
    assert values["f1"] == 0.75
    assert values["brier"] == pytest.approx(np.mean((SCORES - POSITIVE) ** 2))
    ranks = 1 + 1 + 3 / 4 + 4 / 6  # precision where each positive is found
    assert values["average_precision"] == pytest.approx(ranks / 4)
    assert classification.evaluated(POSITIVE, SCORES, 0.25)["sensitivity"] == 1


def test_class_without_samples() -> None:
    values = classification.evaluated(np.zeros(3, bool), np.array([0.1, 0.2, 0.9]), 0.95)
    assert {name for name, value in values.items() if value == ""} == {
        *("auc", "auc_low", "auc_high", "average_precision", "sensitivity", "precision", "f1")
    }
    assert values["specificity"] == 1


def test_threshold() -> None:
    # sensitivity 1/2 and specificity 1; 3/4 and 3/4 at 0.5 have the same sum
    assert classification.best_threshold(POSITIVE, SCORES) == pytest.approx(0.75)
    separated = np.array([0.1, 0.2, 0.3, 0.35]), np.array([False, False, True, True])
    assert classification.best_threshold(separated[1], separated[0]) == pytest.approx(0.25)
    assert classification.best_threshold(np.ones(4, bool), separated[0]) == 0.5
    assert classification.best_threshold(separated[1], 1 - separated[0]) == 0.5


def test_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 60)
    odds = np.eye(3)[labels] + rng.random((60, 3))
    probabilities = odds / odds.sum(1, keepdims=True)
    thresholds = classification.best_thresholds(labels[:30], probabilities[:30])
    names = ("=a", "b", "c")
    assert classification.thresholds_of_run(tmp_path, names) is None
    classification.write(tmp_path, labels[30:], probabilities[30:], names, thresholds)
    assert classification.thresholds_of_run(tmp_path, names) == thresholds
    assert classification.thresholds_of_run(tmp_path, ("a", "b", "c")) is None
    rows = run_folder.read_rows(tmp_path / "classes.csv")
    assert [row["class"] for row in rows] == [*names]
    assert [int(row["samples"]) for row in rows] == np.bincount(labels[30:], minlength=3).tolist()
    assert all(float(row["threshold"]) != 0.5 for row in rows)
    with Image.open(tmp_path / "curves.png") as image:
        assert min(image.size) > 300
    classification.write(tmp_path, labels, probabilities, names)
    assert {r["threshold"] for r in run_folder.read_rows(tmp_path / "classes.csv")} == {"0.5"}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures that are drawn."""
    figures: list[Figure] = []
    monkeypatch.setattr(classification.figures, "save", lambda figure, path: figures.append(figure))
    return figures


def test_curves_of_two_classes(tmp_path: Path, drawn: list[Figure]) -> None:
    """The curves are of the second class, and two figures have a diagonal."""
    probabilities = np.array([[0.7, 0.3], [0.4, 0.6], [0.1, 0.9]])
    classification.write(tmp_path, np.array([0, 1, 1]), probabilities, ("a", "b"))
    assert [len(axes.lines) for axes in drawn[-1].axes] == [2, 1, 2]
    assert [len(axes.texts) for axes in drawn[-1].axes] == [0, 0, 0]


@pytest.mark.parametrize(
    ("labels", "names", "reason"),
    [
        ([0, 0, 0], ("normal", "tumour"), "not defined:\nno sample is tumour"),
        ([0, 0, 0], ("normal", "$_"), "not defined:\nno sample is $_"),  # no formula
        ([1, 1, 1], ("normal", "tumour"), "not defined:\nall samples are tumour"),
        (
            *([1, 1], ("a", "b", "c")),
            "not defined:\nno sample is a\nall samples are b\nno sample is c",
        ),
        (
            *([6, 6], "abcdefgh"),
            "not defined:\n" + "".join(f"no sample is {c}\n" for c in "abcdef") + "and 2 more",
        ),
    ],
)
def test_samples_of_one_class_have_no_curves_but_a_reason(
    labels: list[int], names: Sequence[str], reason: str, tmp_path: Path, drawn: list[Figure]
) -> None:
    probabilities = np.full((len(labels), len(names)), 1 / len(names))
    classification.write(tmp_path, np.array(labels), probabilities, names)
    assert [len(axes.lines) for axes in drawn[-1].axes] == [0, 0, 0]
    assert [[t.get_text() for t in axes.texts] for axes in drawn[-1].axes] == [[reason]] * 3


def test_labels_of_which_some_are_unknown(tmp_path: Path) -> None:
    """Each label is judged by the samples of which it is known, and both labels of two are drawn."""
    labels = np.array([[1, 0], [0, -1], [-1, 1], [1, 1]])
    shares = np.array([[0.9, 0.2], [0.1, 0.6], [0.5, 0.7], [0.8, 0.3]])
    columns = classification.known_columns(("a", "b"), labels, shares)
    assert columns[0].positive.tolist() == [True, False, True]
    assert columns[0].scores.tolist() == [0.9, 0.1, 0.8]
    classification.write_columns(tmp_path, columns)
    first, second = run_folder.read_rows(tmp_path / "classes.csv")
    assert (first["samples"], second["samples"]) == ("2", "2")
    assert first["auc"] == second["auc"] == "1.0"

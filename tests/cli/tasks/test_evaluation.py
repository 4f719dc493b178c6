"""Evaluation of the test bags: parts that all targets share."""

from dataclasses import replace

import numpy as np
import pytest
from cli_runs import metrics, predictions
from samples import ROOT
from sklearn.metrics import roc_auc_score

import train
from tfbig.cli.data.run_data import Data
from tfbig.cli.tasks import evaluation, label_task, mil
from tfbig.cli.tasks.task import Models
from tfbig.mil import BagSet
from tfbig.sources import ArrayBag


def test_outputs_of_an_explanation():
    """If there are several outputs, that of the bag counts."""
    logits = np.array([1.0, 2.0])
    for given in (logits, {"bag": logits, "pseudo": np.zeros((3, 2))}):
        np.testing.assert_array_equal(evaluation.logits_of({"logits": given}), logits)


def test_titles():
    assert evaluation.in_words({"label": "red"}) == "red"
    observed = {"case": "P1", "time": 3.25, "event": 1}
    assert evaluation.in_words(observed) == "case P1, time 3.25, event 1"
    assert evaluation.in_words({"label_a": 0, "label_b": ""}) == "label_a 0"


def numbered_bags(*sizes):
    """Return bags of numbered instances, every second one of class 1."""
    tiles = [np.arange(n, dtype=np.float32)[:, None] for n in sizes]
    bags = tuple(ArrayBag(tile, f"bag {n}") for n, tile in enumerate(tiles))
    return BagSet(bags, np.arange(len(sizes)) % 2)


def panda(**changes):
    recipe = ROOT / "recipes/big-layers-panda-cosine-as-published.yaml"
    return replace(train.settings_of(["--config", str(recipe)]), **changes)


@pytest.mark.parametrize(
    ("sample", "repeats"),
    [(None, 1), (2048, 10), pytest.param(256, 100, marks=pytest.mark.slow)],
)
def test_samples_of_the_test_bags(sample, repeats, tmp_path, monkeypatch):
    """Each repetition draws other instances; results are the means of all, with their deviation."""
    monkeypatch.setattr(evaluation, "draw_attention", lambda *_: None)
    monkeypatch.setattr(label_task.run_results, "print_results", lambda *_: None)
    settings = panda(eval_sample=sample, eval_repeats=repeats)
    part = numbered_bags(*((2100, 3000, 2048, 2500) if sample == 2048 else (300, 900, 256, 500)))
    drawn = []

    def explain(bag):
        numbers = bag.read(0, bag.shape[0])[:, 0].astype(int)
        drawn.append(numbers)
        logits = np.array([0.0, np.sin(numbers.sum())])  # differs between samples
        return {"logits": logits, "attention": np.ones(len(numbers)), "scores": None}

    data = Data.of([part] * 3, ("no", "yes"))
    monkeypatch.setattr(mil, "explainer", lambda models: explain)
    mil.MIL().write_results(Models(None, None), settings, data, tmp_path, {})
    drawn = drawn[: 4 * repeats]  # those of the validation set follow
    sizes = [bag.shape[0] for bag in part.bags]
    for numbers, size in zip(drawn, sizes * repeats, strict=True):
        assert len(numbers) == len(set(numbers)) == min(sample or size, size)
        assert set(numbers) <= set(range(size))
    assert len({each.tobytes() for each in drawn[::4]}) == repeats
    logits = np.array([np.sin(each.sum()) for each in drawn]).reshape(repeats, 4)
    aucs = [roc_auc_score(part.labels, each) for each in logits]
    found = metrics(tmp_path)
    assert found["test_auc"] == pytest.approx(np.mean(aucs))
    assert found["test_accuracy"] == pytest.approx(np.mean((logits > 0) == part.labels))
    if repeats > 1:
        assert found["test_auc_std"] == pytest.approx(np.std(aucs))
    shares = [float(row["probability_yes"]) for row in predictions(tmp_path)]
    assert shares == pytest.approx(np.mean(1 / (1 + np.exp(-logits)), axis=0))

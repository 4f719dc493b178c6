"""Evaluation of the test bags: parts that all targets share."""

import numpy as np

from tfbig.cli.tasks import evaluation


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


def test_means_over_repeats():
    """A metric that is not defined is left out."""
    repeats = [{"auc": 0.5, "qwk": float("nan")}, {"auc": 0.7, "qwk": 0.1}]
    means, deviations = evaluation._means_and_deviations(repeats)
    assert means == {"test_auc": 0.6}
    np.testing.assert_allclose(deviations["test_auc"], 0.1)

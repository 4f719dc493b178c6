"""Figures of merit of predicted numbers, against scikit-learn and by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn import metrics

from tfbig.results import regression


def test_merits() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=30)
    predicted = values + rng.normal(size=30)
    found = regression.merits(values, predicted)
    assert found["mae"] == pytest.approx(metrics.mean_absolute_error(values, predicted))
    assert found["rmse"] == pytest.approx(metrics.mean_squared_error(values, predicted) ** 0.5)
    assert found["r2"] == pytest.approx(metrics.r2_score(values, predicted))
    assert found["pearson"] == pytest.approx(np.corrcoef(values, predicted)[0, 1])
    ranks = [np.argsort(np.argsort(x)) for x in (values, predicted)]
    assert found["spearman"] == pytest.approx(np.corrcoef(*ranks)[0, 1])


def test_constants() -> None:
    found = regression.merits(np.array([1.0, 2.0]), np.array([1.5, 1.5]))
    assert (found["mae"], found["r2"]) == (0.5, 0.0)
    assert math.isnan(found["spearman"])
    one = regression.merits(np.array([1.0]), np.array([3.0]))
    assert one["rmse"] == 2
    assert math.isnan(one["r2"])


def test_figure(tmp_path: Path) -> None:
    regression.write(tmp_path, np.array([1.0, 2.0, 4.0]), np.array([1.5, 1.0, 5.0]))
    with Image.open(tmp_path / "regression.png") as picture:
        assert picture.width == picture.height > 300

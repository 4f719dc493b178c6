"""Figures of merit, tables and curves of risks, compared with lifelines where it is installed."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from cohorts import cohort
from PIL import Image

from tfbig import survival as survival_analysis
from tfbig.results import run_folder, survival


def observed(seed: int = 0, n: int = 50) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    risks, times, events = cohort(seed, n)
    return risks, times, events.astype(int)


def test_merits() -> None:
    risks, times, events = observed()
    found = survival.merits(risks, times, events)
    assert found["concordance"] == survival_analysis.concordance_index(risks, times, events) > 0.6
    assert found["concordance_low"] < found["concordance"] < found["concordance_high"]
    at = np.quantile(times[events == 1], (0.25, 0.5, 0.75))
    areas = survival_analysis.time_dependent_auc(risks, times, events, at)
    assert found["auc"] == pytest.approx(np.mean(areas))
    assert all(map(math.isnan, survival.merits(risks, times, 0 * events).values()))


def test_files(tmp_path: Path) -> None:
    risks, times, events = observed()
    p_value = survival.write(tmp_path, risks, times, events, threshold=0.0)
    low, high = run_folder.read_rows(tmp_path / "risk_groups.csv")
    chosen = risks > 0
    assert (int(low["cases"]), int(high["cases"])) == ((~chosen).sum(), chosen.sum())
    assert int(high["events"]) == events[chosen].sum()
    assert float(high["median_time"]) < float(low["median_time"])
    assert p_value == survival_analysis.log_rank_test(times, events, chosen).p_value
    rows = run_folder.read_rows(tmp_path / "survival_auc.csv")
    assert int(rows[0]["events_before"]) == events[times <= float(rows[0]["time"])].sum()
    with Image.open(tmp_path / "survival.png") as picture:
        assert picture.width > picture.height > 300


@pytest.mark.parametrize(
    ("threshold", "censored"), [(math.inf, False), (-math.inf, False), (0.0, True)]
)
def test_one_group_or_no_event(threshold: float, censored: bool, tmp_path: Path) -> None:
    """Nothing is compared, and the curve of the other group is drawn."""
    risks, times, events = observed(n=8)
    events = 0 * events if censored else events
    assert math.isnan(survival.write(tmp_path, risks, times, events, threshold))
    assert (tmp_path / "survival.png").exists()
    assert (tmp_path / "survival_auc.csv").exists() != censored


def test_report_figures_match_lifelines(tmp_path: Path) -> None:
    lifelines = pytest.importorskip("lifelines")
    statistics = pytest.importorskip("lifelines.statistics")
    utils = pytest.importorskip("lifelines.utils")
    risks, times, events = observed(3)
    found, high = survival.merits(risks, times, events), risks > 0.2
    expected = utils.concordance_index(times, -risks, events)
    assert found["concordance"] == pytest.approx(expected, abs=1e-12)
    p_value = survival.write(tmp_path, risks, times, events, 0.2)
    twin = statistics.logrank_test(times[high], times[~high], events[high], events[~high])
    assert p_value == pytest.approx(twin.p_value, rel=1e-6)
    for row, group in zip(
        run_folder.read_rows(tmp_path / "risk_groups.csv"), (~high, high), strict=True
    ):
        fitter = lifelines.KaplanMeierFitter().fit(times[group], events[group])
        assert float(row["median_time"] or "inf") == fitter.median_survival_time_

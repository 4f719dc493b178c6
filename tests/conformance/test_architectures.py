"""Published networks, small, as people write them, equal plain Keras on every path."""

from __future__ import annotations

from pathlib import Path

import pytest
from architectures import ARCHITECTURES
from layer_cases import Case
from layer_paths import WAYS, check, check_all

FAST = [("networks.tcn", "train_on_batch")]


@pytest.mark.parametrize(
    ("case", "path"),
    [
        pytest.param(
            *(c, path),
            id=f"{c.of}-{path}",
            marks=[] if (c.of, path) in FAST else pytest.mark.slow,
        )
        for c in ARCHITECTURES
        for path in ("predict", "train_on_batch")
    ],
)
def test_prediction_and_training_in_strips(case: Case, path: str, tmp_path: Path) -> None:
    check(case, "strips", [path], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("way", [way for way in WAYS if way != "integers"])
@pytest.mark.parametrize("case", ARCHITECTURES, ids=[c.of for c in ARCHITECTURES])
def test_every_path(case: Case, way: str, tmp_path: Path) -> None:
    """Each network on all paths."""
    check_all(case, way, tmp_path)

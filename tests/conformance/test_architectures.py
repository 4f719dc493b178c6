"""Published networks, small, as people write them, equal plain Keras on every path."""

from __future__ import annotations

from pathlib import Path

import pytest
from architectures import ARCHITECTURES
from layer_cases import Case
from layer_paths import WAYS, check, check_all

FAST = ("networks.tcn",)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(c, id=c.of, marks=[] if c.of in FAST else pytest.mark.slow)
        for c in ARCHITECTURES
    ],
)
def test_prediction_and_training_in_strips(case: Case, tmp_path: Path) -> None:
    check(case, "strips", ["predict", "train_on_batch"], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("way", [way for way in WAYS if way != "integers"])
@pytest.mark.parametrize("case", ARCHITECTURES, ids=[c.of for c in ARCHITECTURES])
def test_every_path(case: Case, way: str, tmp_path: Path) -> None:
    """Each network on all paths."""
    check_all(case, way, tmp_path)

"""Backbones of keras-hub, small, equal plain Keras. They need `pip install -e '.[keras-hub]'`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from layer_paths import WAYS, check, check_all

pytest.importorskip("keras_hub")

from keras_hub_backbones import BACKBONES

pytestmark = pytest.mark.slow
CASES: list[Any] = [pytest.param(case, id=case.of) for case in BACKBONES]


@pytest.mark.parametrize("case", CASES)
def test_prediction_and_training_in_strips(case: Any, tmp_path: Path) -> None:
    check(case, "strips", ["predict", "train_on_batch"], tmp_path)


@pytest.mark.parametrize("way", [way for way in WAYS if way not in ("strips", "integers")])
@pytest.mark.parametrize("case", CASES)
def test_every_path(case: Any, way: str, tmp_path: Path) -> None:
    """Each backbone on all paths."""
    check_all(case, way, tmp_path)

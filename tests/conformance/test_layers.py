"""Layers alone between plain convolutions equal plain Keras on every path, however their images are cut."""

from __future__ import annotations

from pathlib import Path

import pytest
from layer_cases import LAYERS, Case
from layer_paths import WAYS, check_all, check_one, on_one_path


@pytest.mark.parametrize(("number", "case"), on_one_path(LAYERS, share=4))
def test_one_path(number: int, case: Case, tmp_path: Path) -> None:
    """Each case on one path, another than its neighbours."""
    check_one(case, number, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", LAYERS, ids=[c.name for c in LAYERS])
def test_every_path(case: Case, way: str, tmp_path: Path) -> None:
    """Each case on all paths."""
    check_all(case, way, tmp_path)

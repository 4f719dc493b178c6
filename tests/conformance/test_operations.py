"""Operations of keras.ops alone between plain convolutions equal plain Keras on every path."""

from __future__ import annotations

from pathlib import Path

import pytest
from layer_cases import ELEMENTWISE, OPERATIONS, Case
from layer_paths import WAYS, check_all, check_one, on_one_path


@pytest.mark.parametrize(("number", "case"), on_one_path(OPERATIONS, share=9))
def test_one_path(number: int, case: Case, tmp_path: Path) -> None:
    """Each case on one path, another than its neighbours."""
    check_one(case, number, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", OPERATIONS, ids=[c.name for c in OPERATIONS])
def test_every_path(case: Case, way: str, tmp_path: Path) -> None:
    """Each case on all paths."""
    check_all(case, way, tmp_path)


@pytest.mark.parametrize(
    ("number", "case"),
    [
        pytest.param(i, case, id=case.name, marks=[pytest.mark.slow] if i % 96 else [])
        for i, case in enumerate(ELEMENTWISE)
    ],
)
def test_elementwise(number: int, case: Case, tmp_path: Path) -> None:
    """Each operation on one path: a single rule computes all of them."""
    check_one(case, number, tmp_path)

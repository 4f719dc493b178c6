"""Operations of keras.ops alone between plain convolutions equal plain Keras on every path."""

from __future__ import annotations

from pathlib import Path

import pytest
from layer_cases import ELEMENTWISE, OPERATIONS, Case
from layer_paths import WAYS, check, combinations, some


@pytest.mark.parametrize(
    ("number", "case"), list(enumerate(OPERATIONS)), ids=[c.name for c in OPERATIONS]
)
def test_some_paths(number: int, case: Case, tmp_path: Path) -> None:
    """Each case on some paths, others than its neighbours."""
    for way, path in some(case, number):
        check(case, way, [path], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", OPERATIONS, ids=[c.name for c in OPERATIONS])
def test_every_path(case: Case, way: str, tmp_path: Path) -> None:
    """Each case on all paths."""
    paths = [path for each, path in combinations(case) if each == way]
    if paths:
        check(case, way, paths, tmp_path)


@pytest.mark.parametrize(
    ("number", "case"), list(enumerate(ELEMENTWISE)), ids=[c.name for c in ELEMENTWISE]
)
def test_elementwise(number: int, case: Case, tmp_path: Path) -> None:
    """Each operation on one path: a single rule computes all of them."""
    way, path = some(case, number)[0]
    check(case, way, [path], tmp_path)

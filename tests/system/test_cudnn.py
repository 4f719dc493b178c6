"""cuDNN: the limit of what kernels use besides their images."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tfbig.system import cudnn


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    """Start without a limit, and leave what was there before."""
    before = os.environ.pop(cudnn.VARIABLE, None)
    cudnn._of_user.cache_clear()
    yield
    os.environ.pop(cudnn.VARIABLE, None)
    if before is not None:
        os.environ[cudnn.VARIABLE] = before
    cudnn._of_user.cache_clear()


def test_limit_is_the_smallest_that_was_wished() -> None:
    for wished, limit in ((500 * 2**20, "500"), (40 * 2**20 + 5, "40"), (2**30, "40"), (1000, "1")):
        assert cudnn.limit_workspace(wished) == wished
        assert os.environ[cudnn.VARIABLE] == limit


def test_limit_of_the_user_stays() -> None:
    os.environ[cudnn.VARIABLE] = "100"
    assert cudnn.limit_workspace(500 * 2**20) == 100 * 2**20
    assert cudnn.limit_workspace(50 * 2**20) == 50 * 2**20
    assert os.environ[cudnn.VARIABLE] == "100"

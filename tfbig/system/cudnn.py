"""cuDNN: the memory that kernels of convolutions use besides their images."""

from __future__ import annotations

import os
from functools import cache

VARIABLE = "TF_CUDNN_WORKSPACE_LIMIT_IN_MB"
"""Environment variable of TensorFlow, which allows each kernel gigabytes without it."""


def limit_workspace(wished: int) -> int:
    """Limit the memory that a kernel may use besides its images, unless the environment has a limit.

    In the first step TensorFlow tries several kernels for every convolution, some of which use as much as they may. It
    may read the limit only once, so a process should begin with the smallest budget.

    Args:
        wished: The limit in bytes.

    Returns:
        Bytes that a kernel may use.
    """
    chosen = _of_user()
    if chosen is not None:  # what it allows beyond the plan is the choice of the user
        return min(chosen, wished)
    megabytes = max(wished // 2**20, 1)
    present = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(megabytes if present is None else min(megabytes, int(present)))
    return wished


@cache
def _of_user() -> int | None:
    """Return the limit of the environment before it was first set here; None if there was none."""
    found = os.environ.get(VARIABLE, "")
    return int(found) * 2**20 if found.isdecimal() else None

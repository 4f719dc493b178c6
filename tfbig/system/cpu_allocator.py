"""Pooled memory of tensors on the CPU: TensorFlow keeps what is freed for the next tensor.

Without a pool, TensorFlow takes each large tensor from the system and gives it back, and the system clears every page
anew. Where TensorFlow does not use oneDNN, whose allocator has a pool, that took a quarter of the time of a step: see
`docs/adr/0035-pool-the-memory-of-tensors.md`.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

from tfbig.system import tensorflow_internals

POOL = "TF_CPU_ALLOCATOR_USE_BFC"
"""Variable of the environment that TensorFlow reads when it creates its first tensor; "false" is the way out."""

LIMIT = "TF_CPU_BFC_MEM_LIMIT_IN_MB"
"""Variable with the most bytes of the pool in MiB. Its default, 64 GiB, is less than large machines have."""

LATE = "not pooled: TensorFlow was in use before tfbig was imported"


def use_pool(environment: MutableMapping[str, str] | None = None) -> None:
    """Let TensorFlow pool the memory of tensors, unless it has devices already or the environment says otherwise.

    Args:
        environment: Variables to set. Default: those of this process.
    """
    variables = os.environ if environment is None else environment
    if POOL in variables or tensorflow_internals.has_devices():
        return
    variables[POOL] = "true"
    variables.setdefault(LIMIT, str(max(_machine_bytes() >> 20, 2**16)))


def describe(environment: MutableMapping[str, str] | None = None) -> str:
    """Return whether the memory of tensors on the CPU is pooled, and if not, why.

    Args:
        environment: As in `use_pool`.
    """
    value = (os.environ if environment is None else environment).get(POOL)
    if value is None:
        return LATE
    return f"{'pooled' if value.lower() in ('1', 'true') else 'not pooled'} ({POOL}={value})"


def _machine_bytes() -> int:
    """Return the memory of the machine; 0 where it is not known."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


use_pool()

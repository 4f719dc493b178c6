"""TensorFlow reuses the memory of tensors, if tfbig is imported before the first one."""

from __future__ import annotations

import subprocess
import sys

import pytest
from samples import ENVIRONMENT

from tfbig.system import cpu_allocator, tensorflow_internals
from tfbig.system.cpu_allocator import LATE, LIMIT, POOL

FAULTS = """
import resource
{first}
import tensorflow as tf
x = tf.ones(2**24) + 1
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(8):
    y = x + 1
    del y
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
from tfbig.system import cpu_allocator
print(cpu_allocator.describe())
"""
"""Counts the pages that the system hands out for eight tensors of 64 MiB, one after the other."""


def run(first: str, **variables: str) -> tuple[int, str]:
    """Return the number of pages, and what is said of the pool; oneDNN has a pool of its own, which is off."""
    variables = {"TF_ENABLE_ONEDNN_OPTS": "0", **variables}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS.format(first=first)],
        env=ENVIRONMENT | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    faults, words = done.stdout.splitlines()[-2:]
    return int(faults), words


@pytest.mark.slow
def test_memory_is_reused() -> None:
    faults, words = run("import tfbig")
    assert faults < 1000
    assert words == f"pooled ({POOL}=true)"


@pytest.mark.slow
def test_way_out() -> None:
    faults, words = run("import tfbig", **{POOL: "false"})
    assert faults > 8 * 2**26 / 4096 / 2
    assert words == f"not pooled ({POOL}=false)"


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorflow_internals, "has_devices", lambda: False)
    monkeypatch.setattr(cpu_allocator, "_machine_bytes", lambda: 2**40)
    variables: dict[str, str] = {}
    cpu_allocator.use_pool(variables)
    assert variables == {POOL: "true", LIMIT: str(2**20)}
    variables = {LIMIT: "7"}
    cpu_allocator.use_pool(variables)
    assert variables == {POOL: "true", LIMIT: "7"}


def test_too_late_or_decided_already(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {POOL: "false"}
    cpu_allocator.use_pool(variables)
    assert variables == {POOL: "false"}
    monkeypatch.setattr(tensorflow_internals, "has_devices", lambda: True)
    variables = {}
    cpu_allocator.use_pool(variables)
    assert variables == {}
    assert cpu_allocator.describe(variables) == LATE

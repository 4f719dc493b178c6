"""Budgets: sizes as text and numbers, defaults, and available memory."""

from __future__ import annotations

import builtins
import os
from typing import Any

import numpy as np
import pytest

from tfbig import Budget, BudgetError
from tfbig.system import budget
from tfbig.system.budget import available_bytes, parse_bytes


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, 1),
        (8_000_000_000, 8 * 10**9),
        (np.int64(2**40), 2**40),
        (2.0**30, 2**30),
        ("17", 17),
        ("17B", 17),
        ("8GB", 8 * 10**9),
        ("8 GB", 8 * 10**9),
        ("8gb", 8 * 10**9),
        ("8G", 8 * 10**9),
        ("8GiB", 8 * 2**30),
        ("8gib", 8 * 2**30),
        ("8Gi", 8 * 2**30),
        ("512 MiB", 512 * 2**20),
        ("512MB", 512 * 10**6),
        ("3KB", 3000),
        ("3KiB", 3072),
        ("2TB", 2 * 10**12),
        ("2TiB", 2 * 2**40),
        ("1.5G", 1_500_000_000),
        (".5 KiB", 512),
        ("  4 MB  ", 4_000_000),
        ("0.3KiB", 307),  # rounded down to whole bytes
    ],
)
def test_parse_bytes(size: object, expected: int) -> None:
    assert parse_bytes(size) == expected
    assert isinstance(parse_bytes(size), int)


@pytest.mark.parametrize(
    "size",
    [
        "",
        "GB",
        "eight",
        "8XB",
        "8 G B",
        "8GBs",
        "1.2.3GB",
        ".",
        "-1GB",
        -1,
        0,
        "0",
        "0.0GiB",
        "1,5GB",
        "inf",
        float("inf"),
        float("nan"),
        None,
        True,
    ],
)
def test_parse_bytes_refuses_invalid_sizes(size: object) -> None:
    with pytest.raises(
        ValueError,
        match=r"^expected a size such as '8GB', '512MiB' or a number of bytes, received ",
    ) as refused:
        parse_bytes(size)
    assert str(refused.value).endswith(f"received {size!r}.")


def test_default_budget() -> None:
    budget = Budget()
    assert budget.device is None
    assert budget.host is None
    assert budget.device_bytes is None
    assert 0 < budget.host_bytes <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_sizes_are_parsed() -> None:
    budget = Budget(device="2GB", host="3GiB")
    assert (budget.device_bytes, budget.host_bytes) == (2 * 10**9, 3 * 2**30)
    assert Budget(7, 9) == Budget(device=7, host=9)
    assert (Budget(7, 9).device_bytes, Budget(7, 9).host_bytes) == (7, 9)


def test_round_trip_of_config() -> None:
    budget = Budget(device="2GB", host=10**9)
    assert budget.get_config() == {
        "device": "2GB",
        "host": 10**9,
        "disk": None,
        "scratch": None,
    }
    assert Budget(**budget.get_config()) == budget


@pytest.mark.parametrize("field", ["device", "host", "disk"])
@pytest.mark.parametrize("size", ["8 gigs", "much", -1, True])
def test_refuses_invalid_sizes(field: str, size: Any) -> None:
    message = f"^Budget\\({field}={size!r}\\): expected a size .* received {size!r}\\.$"
    with pytest.raises(ValueError, match=message):
        Budget(**{field: size})


def test_default_leaves_memory_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "available_bytes", lambda: 20 * 2**30)
    assert Budget().host_bytes == 18 * 2**30
    assert Budget(host="24GiB").host_bytes == 24 * 2**30


def test_available_memory_without_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise FileNotFoundError

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "open", refuse)
        available = available_bytes()
    assert available == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_available_memory_of_linux(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    table = tmp_path / "meminfo"
    table.write_text("MemTotal: 900 kB\nMemFree: 5 kB\nMemAvailable:     123 kB\nBuffers: 1 kB\n")
    plain = open
    with monkeypatch.context() as patch:
        patch.setattr(builtins, "open", lambda *args: plain(table))
        available = available_bytes()
    assert available == 123 * 1024


def test_missing_scratch_directory_is_named() -> None:
    """A missing directory is an error before anything runs, unless no disk is used."""
    for disk in (None, "10GB"):
        budget = Budget(disk=disk, scratch="/nowhere/at/all")
        with pytest.raises(BudgetError, match="scratch directory '/nowhere/at/all' does not"):
            _ = budget.disk_bytes
    assert Budget(disk=0, scratch="/nowhere/at/all").disk_bytes == 0

"""Calls of the driver of a GPU, with a driver that notes its calls; `tests/gpu` uses a real one."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from tfbig.system import cuda_driver


class Driver:
    """Driver that notes the names of the functions that are called, and reports an error for some."""

    def __init__(self, *fails: str) -> None:
        self.fails = fails
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.calls.append((name, *arguments))
            return 201 if name in self.fails else 0

        return call

    @property
    def names(self) -> list[str]:
        return [name for name, *_ in self.calls]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Driver:
    made = Driver(*getattr(request, "param", ()))
    monkeypatch.setattr(cuda_driver, "library", lambda: made)
    return made


AROUND = ["cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2"]
AFTER = ["cuCtxPopCurrent_v2", "cuDevicePrimaryCtxRelease_v2"]


def test_page_lock(driver: Driver) -> None:
    """The context of TensorFlow is that of the thread meanwhile, and the memory is locked for all of them."""
    assert cuda_driver.page_lock(4096, 8192)
    assert driver.names == [*AROUND, "cuMemHostRegister_v2", *AFTER]
    _, address, size, flags = driver.calls[3]
    assert isinstance(size, ctypes.c_size_t)
    assert (address.value, size.value, flags) == (4096, 8192, 1)
    driver.calls.clear()
    cuda_driver.page_unlock(4096)
    assert driver.names == [*AROUND, "cuMemHostUnregister", *AFTER]


@pytest.mark.parametrize("driver", [["cuMemHostRegister_v2"]], indirect=True)
def test_driver_does_not_lock(driver: Driver) -> None:
    assert not cuda_driver.page_lock(4096, 8192)
    assert driver.names[-2:] == AFTER


@pytest.mark.parametrize(
    ("driver", "calls"),
    [
        (["cuDeviceGet"], AROUND[:1]),
        (["cuDevicePrimaryCtxRetain"], AROUND[:2]),
        (["cuCtxPushCurrent_v2"], [*AROUND, AFTER[1]]),
    ],
    indirect=["driver"],
)
def test_without_a_context_nothing_is_locked(driver: Driver, calls: list[str]) -> None:
    assert not cuda_driver.page_lock(4096, 8192)
    assert driver.names == calls


def test_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "library", lambda: None)
    assert not cuda_driver.page_lock(4096, 8192)
    cuda_driver.page_unlock(4096)
    assert cuda_driver.total_bytes(0) is None
    assert cuda_driver.moves_pages(0) is None


def test_library_is_none_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library is missing, or it finds no GPU."""

    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert cuda_driver.library() is None
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver("cuInit"))
    assert cuda_driver.library() is None
    found = Driver()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: found)
    assert cuda_driver.library() is found

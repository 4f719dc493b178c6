"""The driver of NVIDIA's GPUs, for what TensorFlow does not offer: its C functions, called through `ctypes`."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

_CONCURRENT = 89  # CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS
_PORTABLE = 1  # CU_MEMHOSTREGISTER_PORTABLE: for the contexts of all GPUs


def library() -> ctypes.CDLL | None:
    """Return the library of the driver; None where there is none, or no GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return driver if driver.cuInit(0) == 0 else None


def moves_pages(index: int) -> bool | None:
    """Return whether host and GPU can access managed memory at once; None if the driver does not report it.

    Args:
        index: Index of the GPU.
    """
    driver, supported, device = library(), ctypes.c_int(), ctypes.c_int()
    if driver is None or driver.cuDeviceGet(ctypes.byref(device), index):
        return None
    if driver.cuDeviceGetAttribute(ctypes.byref(supported), _CONCURRENT, device):
        return None
    return bool(supported.value)


def total_bytes(index: int) -> int | None:
    """Return the memory of a GPU in bytes; None if the driver does not report it.

    Args:
        index: Index of the GPU.
    """
    driver, device, total = library(), ctypes.c_int(), ctypes.c_size_t()
    if (
        driver is None
        or driver.cuDeviceGet(ctypes.byref(device), index)
        or driver.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    ):
        return None
    return total.value


def page_lock(address: int, size: int) -> bool:
    """Page-lock host memory: GPUs copy to and from it while they compute, at the full rate of their bus.

    Args:
        address: First byte, on a boundary of a page.
        size: Bytes of the memory.

    Returns:
        Whether the driver has locked it.
    """
    with _context() as driver:
        if driver is None:
            return False
        place = ctypes.c_void_p(address), ctypes.c_size_t(size)
        return bool(driver.cuMemHostRegister_v2(*place, _PORTABLE) == 0)


def page_unlock(address: int) -> None:
    """Undo `page_lock`; copies to and from the memory must have ended.

    Args:
        address: First byte, as it was locked.
    """
    with _context() as driver:
        if driver is not None:
            driver.cuMemHostUnregister(ctypes.c_void_p(address))


@contextmanager
def _context() -> Iterator[ctypes.CDLL | None]:
    """Make the context that TensorFlow uses that of this thread, and yield the driver; None without a GPU."""
    driver, device, context = library(), ctypes.c_int(), ctypes.c_void_p()
    if (
        driver is None
        or driver.cuDeviceGet(ctypes.byref(device), 0)
        or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    ):
        yield None
        return
    try:
        pushed = driver.cuCtxPushCurrent_v2(context) == 0
        try:
            yield driver if pushed else None
        finally:
            if pushed:
                driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(device)

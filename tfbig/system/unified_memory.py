"""Memory that the runtime manages across host and accelerator, for plain models that do not fit the accelerator.

TensorFlow allocates it (`cuMemAllocManaged`) when `per_process_gpu_memory_fraction` is above 1, in a `ConfigProto`
that has to be there before any device is: TensorFlow 2 has no function for that. (`use_unified_memory` alone does not
raise the limit, TensorFlow issue 21600; `TF_FORCE_UNIFIED_MEMORY` is read by JAX alone.)
"""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import context

from tfbig.errors import UnifiedMemoryError
from tfbig.system import backend
from tfbig.system.budget import available_bytes
from tfbig.units import format_bytes

LEAST_CAPABILITY = (6, 0)
"""Of cards that move pages when they are touched: Pascal and later."""

INSTEAD = "Use tfbig.stream, or --mode offload, which need none of it."

_CONCURRENT = 89  # CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS


@dataclass(frozen=True)
class UnifiedMemory:
    """What `unified_memory` found.

    Args:
        device: where the model runs.
        physical_bytes: memory of the device itself; without an accelerator that of the host.
        limit_bytes: what tensors on it may take in all.
    """

    device: str
    physical_bytes: int
    limit_bytes: int

    def __str__(self) -> str:
        return (
            f"unified memory on {self.device}: {format_bytes(self.limit_bytes)} "
            f"for tensors, {format_bytes(self.physical_bytes)} of it the device's own"
        )


def unified_memory(oversubscription: float = 4.0) -> UnifiedMemory:
    """Lets plain Keras models take more memory than the accelerator has.

    Call it before anything that uses a device. Pages move to whoever touches them, so what is used once a step costs
    its way over the bus, each way; `tfbig.stream` moves less. Without an accelerator, and on Apple silicon, memory is
    shared anyway and nothing is set.

    Args:
        oversubscription: bytes for tensors over those that the accelerator has, above 1. What they take beyond those
            is host memory, so there is no more than host and accelerator have free together.

    Returns:
        What was found, with the limit as the device itself reports it.

    Raises:
        ValueError: `oversubscription` is not above 1.
        UnifiedMemoryError: it is too late, the platform cannot, or TensorFlow did not take it.

    Source:
        the shared-memory gigapixel U-Net of Remedios et al., which ran on an M1 Ultra; CUDA managed memory.
    """
    if not 1 < oversubscription < float("inf"):
        raise ValueError(
            f"oversubscription={oversubscription!r}: expected a number above 1, such as 4.0."
        )
    cards = tf.config.list_physical_devices("GPU")
    if not cards or _is_apple_silicon():
        free = available_bytes()
        return UnifiedMemory(cards[0].name if cards else "the CPU", free, free)
    if context.context()._initialized:
        raise UnifiedMemoryError(
            "unified_memory() came too late: TensorFlow has its devices already. Call it first, before any tensor, "
            f"model or list of logical devices is made. {INSTEAD}"
        )
    for card in cards:
        _check(card)
    total = _total_bytes()
    most = (total + 0.9 * available_bytes()) / total
    _configure(min(oversubscription, most))
    return _verified(cards[0].name, total)


def peak_bytes() -> int | None:
    """Most bytes of tensors on the first accelerator so far; None without one."""
    device = backend.accelerator()
    if device is None:
        return None
    return int(tf.config.experimental.get_memory_info(device.lstrip("/"))["peak"])


def _is_apple_silicon() -> bool:
    return platform.system() == "Darwin" and platform.machine() == "arm64"


def _check(card: tf.config.PhysicalDevice) -> None:
    """Refuses accelerators that cannot share memory."""
    capability = tf.config.experimental.get_device_details(card).get("compute_capability")
    if capability is None:
        why = "is a plug-in device, for which TensorFlow has no unified memory"
    elif capability < LEAST_CAPABILITY:
        least, own = (".".join(map(str, c)) for c in (LEAST_CAPABILITY, capability))
        why = f"has compute capability {own}; pages move on demand from {least} on"
    elif tf.config.get_logical_device_configuration(card):
        why = "is divided into logical devices; leave out set_logical_device_configuration"
    elif _moves_pages(int(card.name.rsplit(":", 1)[1])) is False:
        why = "cannot move pages while it computes on this system, as under Windows and WSL"
    else:
        return
    raise UnifiedMemoryError(f"unified_memory(): {card.name} {why}. {INSTEAD}")


def _cuda() -> ctypes.CDLL | None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return driver if driver.cuInit(0) == 0 else None


def _moves_pages(index: int) -> bool | None:
    """Whether host and card may touch managed memory at the same time; None where the driver does not say."""
    driver, found, device = _cuda(), ctypes.c_int(), ctypes.c_int()
    if driver is None or driver.cuDeviceGet(ctypes.byref(device), index):
        return None
    if driver.cuDeviceGetAttribute(ctypes.byref(found), _CONCURRENT, device):
        return None
    return bool(found.value)


def _total_bytes() -> int:
    """Memory of the first card, as its driver says."""
    driver, device, total = _cuda(), ctypes.c_int(), ctypes.c_size_t()
    if (
        driver is None
        or driver.cuDeviceGet(ctypes.byref(device), 0)
        or driver.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    ):
        raise UnifiedMemoryError(
            f"unified_memory(): the driver of the GPU (libcuda.so.1) does not say how much memory it has. {INSTEAD}"
        )
    return total.value


def _configure(fraction: float) -> None:
    """What TensorFlow makes its devices with."""
    config = config_pb2.ConfigProto()
    if context.context()._config is not None:
        config.CopyFrom(context.context()._config)
    config.gpu_options.per_process_gpu_memory_fraction = fraction
    config.gpu_options.experimental.use_unified_memory = True
    config.gpu_options.allow_growth = True  # else all of it is asked for at once
    context.context()._config = config


def _verified(name: str, total: int) -> UnifiedMemory:
    """The limit that the device reports, which is above what it has where TensorFlow took the configuration."""
    tf.config.list_logical_devices()  # makes the devices
    limit = backend.accelerator_bytes()
    if limit <= total:
        raise UnifiedMemoryError(
            f"unified_memory(): TensorFlow did not take it: {name} reports a limit of {format_bytes(limit)} and has "
            f"{format_bytes(total)}. {INSTEAD}"
        )
    return UnifiedMemory(name, total, limit)

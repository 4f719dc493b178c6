"""Unified memory: memory shared by host and accelerator, for plain models that do not fit the accelerator.

TensorFlow allocates it (`cuMemAllocManaged`) when `per_process_gpu_memory_fraction` is above 1, in a `ConfigProto`
that must be set before any device is created: TensorFlow 2 has no function for that. (`use_unified_memory` alone does
not raise the limit, TensorFlow issue 21600; `TF_FORCE_UNIFIED_MEMORY` is read by JAX alone.)
"""

from __future__ import annotations

import platform
from dataclasses import dataclass

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from tfbig.errors import Advice, UnifiedMemoryError
from tfbig.system import backend, cuda_driver, tensorflow_internals
from tfbig.system.budget import available_bytes
from tfbig.units import format_bytes

LEAST_CAPABILITY = (6, 0)
"""Lowest compute capability of GPUs that move pages on demand (Pascal)."""


@dataclass(frozen=True)
class UnifiedMemory:
    """Result of `unified_memory`: the device and its memory limit.

    Args:
        device: Device that runs the model.
        physical_bytes: Memory of the device itself; without an accelerator the available memory of the host.
        limit_bytes: Limit for all tensors on the device.

    Example:
        >>> print(tfbig.UnifiedMemory("/GPU:0", 8 * 2**30, 30 * 2**30))
        unified memory on /GPU:0: 30.0 GiB for tensors, of which the device has 8.0 GiB
    """

    device: str
    physical_bytes: int
    limit_bytes: int

    def __str__(self) -> str:
        """Return a line with the device, the limit and the physical memory."""
        if self.limit_bytes == self.physical_bytes:
            return (
                f"unified memory: {self.device} has no memory of its own, so this is plain Keras; "
                f"{format_bytes(self.limit_bytes)} are available"
            )
        return (
            f"unified memory on {self.device}: {format_bytes(self.limit_bytes)} "
            f"for tensors, of which the device has {format_bytes(self.physical_bytes)}"
        )


def unified_memory(oversubscription: float = 4.0) -> UnifiedMemory:
    """Let plain Keras models use more memory than the accelerator has.

    Call it before anything that uses a device. Pages move to the processor that touches them, so data that is used
    once per step crosses the bus in each direction; `tfbig.stream` moves less. Without an accelerator, and on Apple
    silicon, memory is shared anyway and nothing is set.

    Source: the shared-memory gigapixel U-Net of Remedios et al., which ran on an M1 Ultra; CUDA managed memory.

    Args:
        oversubscription: Limit for tensors as a multiple of the accelerator's memory, above 1. The excess is host
            memory, so the limit is reduced to what accelerator and host have available together.

    Returns:
        The device and its limit in bytes, as the device reports it.

    Raises:
        ValueError: `oversubscription` is not above 1.
        UnifiedMemoryError: A device already exists, the platform does not support it, or TensorFlow ignored it.

    Example:
        >>> memory = tfbig.unified_memory(oversubscription=4.0)  # before the first tensor
        >>> memory.limit_bytes >= memory.physical_bytes
        True
    """
    if not 1 < oversubscription < float("inf"):
        raise ValueError(
            f"oversubscription={oversubscription!r}: expected a number above 1, such as 4.0."
        )
    cards = tf.config.list_physical_devices("GPU")
    if not cards or _is_apple_silicon():
        free = available_bytes()
        return UnifiedMemory(cards[0].name if cards else "the CPU", free, free)
    if tensorflow_internals.has_devices():
        raise UnifiedMemoryError(
            "unified memory was asked for too late: TensorFlow has created its devices. Ask for it first, before "
            "creating any tensor or model, or listing logical devices.",
            Advice.NOT_UNIFIED,
        )
    for card in cards:
        _check(card)
    total = _total_bytes()
    most = (total + 0.9 * available_bytes()) / total
    _configure(min(oversubscription, most))
    return _verified(cards[0].name, total)


def peak_bytes() -> int | None:
    """Return the peak use of the first accelerator by tensors in bytes; None without an accelerator."""
    device = backend.accelerator()
    if device is None:
        return None
    return int(tf.config.experimental.get_memory_info(device.lstrip("/"))["peak"])


def _is_apple_silicon() -> bool:
    return platform.system() == "Darwin" and platform.machine() == "arm64"


def _check(card: tf.config.PhysicalDevice) -> None:
    """Raise UnifiedMemoryError if an accelerator cannot share memory."""
    capability = tf.config.experimental.get_device_details(card).get("compute_capability")
    if capability is None:
        why = "is a plug-in device, for which TensorFlow has no unified memory"
    elif capability < LEAST_CAPABILITY:
        least, actual = (".".join(map(str, c)) for c in (LEAST_CAPABILITY, capability))
        why = f"has compute capability {actual}; expected {least} or higher"
    elif tf.config.get_logical_device_configuration(card):
        why = "is divided into logical devices; remove set_logical_device_configuration"
    elif cuda_driver.moves_pages(int(card.name.rsplit(":", 1)[1])) is False:
        why = "cannot move pages while it computes on this system, as under Windows and WSL"
    else:
        return
    raise UnifiedMemoryError(f"unified memory: {card.name} {why}.", Advice.NOT_UNIFIED)


def _total_bytes() -> int:
    """Return the memory of the first GPU in bytes, as its driver reports it."""
    total = cuda_driver.total_bytes(0)
    if total is None:
        raise UnifiedMemoryError(
            "unified memory: the GPU driver (libcuda.so.1) does not report the size of its memory.",
            Advice.NOT_UNIFIED,
        )
    return total


def _configure(fraction: float) -> None:
    """Set the configuration with which TensorFlow creates its devices."""
    config = config_pb2.ConfigProto()
    if tensorflow_internals.session_config() is not None:
        config.CopyFrom(tensorflow_internals.session_config())
    config.gpu_options.per_process_gpu_memory_fraction = fraction
    config.gpu_options.experimental.use_unified_memory = True
    config.gpu_options.allow_growth = True  # otherwise all of it is allocated at once
    tensorflow_internals.set_session_config(config)


def _verified(name: str, total: int) -> UnifiedMemory:
    """Create the devices and return the reported limit, which must exceed the memory of the GPU."""
    tf.config.list_logical_devices()  # creates the devices
    limit = tensorflow_internals.accelerator_bytes()
    if limit <= total:
        raise UnifiedMemoryError(
            f"unified memory: TensorFlow ignored it: {name} reports a limit of {format_bytes(limit)} and has "
            f"{format_bytes(total)}.",
            Advice.NOT_UNIFIED,
        )
    return UnifiedMemory(name, total, limit)

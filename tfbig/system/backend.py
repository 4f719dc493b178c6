"""Device queries, and a check on import that Keras runs on TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tfbig.system import startup_logs

HOST = "/CPU:0"
"""Device of stores, of input images, and of integers of shapes and pages."""


def check() -> None:
    """Check that Keras 3 with the TensorFlow backend will be used.

    Raises:
        ImportError: Legacy Keras 2 is selected, or Keras uses a backend other than TensorFlow.
    """
    if os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true"):
        raise ImportError(
            "tfbig needs Keras 3: unset TF_USE_LEGACY_KERAS, which selects legacy Keras 2."
        )
    name = os.environ.get("KERAS_BACKEND", "tensorflow")
    if name == "tensorflow":
        with startup_logs.held_back():
            import keras

        name = keras.backend.backend()
    if name != "tensorflow":
        raise ImportError(
            f"tfbig needs the TensorFlow backend of Keras, found '{name}': "
            "set KERAS_BACKEND=tensorflow before importing keras."
        )


def accelerator() -> str | None:
    """Return the name of the first accelerator, or None without one."""
    import tensorflow as tf

    return "/GPU:0" if tf.config.list_logical_devices("GPU") else None


def is_gpu(device: str | None) -> bool:
    """Return whether a device has memory of its own: a copy to it takes as long as the bus needs.

    Args:
        device: Name of the device; None leaves it to TensorFlow.
    """
    return device is not None and "GPU" in device


def devices_of(devices: str | Sequence[str] | None, argument: str = "devices=") -> tuple[str, ...]:
    """Return the devices that process strips.

    Args:
        devices: One name or several; None selects the first accelerator.
        argument: What errors call the argument, before its value.

    Returns:
        Device names; empty without `devices` and without an accelerator.

    Raises:
        ValueError: A device does not exist or is listed twice.
    """
    if devices is None:
        return () if accelerator() is None else (str(accelerator()),)
    names = (devices,) if isinstance(devices, str) else tuple(devices)
    specs = [check_device(name, argument) for name in names]
    if not specs or len({*specs}) < len(specs):
        raise ValueError(f"{argument}{devices!r}: expected one device or several different ones.")
    return names


def check_device(name: str, argument: str = "devices=") -> tuple[str, int]:
    """Return the type and index of a device.

    Args:
        name: A device name such as `"/GPU:0"` or `"CPU:1"`.
        argument: As in `devices_of`.

    Returns:
        The type and the index, such as `("GPU", 0)`.

    Raises:
        ValueError: TensorFlow has no device of this name.
    """
    import tensorflow as tf

    names = [d.name for d in tf.config.list_logical_devices()]
    try:
        spec = tf.DeviceSpec.from_string(name if name.startswith("/") else f"/{name}")
    except ValueError:
        spec = tf.DeviceSpec(device_type="?")
    specs = [tf.DeviceSpec.from_string(each) for each in names]
    devices = [(d.device_type, d.device_index) for d in specs]
    device = (spec.device_type, spec.device_index or 0)
    if device not in devices:
        raise ValueError(f"{argument}{name!r}: no such device; expected one of {', '.join(names)}.")
    return device


check()

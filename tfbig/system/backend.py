"""Refuses what tfbig cannot run on, before anything else is imported."""

from __future__ import annotations

import os
from collections.abc import Sequence


def check() -> None:
    """Checks the Keras that is about to be used.

    Raises:
        ImportError: legacy Keras 2 is asked for, or Keras runs on another backend than TensorFlow.
    """
    if os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true"):
        raise ImportError(
            "tfbig needs Keras 3: unset TF_USE_LEGACY_KERAS, which selects legacy Keras 2."
        )
    chosen = os.environ.get("KERAS_BACKEND", "tensorflow")
    if chosen == "tensorflow":
        import keras

        chosen = keras.backend.backend()
    if chosen != "tensorflow":
        raise ImportError(
            f"tfbig needs the TensorFlow backend of Keras, found '{chosen}': "
            "set KERAS_BACKEND=tensorflow before importing keras."
        )


def accelerator() -> str | None:
    """The first accelerator, or None."""
    import tensorflow as tf

    return "/GPU:0" if tf.config.list_logical_devices("GPU") else None


def devices_of(asked: str | Sequence[str] | None) -> tuple[str, ...]:
    """Where strips are worked on: what was asked for, else the first accelerator, if any.

    Raises:
        ValueError: there is none of a name, or one is named twice.
    """
    if asked is None:
        return () if accelerator() is None else (str(accelerator()),)
    names = (asked,) if isinstance(asked, str) else tuple(asked)
    found = [check_device(name) for name in names]
    if not found or len({*found}) < len(found):
        raise ValueError(f"devices={asked!r}: expected one device or several different ones.")
    return names


def check_device(name: str) -> tuple[str, int]:
    """Kind and number of a device.

    Raises:
        ValueError: there is none of this name.
    """
    import tensorflow as tf

    known = [d.name for d in tf.config.list_logical_devices()]
    try:
        wanted = tf.DeviceSpec.from_string(name if name.startswith("/") else f"/{name}")
    except ValueError:
        wanted = tf.DeviceSpec(device_type="?")
    specs = [tf.DeviceSpec.from_string(each) for each in known]
    kinds = [(d.device_type, d.device_index) for d in specs]
    found = (wanted.device_type, wanted.device_index or 0)
    if found not in kinds:
        raise ValueError(f"devices={name!r}: there is none; TensorFlow knows {', '.join(known)}.")
    return found


def accelerator_bytes() -> int:
    """Memory that TensorFlow may use on the first accelerator."""
    from tensorflow.python.client import device_lib

    return max(d.memory_limit for d in device_lib.list_local_devices() if d.device_type == "GPU")


check()

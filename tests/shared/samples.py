"""Paths of the checkout, small slides, a callback with a history, and a network that segments dark pixels."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tifffile
from keras import layers

ROOT = Path(__file__).resolve().parents[2]
"""Root of the checkout."""

FILES = ROOT / "tests" / "files"
PROGRAMS = ROOT / "tests" / "programs"
"""Programs that tests run in subprocesses, with `ENVIRONMENT`."""

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(
        [str(ROOT), str(ROOT / "tests" / "shared"), os.environ.get("PYTHONPATH", "")]
    ).rstrip(os.pathsep),
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


def tissue(seed: int) -> np.ndarray:
    """Return a white slide `[256, 384, 3]` with a dark rectangle of tissue."""
    random = np.random.default_rng(seed)
    image = random.integers(236, 256, (256, 384, 3)).astype(np.uint8)
    image[60:200, 80:300] = random.integers(90, 170, (140, 220, 3))
    return image


def write_slide(path: Path, seed: int) -> None:
    """Write `tissue` as a tiled TIFF."""
    path.parent.mkdir(exist_ok=True)
    tifffile.imwrite(path, tissue(seed), photometric="rgb", tile=(128, 128))


class History(keras.callbacks.Callback):
    """Callback that collects one row per epoch, which checkpoints store."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, Any]] = []

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.rows.append({"epoch": epoch, **(logs or {})})

    def checkpoint_state(self) -> list[dict[str, Any]]:
        return self.rows

    def restore_state(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def checkpoint_written(self) -> None:
        pass


def darkness(path, channels=3, outputs=1):
    """Save a network that segments dark pixels: the mean of 3 x 3 pixels compared with 180."""
    x = image = keras.Input((None, None, channels))
    x = layers.Rescaling(1 / 255)(x)
    x = layers.Conv2D(outputs, 3, padding="same", name="mean")(x)
    model = keras.Model(image, layers.Activation("sigmoid" if outputs == 1 else "softmax")(x))
    sign = np.array([-1.0, 1.0, -3.0][:outputs]) if outputs > 1 else np.array([-1.0])
    kernel = np.broadcast_to(sign * 60 / (9 * channels), (3, 3, channels, outputs))
    bias = -sign * 60 * 180 / 255 - (3 * (np.arange(outputs) == 2))
    model.get_layer("mean").set_weights([kernel, bias])
    model.save(path)
    return model

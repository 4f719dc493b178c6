"""Time and memory of a training step of the gigapixel U-Net on one gigapixel.

    python benchmarks/gigapixel_unet.py [--rows 16000 --columns 64000 --steps 3]

Writes a uint8 image of real tissue and its labels to memory maps; trains the gigapixel U-Net on them with `fit`; prints
one JSON line. `seconds` is the median step without the first, which traces.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

import keras
import numpy as np
import tensorflow as tf

import tfbig
from benchmarks import harness, report, turns
from tfbig.models.gigapixel_unet import gigapixel_unet
from tfbig.tissue import masks

SLIDE = ROOT / "examples/data/esophagus_eosinophilic.tif"


class Steps(keras.callbacks.Callback):
    """Callback that records the seconds of every step."""

    def __init__(self):
        super().__init__()
        self.seconds = []

    def on_train_batch_begin(self, batch, logs=None):
        self.began = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.seconds.append(time.perf_counter() - self.began)
        print(f"step {batch}: {self.seconds[-1]:.2f} s", file=sys.stderr)


def write_image(folder: Path, rows: int, columns: int) -> tuple[Path, Path]:
    """Write an inverted gray image `[rows, columns, 1]` and its labels: a real slide, mirrored and repeated."""
    slide = tfbig.sources.Grayscale(tfbig.open(SLIDE), invert=True)
    labels = masks.tissue_mask(tfbig.open(SLIDE))
    paths = folder / "image.npy", folder / "labels.npy"
    for path, source in zip(paths, (slide, labels), strict=True):
        with tfbig.sources.write_npy(path, (rows, columns, 1), np.dtype("uint8")) as writer:
            for start in range(0, rows, 256):
                at = np.arange(start, min(start + 256, rows)) % source.shape[0]
                parts = [source.read(int(r), int(r) + 1) for r in at]
                writer.write(start, mirrored(np.concatenate(parts), columns))
    return paths


def mirrored(rows: np.ndarray, columns: int) -> np.ndarray:
    """Return rows repeated to the right, every other copy mirrored."""
    pair = np.concatenate([rows, rows[:, ::-1]], 1)
    return np.tile(pair, (1, -(-columns // pair.shape[1]), 1))[:, :columns]


@dataclass(frozen=True)
class Arguments:
    rows: Annotated[int, "image rows"] = 16000
    columns: Annotated[int, "image columns"] = 64000
    steps: Annotated[int, "training steps, at least two"] = 3
    device_memory: Annotated[str, "bytes for strips"] = "512MB"
    host: Annotated[str | None, "bytes of host memory; by default what is available"] = None
    folder: Annotated[Path | None, "where the two memory maps are (kept) or go"] = None
    turns: Annotated[Path | None, "folder of processes that share a GPU"] = None


def main() -> None:
    arguments = harness.read(Arguments)
    turns.join(arguments.turns)
    base = report.memory_bytes()[0]
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        paths = folder / "image.npy", folder / "labels.npy"
        if not all(p.exists() for p in paths):
            folder.mkdir(parents=True, exist_ok=True)
            write_image(folder, arguments.rows, arguments.columns)
        handles = [tf.constant([tfbig.open(p).handle]) for p in paths]
        budget = tfbig.Budget(device=arguments.device_memory, host=arguments.host)
        big = tfbig.stream(gigapixel_unet(), budget)
        big.compile(keras.optimizers.Adam(1e-3), "binary_crossentropy")
        plan = big.plan((1, arguments.rows, arguments.columns, 1))
        print(plan, file=sys.stderr)
        steps = Steps()
        data = tf.data.Dataset.from_tensors(tuple(handles))
        big.fit(data, verbose=0, callbacks=[steps])
        with turns.alone(arguments.turns):
            history = big.fit(data.repeat(arguments.steps - 1), verbose=0, callbacks=[steps])
    print(
        report.line(
            "gigapixel_unet",
            [arguments.rows, arguments.columns, 1],
            seconds=round(statistics.median(steps.seconds[1:]), 2),
            first_seconds=round(steps.seconds[0], 2),
            base_bytes=base,
            peak_bytes=report.memory_bytes()[1],
            planned_bytes=base + plan.peak_bytes,
            predicted_seconds=round(plan.seconds, 2),
            **report.device_memory(),
            loss=history.history["loss"][-1],
        )
    )


if __name__ == "__main__":
    main()

"""Measure how long the cores are idle in a training step because a slide is decoded.

    python benchmarks/waiting.py --slide SLIDE [--steps 3]

Trains the gigapixel U-Net on a whole compressed slide that is decoded as it is read, with labels from a threshold;
again with the same image already decoded in memory; and again without reading ahead. Each runs in its own process;
prints one JSON line. `seconds` and `idle_share`, the share of the cores' time that was not used, are medians of the
steps without the first; `memory_...` are those with the image in memory, `late_...` those without reading ahead.
`waiting_share` is the difference of the idle shares of the first two: the time that the engine waits for rows.
`asked_seconds` is the time of a step between requesting rows and receiving them, during which other strips are
processed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

import keras
import tensorflow as tf

import tfbig
from benchmarks import report
from tfbig.cli.data.slides_and_masks import open_slide
from tfbig.engine import read_ahead
from tfbig.models.gigapixel_unet import gigapixel_unet


class Waits(keras.callbacks.Callback):
    """Records of every step: seconds, the idle share of the cores' time, and the seconds of requests for rows."""

    def __init__(self):
        super().__init__()
        self.seconds, self.idle, self.asked = [], [], []
        self._read = read_ahead._read_source
        read_ahead._read_source = self.read

    def read(self, *arguments):
        began = time.perf_counter()
        rows = self._read(*arguments)
        self.asked[-1] += time.perf_counter() - began
        return rows

    def on_train_batch_begin(self, batch, logs=None):
        self.began, self.worked = time.perf_counter(), time.process_time()
        self.asked.append(0.0)

    def on_train_batch_end(self, batch, logs=None):
        self.seconds.append(time.perf_counter() - self.began)
        busy = (time.process_time() - self.worked) / len(os.sched_getaffinity(0))
        self.idle.append(1 - busy / self.seconds[-1])
        print(f"{self.seconds[-1]:.2f} s, idle {self.idle[-1]:.0%}", file=sys.stderr)


def trained(arguments):
    """Return the figures of training in this process."""
    keras.utils.set_random_seed(0)
    slide = open_slide(arguments.slide).padded()
    image, labels = slide.image, slide.labels
    if arguments.only == "late":
        read_ahead.AHEAD.begin = lambda *rows: None
    if arguments.only == "memory":
        image = tfbig.sources.ArraySource(image.read(0, image.shape[0]))
    big = tfbig.stream(gigapixel_unet())
    big.compile(keras.optimizers.Adam(1e-3), "binary_crossentropy")
    pairs = [image.handle] * (arguments.steps + 1), [labels.handle] * (arguments.steps + 1)
    waits = Waits()
    big.fit(
        tf.data.Dataset.from_tensor_slices(pairs).batch(1),
        shuffle=False,
        verbose=0,
        callbacks=[waits],
    )
    numbers = {"seconds": waits.seconds, "idle_share": waits.idle, "asked_seconds": waits.asked}
    figures = {key: statistics.median(values[1:]) for key, values in numbers.items()}
    return figures | {"peak_bytes": report.memory_bytes()[1], "size": list(image.shape)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--slide", required=True)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--only", choices=["file", "memory", "late"], help="in this process")
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(trained(arguments)))
        return
    flags = [__file__, f"--slide={arguments.slide}", f"--steps={arguments.steps}"]
    figures, memory, late = (
        report.in_own_process([*flags, f"--only={only}"]) for only in ("file", "memory", "late")
    )
    size = figures.pop("size")
    figures["waiting_share"] = figures["idle_share"] - memory["idle_share"]
    figures |= {f"memory_{key}": memory[key] for key in ("seconds", "idle_share", "peak_bytes")}
    figures |= {f"late_{key}": late[key] for key in ("seconds", "idle_share")}
    print(report.line("waiting", size, steps=arguments.steps, **figures))


if __name__ == "__main__":
    main()

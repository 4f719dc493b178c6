"""Bytes per second of operations that change an image on a GPU, and that create one.

    python benchmarks/gpu_operations.py [--side 4096] [--only "InplaceAdd"]

The image is the first of ResNet-18 for an input of `--side`: 64 channels, float16, rows first, `[side / 2, 1, side / 2,
64]`. Each operation runs on eight strips in turn, several times in one function; the time of one includes its share of
the call. Bytes per second are those that must move (a strip that is written: read and written once; one that is added:
the image too; a copy: the image read and written; zeros: written), whatever the operation moves. Prints a JSON line for
each. Without a GPU, it runs on the CPU, to try it.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

from benchmarks import harness, report

STRIPS = 8
"""Strips of the image: 256 rows each for an input of 4096 rows."""

REPEATS = 16
"""Operations in one function."""

CALLS = 5
"""Calls of the function, of which the median is printed."""


class Operation(NamedTuple):
    """An operation on an image.

    Args:
        run: Function of the image, the rows of a strip and the host's first row; returns the changed image.
        strips: Bytes that must move, in strips.
        images: Bytes that must move, in images.
        bits: Whether the image and the rows are the same bits as int64, four channels in each.
    """

    run: Callable[[Any, Any, Any], Any]
    strips: int = 0
    images: int = 0
    bits: bool = False


@dataclass(frozen=True)
class Arguments:
    side: Annotated[int, "rows of the input"] = 4096
    only: Annotated[str | None, "one operation"] = None


def main() -> None:
    import tensorflow as tf

    arguments = harness.read(Arguments)
    gpu = bool(tf.config.list_physical_devices("GPU"))
    for name, operation in operations().items():
        if arguments.only in (None, name):
            with tf.device("/GPU:0" if gpu else "/CPU:0"):
                try:
                    found = measured(operation, arguments.side // 2)
                except tf.errors.OpError as error:  # the others are still of interest
                    found = {"error": error.message.partition("\n")[0][:200]}
            print(report.line("gpu operations", [arguments.side], what=name, **found), flush=True)


def operations() -> dict[str, Operation]:
    """Return the operations by name."""
    import tensorflow as tf

    raw = tf.raw_ops

    def on_host(rows: Any, first: Any) -> Any:
        with tf.device("/CPU:0"):
            return tf.range(first, first + rows.shape[0])

    def on_device(rows: Any, first: Any) -> Any:
        with tf.device("/CPU:0"):
            start = tf.cast(first, tf.int64)
            stop = start + rows.shape[0]
        return tf.cast(tf.range(start, stop), tf.int32)

    def update(image: Any, rows: Any, first: Any, index: Any = on_host) -> Any:
        return raw.InplaceUpdate(x=image, i=index(rows, first), v=rows)

    def add(image: Any, rows: Any, first: Any) -> Any:
        return raw.InplaceAdd(x=image, i=on_host(rows, first), v=rows)

    def sum_update(image: Any, rows: Any, first: Any) -> Any:
        earlier = numbers(image[first : first + rows.shape[0]])
        return update(image, bits(earlier + numbers(rows)), first)

    def sliced(image: Any, rows: Any, first: Any) -> Any:
        with tf.device("/CPU:0"):
            begin, end = first[None], first[None] + rows.shape[0]
        return raw.TensorStridedSliceUpdate(
            input=image, begin=begin, end=end, strides=[1], value=rows
        )

    def zeros(image: Any, *_: Any) -> Any:
        return raw.Empty(shape=tf.shape(image), dtype=image.dtype, init=True)

    return {
        "InplaceUpdate": Operation(update, strips=2),
        "InplaceUpdate as int64": Operation(update, strips=2, bits=True),
        "InplaceUpdate as int64, rows counted on the GPU": Operation(
            lambda *each: update(*each, index=on_device), strips=2, bits=True
        ),
        "InplaceAdd": Operation(add, strips=3),
        "sum of the strip, and InplaceUpdate as int64": Operation(sum_update, strips=3, bits=True),
        "TensorStridedSliceUpdate": Operation(sliced, strips=2),
        "TensorStridedSliceUpdate as int64": Operation(sliced, strips=2, bits=True),
        "DeepCopy": Operation(lambda image, *_: raw.DeepCopy(x=image), images=2),
        "zeros by Empty": Operation(zeros, images=1),
    }


def bits(x: Any) -> Any:
    """Return float16 `[..., C]` as int64 `[..., C / 4]`, the same memory."""
    import tensorflow as tf

    return tf.bitcast(tf.reshape(x, [*x.shape[:-1], x.shape[-1] // 4, 4]), tf.int64)


def numbers(x: Any) -> Any:
    """Return int64 `[..., C / 4]` as float16 `[..., C]`, the same memory."""
    import tensorflow as tf

    count = -1 if x.shape[0] is None else x.shape[0]
    return tf.reshape(tf.bitcast(x, tf.float16), [count, *x.shape[1:-1], 4 * x.shape[-1]])


def measured(operation: Operation, side: int) -> dict[str, Any]:
    """Return the seconds of an operation, and the bytes per second that it must move."""
    import tensorflow as tf

    height = side // STRIPS
    rows = tf.ones([height, 1, side, 64], tf.float16)
    with tf.device("/CPU:0"):
        zero = tf.constant(0)

    @tf.function(autograph=False)
    def repeated(rows: Any, zero: Any) -> Any:
        image = tf.raw_ops.Empty(shape=[side, 1, side, 64], dtype=tf.float16)  # not filled
        image, rows = (bits(image), bits(rows)) if operation.bits else (image, rows)
        for number in range(REPEATS):
            with tf.device("/CPU:0"):
                first = zero + number % STRIPS * height
            image = operation.run(image, rows, first)
        return image[0, 0, 0, 0]

    def call() -> float:
        began = time.perf_counter()
        repeated(rows, zero).numpy()
        return (time.perf_counter() - began) / REPEATS

    call()
    seconds = statistics.median(call() for _ in range(CALLS))
    pixels = operation.strips * height + operation.images * side
    moved = 2 * 64 * side * pixels
    return {
        "seconds": round(seconds, 7),
        "moved_bytes": moved,
        "bytes_per_second": round(moved / seconds, -7),
    }


if __name__ == "__main__":
    main()

"""Measured speed of this machine; measuring takes a few seconds, and the result is kept in a file."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import tensorflow as tf

from tfbig.plan.plan import Rates
from tfbig.stores import host_store, parallel_copies
from tfbig.stores.file_pool import FilePool
from tfbig.stores.host_memory import LockedPool
from tfbig.system import backend, callbacks
from tfbig.system.backend import HOST

IMAGE_SHAPE = (1, 256, 256, 64)
IMAGE_SIZE = math.prod(IMAGE_SHAPE)
"""Elements of the image that is computed to measure the speed."""

IN_A_ROW = 20
"""Operations on an accelerator that are timed together: starting one, and asking for a result, takes longer than it."""

VERSION = 2
"""Version of what is measured; rates of another one are measured again."""

_known: dict[str, Rates] = {}


def of(device: str | None, scratch: str | None = None) -> Rates:
    """Return the rates of this machine: from memory, from the file, or measured.

    Args:
        device: Device that computes strips; None for the CPU.
        scratch: Directory of the file that stores spill to; by default the directory for temporary files.
    """
    key = f"{platform.processor() or platform.machine()} x{os.cpu_count()} {device or 'CPU'} tf{tf.__version__}"
    key += f" v{VERSION}" + (f" {os.path.realpath(scratch)}" if scratch else "")
    if key not in _known:
        _known[key] = _load(key) or _measure_and_save(key, device, scratch)
    return _known[key]


def known() -> dict[str, dict[str, float]]:
    """Return the rates that this process made plans with, by machine, device and scratch directory."""
    return {key: asdict(rates) for key, rates in _known.items()}


def use(rates: dict[str, dict[str, float]]) -> None:
    """Use rates that `known` returned, so that plans equal those of another process on this machine."""
    _known.update({key: Rates(**numbers) for key, numbers in rates.items()})


def file() -> Path:
    """Return the path of the file with the rates. Delete it to measure them again."""
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "tfbig" / "rates.json"


def _saved() -> dict[str, dict[str, float]]:
    """Return the content of the file; empty if it cannot be read."""
    try:
        saved = json.loads(file().read_text())
    except (OSError, ValueError):
        return {}
    return saved if isinstance(saved, dict) else {}


def _load(key: str) -> Rates | None:
    """Return rates from the file; None if they are missing or damaged."""
    saved = _saved().get(key)
    if not isinstance(saved, dict) or saved.keys() != asdict(Rates()).keys():
        return None
    return Rates(**saved) if all(isinstance(n, float) and n > 0 for n in saved.values()) else None


def _measure_and_save(key: str, device: str | None, scratch: str | None) -> Rates:
    rates = measure(device, scratch)
    try:
        file().parent.mkdir(parents=True, exist_ok=True)
        unfinished = file().with_suffix(f".{os.getpid()}.part")
        unfinished.write_text(json.dumps(_saved() | {key: asdict(rates)}, indent=1))
        unfinished.replace(file())
    except OSError:
        pass  # the home directory is read-only: the next process measures again
    return rates


def measure(device: str | None, scratch: str | None = None) -> Rates:
    """Measure convolutions of 64 channels, a sum of two images, copies of 32 MiB, and a file of 512 MiB.

    Half of the operations of the convolutions are of a 3x3 kernel and half of 1x1 kernels, which are slower. The
    sum reads two images, as layers that join them do.

    It needs about 110 MiB of memory, so that it fits where a small step does; on an accelerator 200 MiB more.

    Args:
        device: Device that computes strips; None for the CPU.
        scratch: Directory of the file that stores spill to; by default the directory for temporary files.
    """
    convolve, add = _computing_seconds(device)
    block = np.ones(2**23, np.float32)
    return Rates(
        operations=2 * (9 + 9) * 64 / convolve,
        passes=4 / add,
        copies=block.nbytes / _copy_seconds(block, device),
        mapped=2 * block.nbytes / _mapped_seconds(block, scratch),
        disk=block.nbytes / _disk_seconds(block, scratch),
    )


def _computing_seconds(device: str | None) -> tuple[float, float]:
    """Return the seconds of a 3x3 and nine 1x1 convolutions, and of a sum of two images, per element of the image."""
    is_gpu = backend.is_gpu(device)
    shape, times = ((1, 512, 512, 64), IN_A_ROW) if is_gpu else (IMAGE_SHAPE, 1)
    with tf.init_scope(), tf.device(device):
        strip, other = tf.zeros(shape), tf.ones(shape)
        large, small = tf.zeros((3, 3, 64, 64)), tf.zeros((1, 1, 64, 64))

        def repeated(work: Callable[[tf.Tensor], tf.Tensor]) -> float:
            def run() -> None:
                result = strip
                for _ in range(times):
                    result = work(result)
                result[0, 0, 0, 0].numpy()

            return _seconds(run) / times / math.prod(shape)

        of_large = repeated(lambda x: tf.nn.conv2d(x, large, 1, "SAME"))
        of_small = repeated(lambda x: tf.nn.conv2d(x, small, 1, "SAME"))
        return of_large + 9 * of_small, repeated(lambda x: x + other)


def _copy_seconds(block: np.ndarray, device: str | None) -> float:
    """Return the seconds to copy a block: in memory, or as a strip to a device or back."""
    target = np.empty_like(block)
    if device is None:
        return _seconds(lambda: np.copyto(target, block))
    pool = LockedPool(block.nbytes)
    rows, back = pool.array((1, 64, block.size // 64), block.dtype), target.reshape(1, 64, -1)
    rows[...] = block.reshape(rows.shape)
    with tf.init_scope():
        return _seconds(_there_and_back(rows, back, device, pool.is_locked)) / 2


def _there_and_back(
    rows: np.ndarray, target: np.ndarray, device: str, is_locked: bool
) -> Callable[[], object]:
    """Return a function that copies rows to a device and back, as strips are."""

    def take_back(result: np.ndarray) -> np.ndarray:
        parallel_copies.assign(target, result)
        return np.zeros((), np.int32)

    @tf.function(autograph=False)
    def copy() -> tf.Tensor:
        with tf.device(HOST):
            read = callbacks.numpy_function(lambda: rows, [], tf.float32, stateful=False)
            read = tf.ensure_shape(read, rows.shape)
            read = read if is_locked else host_store.staged(read)
        with tf.device(device):
            changed = read + 1
        with tf.device(HOST):
            return callbacks.numpy_function(take_back, [changed], tf.int32)

    return lambda: copy().numpy()


def _mapped_seconds(block: np.ndarray, folder: str | None) -> float:
    """Return the seconds to write a block to a new store in a file and to read it back, strip by strip."""
    pool = FilePool(_directory(folder))
    rows = block.reshape(1, 16, -1)
    strip = np.empty_like(rows[:, :1])

    def work() -> None:
        store = pool.array(rows.shape, rows.dtype)
        for row in range(16):
            store[:, row] = rows[:, row]
            pool.forget(store, row, row + 1)
        for row in range(16):
            pool.visit(store, row, row + 1)
            np.copyto(strip, store[:, row : row + 1])

    return _seconds(work)


def _directory(scratch: str | None) -> str:
    return scratch if scratch and os.path.isdir(scratch) else tempfile.gettempdir()


def _disk_seconds(block: np.ndarray, scratch: str | None) -> float:
    """Return the seconds to write a block, in a file that is larger than the cache of a disk."""
    times = 2**29 // block.nbytes
    with tempfile.TemporaryFile(dir=_directory(scratch)) as target:

        def write() -> None:
            target.seek(0)
            for _ in range(times):
                target.write(block.data)
            target.flush()
            os.fsync(target.fileno())

        return _seconds(write, 1) / times


def _seconds(work: Callable[[], object], times: int = 5) -> float:
    """Return the median duration of a few runs, after one run that is not counted."""
    work()
    durations = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        durations.append(time.perf_counter() - began)
    return max(statistics.median(durations), 1e-9)

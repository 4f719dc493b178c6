"""File pool: content, disk blocks, errors about space, and steps that spill."""

from __future__ import annotations

import errno
import mmap
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same
from samples import ENVIRONMENT, PROGRAMS
from twins import learn, normed

import tfbig
from tfbig.data.worker_shards import Shard
from tfbig.stores import file_pool
from tfbig.system.budget import in_memory, parse_bytes
from tfbig.training import Checkpoints, Epochs, Loop

PAGE = mmap.PAGESIZE


@pytest.fixture
def pool(tmp_path: Path) -> file_pool.FilePool:
    return file_pool.FilePool(str(tmp_path))


def blocks(pool: file_pool.FilePool) -> int:
    """Return the bytes of the file on disk."""
    return os.fstat(pool._file).st_blocks * 512


def test_content(pool: file_pool.FilePool) -> None:
    numbers = np.arange(2 * 50 * 30 * 64, dtype=np.float64).reshape(2, 50, 30, 64)
    array = pool.array(numbers.shape, numbers.dtype)
    assert pool.holds(array)
    for start in range(0, 50, 10):
        array[:, start : start + 10] = numbers[:, start : start + 10]
        pool.forget(array, start, start + 10)
    for start in range(0, 50, 10):
        pool.visit(array, start, start + 10)
        np.testing.assert_array_equal(array[:, start : start + 10], numbers[:, start : start + 10])
    pool.forget_all()
    np.testing.assert_array_equal(array, numbers)


def mapped_bytes() -> int:
    """Return the bytes of files that this process has in memory; a temporary folder may be in memory itself."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(x.split()[1]) * 1024 for x in lines if x.startswith(("RssFile", "RssShmem")))


@pytest.mark.skipif(sys.platform != "linux", reason="Linux reports the memory of files")
def test_zeros_are_not_kept_in_memory(pool: file_pool.FilePool) -> None:
    """All of the array would be 160 MB; of zeros, 16 MiB are in memory at a time, and none afterwards."""
    array = pool.array((2, 100, 200, 1000), np.float32)
    array[...] = 1
    assert mapped_bytes() > array.nbytes  # otherwise the next lines show nothing
    pool.forget_all()
    before = mapped_bytes()
    pool.clear(array)
    assert mapped_bytes() - before < 2**22
    assert not array.any()


def test_rows_beyond_two_gigabytes(pool: file_pool.FilePool) -> None:
    """TensorFlow passes rows as int32; offsets in bytes exceed this type."""
    array = pool.array((1, 60, 1000), np.float32, wish=2**31 + 64)
    assert array.__array_interface__["data"][0] == pool.address + 2**31 + 64
    array[:, 10:40] = 7
    pool.forget(array, np.int32(10), np.int32(40))
    pool.visit(array, np.int32(10), np.int32(40))
    assert (array[:, 10:40] == 7).all()
    assert blocks(pool) < 2**24


def test_file_has_no_name(pool: file_pool.FilePool, tmp_path: Path) -> None:
    pool.array((100,), np.float32)[:] = 1
    assert list(tmp_path.iterdir()) == []


def test_blocks_are_freed_with_the_array(pool: file_pool.FilePool) -> None:
    size = 2**20
    array = pool.array((size,), np.uint8)
    assert blocks(pool) >= size
    del array
    pool.trim()
    assert pool.used_bytes == 0
    assert pool.reusable_bytes == (size if pool._keeps_blocks else 0)
    assert blocks(pool) <= pool.reusable_bytes + 2 * PAGE


def test_arrays_elsewhere(pool: file_pool.FilePool) -> None:
    pool.array((10,), np.float32)
    assert not pool.holds(np.zeros(10))
    assert file_pool.pool_of(np.zeros(10)) is None


def test_disk_fills_up(pool: file_pool.FilePool, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(
        tfbig.BudgetError, match=f"'{pool.folder}' is too full: 4096 bytes are needed"
    ):
        pool.array((1024,), np.float32)
    monkeypatch.undo()
    assert pool.used_bytes == 0
    assert pool.array((1024,), np.float32).nbytes == 4096


def test_check(tmp_path: Path) -> None:
    file_pool.check(str(tmp_path), 1)
    with pytest.raises(tfbig.BudgetError, match=f"'{tmp_path}' is too full: {2**60} bytes"):
        file_pool.check(str(tmp_path), 2**60)
    with pytest.raises(tfbig.BudgetError, match="gone' does not exist; create it"):
        file_pool.check(str(tmp_path / "gone"), 1)


def test_scratch_in_memory(tmp_path: Path) -> None:
    """A file system in memory has no disk bytes, unless the budget sets them."""
    if Path("/dev/shm").is_dir():
        assert in_memory("/dev/shm")
        assert tfbig.Budget(scratch="/dev/shm").disk_bytes == 0
        assert tfbig.Budget(scratch="/dev/shm", disk="1MB").disk_bytes == 10**6
    assert tfbig.Budget(scratch=str(tmp_path), disk=0).disk_bytes == 0
    assert tfbig.Budget(disk="0").disk_bytes == 0


# ------------------------------------------------------------------------------------- a whole step


def residual() -> keras.Model:
    """Three conv-BN with a shortcut and a gate."""
    keras.utils.set_random_seed(1)
    start = keras.Input((None, None, 3))
    x = short = normed(start, 8, 3)
    x = normed(normed(x, 8, 1), 8, 3)
    gate = keras.layers.GlobalAveragePooling2D(keepdims=True)(x)
    x = keras.layers.Multiply()([x, keras.layers.Dense(8, "sigmoid")(gate)])
    x = keras.layers.Add()([x, short])
    return keras.Model(start, keras.layers.Dense(2)(keras.layers.GlobalAveragePooling2D()(x)))


def spilling(twin: keras.Model, shape: tuple[int, ...], share: float, folder: Path) -> keras.Model:
    """Stream a model with a host budget of a share of its images, which is too little for replays alone."""
    unlimited = tfbig.stream(twin, tfbig.Budget(device=800_000))
    if twin.compiled:
        unlimited.compile("sgd", "mse")
    free = unlimited.plan(shape)
    host = free.total_bytes - int((1 - share) * free.projected.host)
    return tfbig.stream(
        twin, tfbig.Budget(device=800_000, host=host, disk="1GB", scratch=str(folder))
    )


@pytest.mark.slow
@pytest.mark.parametrize("share", [pytest.param(0.5, marks=pytest.mark.slow), 0.35])
def test_step_with_spill(float64: None, tmp_path: Path, share: float) -> None:
    """Output, gradients and statistics are those of the plain model."""
    twin = residual()
    x = tf.random.stateless_normal((2, 61, 47, 3), (1, 2), dtype=tf.float64)
    big = spilling(twin, x.shape, share, tmp_path)
    plan = big.plan(x.shape)
    assert plan.layout.spilled
    assert plan.projected.disk > 0
    assert plan.total_bytes <= big.budget.host_bytes
    assert "disk" in str(plan)
    assert_same(learn(big, twin, x), learn(twin, twin, x), FLOAT64)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_scratch_directory_disappears(tmp_path: Path) -> None:
    """Training ends with an error; when the directory is back, it resumes with the same result."""
    x = tf.random.stateless_normal((6, 61, 47, 3), (1, 2))

    def batches(shard: Shard) -> tf.data.Dataset:
        items = shard.items(6, 2)
        images = tf.gather(x, items)
        return tf.data.Dataset.from_tensor_slices((images, targets[items])).batch(2)

    def train(folder: Path, *callbacks: keras.callbacks.Callback) -> list[np.ndarray]:
        keras.utils.set_random_seed(0)
        twin = residual()
        twin.compile("sgd", "mse")
        big = spilling(twin, (2, 61, 47, 3), 0.6, folder)
        big.compile("sgd", "mse")
        assert big.plan((2, 61, 47, 3)).projected.disk > 0
        checkpoints = Checkpoints(tmp_path / f"checkpoints {folder.name}", "a run")
        Loop(big, Epochs(3, batches), checkpoints=checkpoints, callbacks=callbacks).run()
        return [v.numpy() for v in big.variables]

    targets = np.zeros((6, *residual()(x[:1]).shape[1:]), np.float32)
    whole, gone = tmp_path / "whole", tmp_path / "gone"
    for folder in (whole, gone):
        folder.mkdir()
    removal = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: gone.rename(tmp_path / "away")
    )
    expected = train(whole)
    with pytest.raises(tfbig.BudgetError, match="gone' does not exist; create it"):
        train(gone, removal)
    (tmp_path / "away").rename(gone)
    assert_same(train(gone), expected)


def test_small_disk_is_refused(tmp_path: Path) -> None:
    big = tfbig.stream(
        residual(), tfbig.Budget(device=800_000, host="1MB", disk=10_000, scratch=str(tmp_path))
    )
    with pytest.raises(tfbig.BudgetError, match=r"needs at least .* of host memory"):
        big.plan((2, 61, 47, 3))


@pytest.mark.parametrize(
    ("upto", "device", "little"), [(None, "2MB", "60MB"), ("c2", "54MB", "100MB")]
)
def test_host_in_message_is_enough(
    tmp_path: Path, upto: str | None, device: str, little: str
) -> None:
    """All images may be spilled; the layers of a split model that do not stream need additional memory."""
    start = x = keras.Input((None, None, 3))
    for number in range(4):
        x = keras.layers.Conv2D(8, 3, padding="same", name=f"c{number}")(x)
        x = keras.layers.BatchNormalization()(x)
    twin = keras.Model(start, keras.layers.GlobalAveragePooling2D()(x))
    shape = (1, 501, 400, 3)

    def plan(host: int) -> Any:
        budget = tfbig.Budget(device=device, host=host, disk="1GB", scratch=str(tmp_path))
        return tfbig.stream(twin, budget, upto=upto).plan(shape)

    with pytest.raises(tfbig.BudgetError) as refused:
        plan(parse_bytes(little))
    message = re.search(
        r"needs at least (.*) of host memory .* Raise `host` to ([\d.]+ \w+)", str(refused.value)
    )
    assert message
    assert message[1] == message[2]
    least = parse_bytes(message[1])
    assert plan(least).total_bytes <= least
    assert plan(least).projected.disk > 0
    in_memory = tfbig.stream(twin, tfbig.Budget(device=device), upto=upto).plan(shape)
    assert least < in_memory.total_bytes


def test_full_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes before the first step."""
    twin = residual()
    big = spilling(twin, (2, 61, 47, 3), 0.6, tmp_path)
    monkeypatch.setattr(file_pool, "free_bytes", lambda folder: 1000)
    with pytest.raises(tfbig.BudgetError, match=f"'{tmp_path}' is too full: .* 1000 are free"):
        learn(big, twin, tf.zeros((2, 61, 47, 3)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "end",
    ["kill", *(pytest.param(e, marks=pytest.mark.slow) for e in ("exit", "error", "interrupt"))],
)
def test_file_disappears_with_the_process(tmp_path: Path, end: str) -> None:
    process = subprocess.Popen(
        [sys.executable, str(PROGRAMS / "scratch_file.py"), str(tmp_path), end],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=ENVIRONMENT,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    if end in ("interrupt", "kill"):
        process.send_signal(signal.SIGINT if end == "interrupt" else signal.SIGKILL)
    process.communicate()
    assert (process.returncode == 0) == (end == "exit")
    assert list(tmp_path.iterdir()) == []

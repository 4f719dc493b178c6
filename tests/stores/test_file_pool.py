"""Stores in files: same content, blocks given back, nothing left behind, a full disk said before it hurts."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same
from samples import ROOT
from twins import learn, residual

import tfbig
from tfbig.data.worker_shards import Shard
from tfbig.stores import file_pool
from tfbig.system.budget import in_memory, parse_bytes
from tfbig.training import Checkpoints, Epochs, Loop


@pytest.fixture
def pool(tmp_path: Path) -> file_pool.FilePool:
    return file_pool.FilePool(str(tmp_path))


def blocks(pool: file_pool.FilePool) -> int:
    """Bytes that the file has on the disk."""
    return os.fstat(pool._file).st_blocks * 512


def test_arrays_in_a_file_keep_their_content(pool: file_pool.FilePool) -> None:
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


def test_rows_beyond_two_gigabytes(pool: file_pool.FilePool) -> None:
    """TensorFlow gives rows as int32; bytes are more than that counts."""
    array = pool.array((1, 60, 1000), np.float32, wish=2**31 + 64)
    assert array.__array_interface__["data"][0] == pool.address + 2**31 + 64
    array[:, 10:40] = 7
    pool.forget(array, np.int32(10), np.int32(40))
    pool.visit(array, np.int32(10), np.int32(40))
    assert (array[:, 10:40] == 7).all()
    assert blocks(pool) < 2**24


def test_the_file_has_no_name(pool: file_pool.FilePool, tmp_path: Path) -> None:
    pool.array((100,), np.float32)[:] = 1
    assert list(tmp_path.iterdir()) == []


def test_blocks_exist_as_long_as_an_array(pool: file_pool.FilePool) -> None:
    size = 2**20
    array = pool.array((size,), np.uint8)
    assert blocks(pool) >= size
    del array
    pool.trim()
    assert blocks(pool) + pool.reusable_bytes <= size or pool.reusable_bytes
    assert pool.used_bytes == 0


def test_arrays_elsewhere_are_not_in_the_file(pool: file_pool.FilePool) -> None:
    pool.array((10,), np.float32)
    assert not pool.holds(np.zeros(10))
    assert file_pool.pool_of(np.zeros(10)) is None


def test_a_disk_that_fills_up_is_an_error(
    pool: file_pool.FilePool, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_room_is_looked_for_before_a_step(tmp_path: Path) -> None:
    file_pool.check(str(tmp_path), 1)
    with pytest.raises(tfbig.BudgetError, match=f"'{tmp_path}' is too full: {2**60} bytes"):
        file_pool.check(str(tmp_path), 2**60)
    with pytest.raises(tfbig.BudgetError, match="gone' does not exist; create it"):
        file_pool.check(str(tmp_path / "gone"), 1)


def test_memory_is_not_a_disk(tmp_path: Path) -> None:
    if Path("/dev/shm").is_dir():
        assert in_memory("/dev/shm")
        assert tfbig.Budget(scratch="/dev/shm").disk_bytes == 0
        assert tfbig.Budget(scratch="/dev/shm", disk="1MB").disk_bytes == 10**6
    assert tfbig.Budget(scratch=str(tmp_path), disk=0).disk_bytes == 0
    assert tfbig.Budget(disk="0").disk_bytes == 0


# ------------------------------------------------------------------------------------- a whole step


def spilling(twin: keras.Model, shape: tuple[int, ...], share: float, folder: Path) -> keras.Model:
    """A streamed model whose host budget is a share of what its images take: less than making them again could save."""
    unbound = tfbig.stream(twin, tfbig.Budget(device=800_000))
    if twin.compiled:
        unbound.compile("sgd", "mse")
    free = unbound.plan(shape)
    host = free.total_bytes - int((1 - share) * free.host_bytes)
    return tfbig.stream(
        twin, tfbig.Budget(device=800_000, host=host, disk="1GB", scratch=str(folder))
    )


@pytest.mark.parametrize("share", [pytest.param(0.5, marks=pytest.mark.slow), 0.35])
def test_what_goes_through_a_file_is_the_same(float64: None, tmp_path: Path, share: float) -> None:
    twin = residual()
    x = tf.random.stateless_normal((2, 61, 47, 3), (1, 2), dtype=tf.float64)
    big = spilling(twin, x.shape, share, tmp_path)
    plan = big.plan(x.shape)
    assert plan.layout.spilled
    assert plan.disk_bytes > 0
    assert plan.total_bytes <= big.budget.host_bytes
    assert "disk" in str(plan)
    assert_same(learn(big, twin, x), learn(twin, twin, x), FLOAT64)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_folder_that_goes_ends_training_which_goes_on_when_it_is_back(tmp_path: Path) -> None:
    x = tf.random.stateless_normal((6, 61, 47, 3), (1, 2))

    def batches(shard: Shard) -> tf.data.Dataset:
        own = shard.items(6, 2)
        images = tf.gather(x, own)
        return tf.data.Dataset.from_tensor_slices((images, targets[own])).batch(2)

    def train(folder: Path, *callbacks: keras.callbacks.Callback) -> list[np.ndarray]:
        keras.utils.set_random_seed(0)
        twin = residual()
        twin.compile("sgd", "mse")
        big = spilling(twin, (2, 61, 47, 3), 0.5, folder)
        big.compile("sgd", "mse")
        assert big.plan((2, 61, 47, 3)).disk_bytes > 0
        kept = Checkpoints(tmp_path / f"kept {folder.name}", "a run")
        Loop(big, Epochs(3, batches), checkpoints=kept, callbacks=callbacks).run()
        return [v.numpy() for v in big.variables]

    targets = np.zeros((6, *residual()(x[:1]).shape[1:]), np.float32)
    whole, gone = tmp_path / "whole", tmp_path / "gone"
    for folder in (whole, gone):
        folder.mkdir()
    going = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: gone.rename(tmp_path / "away")
    )
    expected = train(whole)
    with pytest.raises(tfbig.BudgetError, match="gone' does not exist; create it"):
        train(gone, going)
    (tmp_path / "away").rename(gone)
    assert_same(train(gone), expected)


def test_less_disk_than_a_step_needs_is_said_in_plan(tmp_path: Path) -> None:
    big = tfbig.stream(
        residual(), tfbig.Budget(device=800_000, host="1MB", disk=10_000, scratch=str(tmp_path))
    )
    with pytest.raises(tfbig.BudgetError, match="of host memory at least"):
        big.plan((2, 61, 47, 3))


@pytest.mark.parametrize(
    ("upto", "device", "little"), [(None, "2MB", "60MB"), ("c2", "54MB", "160MB")]
)
def test_the_budget_that_is_named_is_enough_with_a_file(
    tmp_path: Path, upto: str | None, device: str, little: str
) -> None:
    """All of the images may be in the file; what the rest of a split model takes comes on top."""
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
    named = re.search(
        r"needs (.*) of host memory at least .* Raise `host` to (.*), or `disk`", str(refused.value)
    )
    assert named
    assert named[1] == named[2]
    least = parse_bytes(named[1])
    assert plan(least).total_bytes <= least
    assert plan(least).disk_bytes > 0
    in_memory = tfbig.stream(twin, tfbig.Budget(device=device), upto=upto).plan(shape)
    assert least < in_memory.total_bytes


def test_a_full_directory_is_named_before_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = residual()
    big = spilling(twin, (2, 61, 47, 3), 0.5, tmp_path)
    monkeypatch.setattr(file_pool, "free_bytes", lambda folder: 1000)
    with pytest.raises(tfbig.BudgetError, match=f"'{tmp_path}' is too full: .* 1000 are free"):
        learn(big, twin, tf.zeros((2, 61, 47, 3)))


@pytest.mark.parametrize(
    "how",
    ["exit", *(pytest.param(h, marks=pytest.mark.slow) for h in ("error", "interrupt")), "kill"],
)
def test_nothing_is_left_however_a_process_ends(tmp_path: Path, how: str) -> None:
    script = f"""
        import os, signal, sys
        import numpy as np
        from tfbig.stores import file_pool
        array = file_pool.pool({str(tmp_path)!r}).array((2**18,), np.float32)
        array[:] = 1
        print("ready", flush=True)
        if {how!r} == "error":
            raise RuntimeError("in the middle")
        if {how!r} != "exit":
            sys.stdin.read()
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    if how in ("interrupt", "kill"):
        process.send_signal(signal.SIGINT if how == "interrupt" else signal.SIGKILL)
    process.communicate()
    assert (process.returncode == 0) == (how == "exit")
    assert list(tmp_path.iterdir()) == []

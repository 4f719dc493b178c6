"""Data parallel training in real processes: workers end identical, and equal to one with all of their batches."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack

import keras
import numpy as np
import pytest
import tensorflow as tf
from samples import ROOT

import tfbig
from tfbig.system import replication
from tfbig.training import Checkpoints

SETTINGS = {"model": "streamed", "norm": "none", "accumulate": 1, "epochs": 2, "images": 6}


def free_ports(count):
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("localhost", 0))
        return [each.getsockname()[1] for each in sockets]


def start(out, ports=(), index=0, **settings):
    out.mkdir(exist_ok=True)
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    if ports:
        workers = [f"localhost:{port}" for port in ports]
        task = {"type": "worker", "index": index}
        environment["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    text = json.dumps({"strategy": "none", "batch": 1} | SETTINGS | settings | {"out": str(out)})
    command = [sys.executable, str(ROOT / "tests" / "worker.py"), text]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def ended(processes, seconds=240):
    """Exit codes and what was said last."""
    found = []
    for process in processes:
        with process:
            _, told = process.communicate(timeout=seconds)
        found.append((process.returncode, told[-3000:]))
    return found


def run(out, count=1, **settings):
    """Trains to the end on so many workers."""
    several = settings.get("strategy") == "multiworker"
    ports = free_ports(count) if several else ()
    for code, told in ended([start(out, ports, i, **settings) for i in range(count)]):
        assert code == 0, told


def left(out, worker=0):
    with np.load(out / f"weights-{worker}.npz") as file:
        weights = [file[name] for name in file.files]
    return weights, json.loads((out / f"rows-{worker}.json").read_text())


def assert_equal(found, expected, rtol=1e-10, draws=False):
    (weights, rows), (others, expected_rows) = found, expected
    assert len(weights) == len(others)
    for a, b in zip(weights, others, strict=True):
        if not (draws and a.dtype.kind == "i"):  # each of two replicas draws half as often
            scale = max(abs(b).max(initial=0), 1)
            np.testing.assert_allclose(a, b, rtol=0, atol=rtol * scale)
    for row, other in zip(rows, expected_rows, strict=True):
        assert row == pytest.approx(other, rel=rtol)


def as_one(norm, count, images=6):
    """One worker with the batches of so many: one after another, or together where statistics are."""
    if norm == "all":
        return {"batch": count, "images": images}
    return {"accumulate": count, "images": images}


slow = pytest.mark.slow
EVERY = [
    *[(model, "none") for model in ("plain", "streamed", "masks", "bags", "patches")],
    *[(model, "all") for model in ("plain", "streamed", "masks", "bags")],
]


def test_two_workers_are_one_with_the_batches_of_both(tmp_path):
    """Of three, one worker has none in the last round."""
    given = {"images": 3, "epochs": 1}
    run(tmp_path / "one", accumulate=2, **given)
    run(tmp_path / "workers", 2, strategy="multiworker", **given)
    for worker in range(2):
        assert_equal(left(tmp_path / "workers", worker), left(tmp_path / "one"))


@slow
@pytest.mark.parametrize(("model", "norm"), EVERY)
def test_two_replicas_are_one_with_the_batches_of_both(model, norm, tmp_path):
    images = 6 if norm == "all" else 7  # of seven, one replica has none in the last round
    given = {"model": model, "norm": norm, "images": images}
    run(tmp_path / "one", **given | as_one(norm, 2, images))
    run(tmp_path / "mirrored", strategy="mirrored", replicas=2, **given)
    run(tmp_path / "workers", 2, strategy="multiworker", **given)
    expected, draws = left(tmp_path / "one"), model == "patches"
    assert_equal(left(tmp_path / "mirrored"), expected, draws=draws)
    assert_equal(left(tmp_path / "workers"), expected, draws=draws)
    assert_equal(left(tmp_path / "workers", 1), left(tmp_path / "workers"), rtol=0)


@slow
@pytest.mark.parametrize("norm", ["none", "all"])
def test_four_workers_that_accumulate(norm, tmp_path):
    given = {"norm": norm, "images": 16}
    alone = {"batch": 4, "accumulate": 2} if norm == "all" else {"accumulate": 8}
    run(tmp_path / "one", **given | alone)
    run(tmp_path / "workers", 4, strategy="multiworker", accumulate=2, **given)
    for worker in range(4):
        assert_equal(left(tmp_path / "workers", worker), left(tmp_path / "one"))


@slow
def test_statistics_of_each_replica_are_averaged(tmp_path):
    """Not those of the whole batch, and the same on all workers."""
    run(tmp_path / "workers", 2, strategy="multiworker", norm="replica")
    run(tmp_path / "mirrored", strategy="mirrored", replicas=2, norm="replica")
    assert_equal(left(tmp_path / "workers", 1), left(tmp_path / "workers"), rtol=0)
    assert_equal(left(tmp_path / "mirrored"), left(tmp_path / "workers"))


@slow
@pytest.mark.parametrize(
    ("model", "norm"), [("streamed", "none"), ("streamed", "all"), ("masks", "none")]
)
def test_fit_on_several_devices(model, norm, tmp_path):
    """Keras clips the gradients of each replica before it adds them up; nothing is clipped here."""
    given = {"model": model, "norm": norm, "fit": True, "batch": 2, "clip": None}
    run(tmp_path / "one", **given)
    run(tmp_path / "mirrored", strategy="mirrored", replicas=2, **given)
    assert_equal(left(tmp_path / "mirrored"), left(tmp_path / "one"))


@slow
@pytest.mark.parametrize("norm", ["none", "all"])
@pytest.mark.parametrize("dies", [0, 1])
def test_a_worker_that_is_killed_and_started_again(dies, norm, tmp_path):
    """The others say that they lost it; from the last checkpoint all go on as if nothing had happened."""
    given = {"strategy": "multiworker", "norm": norm, "images": 8}
    run(tmp_path / "whole", 2, **given)
    ports, out = free_ports(2), tmp_path / "killed"
    workers = [
        start(out, ports, i, die_at=(1, 4) if i == dies else None, **given) for i in range(2)
    ]
    began = time.monotonic()
    codes = ended(workers)
    assert codes[dies][0] == -9
    code, told = codes[1 - dies]
    assert code == 1
    assert "WorkerError: lost the other workers" in told
    assert time.monotonic() - began < 120
    run(out, 2, **given)
    for worker in range(2):
        assert_equal(left(out, worker), left(tmp_path / "whole", worker), rtol=0)


@slow
def test_a_worker_that_cannot_read_an_image_tells_the_others(tmp_path):
    """Nobody waits for it: all end at once; or go on without the image, as one worker does."""
    given = {"images": 6, "broken": 2, "epochs": 1}
    ports, out = free_ports(2), tmp_path / "strict"
    began = time.monotonic()
    found = ended([start(out, ports, i, strategy="multiworker", **given) for i in range(2)])
    assert time.monotonic() - began < 60
    assert [code for code, _ in found] == [1, 1]
    told = "".join(text for _, text in found)
    assert "SourceError: image: is truncated." in told
    assert "WorkerError: another worker has failed" in told
    run(tmp_path / "workers", 2, strategy="multiworker", strict=False, **given)
    run(tmp_path / "one", accumulate=2, strict=False, **given)
    for worker in range(2):
        assert_equal(left(tmp_path / "workers", worker), left(tmp_path / "one"))


@slow
def test_workers_that_see_other_images_are_told_before_the_first_step(tmp_path):
    ports, out = free_ports(2), tmp_path / "out"
    settings = {"strategy": "multiworker", "epochs": 1}
    found = ended([start(out, ports, i, images=6 - i, **settings) for i in range(2)])
    assert [code for code, _ in found] == [1, 1]
    assert "WorkerError: another worker has failed" in found[0][1]
    assert "WorkerError: the images are others than those of the first" in found[1][1]


@slow
def test_workers_with_other_settings_are_told_before_the_first_step(tmp_path):
    ports, out = free_ports(2), tmp_path / "out"
    settings = {"strategy": "multiworker", "images": 4}
    found = ended([start(out, ports, i, epochs=1 + i, **settings) for i in range(2)])
    assert [code for code, _ in found] == [1, 1]
    assert "WorkerError: another worker has failed" in found[0][1]
    assert "WorkerError: the settings are others than those of the first" in found[1][1]


@slow
@pytest.mark.parametrize("strategy", ["mirrored", "multiworker"])
def test_not_a_number_in_any_replica_ends_it_with_the_weights_before(strategy, tmp_path):
    """The second one of the first round."""
    image = int(np.random.default_rng(0).permutation(4)[1])
    settings = {"strategy": strategy, "images": 4, "nan": image, "epochs": 2, "replicas": 2}
    out, count = tmp_path / "out", 1 if strategy == "mirrored" else 2
    ports = free_ports(2) if count > 1 else ()
    found = ended([start(out, ports, i, **settings) for i in range(count)])
    assert [code for code, _ in found] == [1] * count
    assert "NonFiniteError: step " in found[-1][1]
    kept = Checkpoints(out / "checkpoints", "a run").newest()
    assert all(np.isfinite(array).all() for array in kept.arrays.values())


@slow
def test_a_callback_that_fails_in_one_worker_tells_why(tmp_path):
    ports, out = free_ports(2), tmp_path / "out"
    settings = {"strategy": "multiworker", "raise_at": [0, 2]}
    found = ended([start(out, ports, i, **settings) for i in range(2)])
    assert [code for code, _ in found] == [1, 1]
    assert "WorkerError: lost the other workers" in found[0][1]
    assert found[1][1].rstrip().endswith("OSError: a callback has failed")
    run(out, 2, strategy="multiworker")
    run(tmp_path / "whole", 2, strategy="multiworker")
    assert_equal(left(out), left(tmp_path / "whole"))


@slow
@pytest.mark.parametrize(("norm", "step"), [("none", 2), ("all", 4)])
def test_a_worker_that_is_asked_to_stop_has_all_save_and_go_on(norm, step, tmp_path):
    """At once, or, where statistics are those of all, after the round in which they wait for each other."""
    ports, out = free_ports(2), tmp_path / "out"
    settings = {"strategy": "multiworker", "norm": norm}
    found = ended([start(out, ports, i, stop_at=[1, 2], **settings) for i in range(2)])
    assert [code for code, _ in found] == [1, 1]
    assert "Stopped: stopped, as another worker was" in found[0][1]
    assert "Stopped: stopped by SIGTERM" in found[1][1]
    place = Checkpoints(out / "checkpoints", "a run").newest().values["place"]
    assert (place["epoch"], place["step"]) == (1, step)
    run(out, 2, **settings)
    run(tmp_path / "whole", 2, **settings)
    assert_equal(left(out), left(tmp_path / "whole"))


@slow
def test_with_statistics_of_all_a_worker_that_cannot_read_ends_the_others(tmp_path):
    """They wait within their step, where they cannot be told."""
    ports, out = free_ports(2), tmp_path / "out"
    settings = {"strategy": "multiworker", "norm": "all", "broken": 2, "epochs": 1}
    found = ended([start(out, ports, i, **settings) for i in range(2)])
    assert [code for code, _ in found] == [1, 1]
    told = "".join(text for _, text in found)
    assert "SourceError: image: is truncated." in told
    assert "WorkerError: lost the other workers" in told


@slow
def test_workers_of_slurm(tmp_path):
    """`train.py` under srun: who is who comes from its variables."""
    command = [sys.executable, str(ROOT / "train.py"), "--strategy", "multiworker"]
    command += ["--crops", "4", "--crop", "256x256", "--epochs", "1", "--quiet"]
    command += ["--out", str(tmp_path / "out")]
    slurm = {
        "SLURM_PROCID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_TASKS_PER_NODE": "2",
    }
    environment = {k: v for k, v in os.environ.items() if k != "XDG_CACHE_HOME"} | slurm
    workers = [
        subprocess.Popen(
            command,
            env=environment | {"SLURM_PROCID": str(i)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    said = [worker.communicate(timeout=240) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], said
    assert "each of 2 replicas on this machine" in said[0][0]
    assert said[1][0] == ""  # the chief alone prints
    assert (tmp_path / "out" / "metrics.json").exists()


@slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_to_one_worker_ends_all_with_a_checkpoint(number, code, tmp_path):
    """TensorFlow has a handler of its own for SIGTERM, which the cluster sets."""
    out = tmp_path / "out"
    command = [sys.executable, str(ROOT / "train.py"), "--strategy", "multiworker"]
    command += ["--task", "mil", "--num-bags", "40", "2", "2", "--instances", "8", "--quiet"]
    command += ["--out", str(out), "--checkpoint-minutes", "0.001", "--resume"]

    def begin(epochs):
        ports = free_ports(2)
        cluster = {"worker": [f"localhost:{port}" for port in ports]}
        for i in range(2):
            known = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": i}})
            yield subprocess.Popen(
                [*command, "--epochs", str(epochs)],
                env=os.environ | {"TF_CONFIG": known, "TF_CPP_MIN_LOG_LEVEL": "3"},
                stderr=subprocess.PIPE,
                text=True,
            )

    workers = list(begin(50))
    while not list((out / "checkpoints").glob("step-*")):
        assert all(worker.poll() is None for worker in workers)
        time.sleep(0.1)
    workers[1].send_signal(number)
    (chief, told), (own, _) = ended(workers)
    assert (chief, own) == (130, code)
    assert "stopped, as another worker was" in told
    done = max((out / "checkpoints").glob("step-*"))
    assert [code for code, _ in ended(list(begin(1)))] == [0, 0]
    assert max((out / "checkpoints").glob("step-*")) >= done


@slow
def test_more_workers_go_on_where_fewer_ended(tmp_path):
    """On two, killed in the middle of the second epoch and of accumulated rounds; then on four; then on one."""
    run(tmp_path / "one", accumulate=8, images=16, epochs=4)
    out, given = tmp_path / "workers", {"images": 16}
    ports = free_ports(2)
    dying = {"strategy": "multiworker", "accumulate": 4, "epochs": 4, "die_at": (1, 4)}
    ended([start(out, ports, i, **given | dying) for i in range(2)])
    run(out, 4, strategy="multiworker", accumulate=2, epochs=3, **given)
    run(out, accumulate=8, epochs=4, **given)
    assert_equal(left(out), left(tmp_path / "one"))


def test_a_distribution_of_keras_is_refused():
    image = keras.Input((None, None, 1))
    model = keras.Model(image, keras.layers.Conv2D(1, 1)(image))
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0"]))
    try:
        for make in (lambda: tfbig.stream(model), lambda: tfbig.layers.BigConv2D(1, 1)):
            with pytest.raises(ValueError, match=r"keras.distribution is set, which does nothing"):
                make()
    finally:
        keras.distribution.set_distribution(None)


def test_fit_on_several_machines_is_refused(monkeypatch):
    image = keras.Input((None, None, 1))
    big = tfbig.stream(keras.Model(image, keras.layers.Conv2D(1, 1)(image)))
    big.compile("sgd", "mse")
    strategy = object.__new__(tf.distribute.MultiWorkerMirroredStrategy)
    monkeypatch.setattr(big, "_distribute_strategy", strategy)
    for method in (big.fit, big.evaluate):
        with pytest.raises(
            ValueError, match=r"cannot run under MultiWorker.*tfbig\.training\.Loop"
        ):
            method(np.ones((1, 8, 8, 1)), np.ones((1, 8, 8, 1)))


def test_an_optimizer_that_accumulates_is_refused_under_a_strategy(monkeypatch):
    monkeypatch.setattr("tensorflow.distribute.has_strategy", lambda: True)
    with pytest.raises(ValueError, match=r"gradient_accumulation_steps=2, with which Keras' steps"):
        replication.check(keras.optimizers.SGD(gradient_accumulation_steps=2))


def test_a_sum_as_loss_is_refused_under_a_strategy(monkeypatch):
    monkeypatch.setattr("tensorflow.distribute.has_strategy", lambda: True)
    losses = {"a": "mse", "b": keras.losses.MeanSquaredError(reduction="sum")}
    with pytest.raises(ValueError, match=r"mean_squared_error has reduction='sum', of which repl"):
        replication.check(keras.optimizers.SGD(), losses)


def test_the_plan_counts_the_replicas_of_a_machine(monkeypatch):
    image = keras.Input((None, None, 1))
    x = keras.layers.BatchNormalization()(keras.layers.Conv2D(4, 3)(image))
    model = keras.Model(image, keras.layers.Conv2D(1, 1)(x))

    def plan(replicas):
        monkeypatch.setattr(replication, "on_machine", lambda: replicas)
        big = tfbig.stream(model, tfbig.Budget(device="300KB", host="400MB", disk=0))
        big.compile("sgd", "mse")
        return big.plan((1, 64, 64, 1))

    alone, both = plan(1), plan(2)
    assert "replicas" not in str(alone)
    assert "each of 2 replicas on this machine: together host" in str(both)
    assert both.replicas == 2
    with pytest.raises(tfbig.BudgetError, match=r"19\.1 MiB are allowed"):
        plan(20)

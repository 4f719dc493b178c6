"""Data parallel training in processes: workers end identical, and equal to one worker with all of their batches."""

import json
import os
import signal
import subprocess
import sys
import time

import drawn_folders
import numpy as np
import pytest
from samples import ROOT
from worker_processes import PATIENCE, assert_equal, ended, free_ports, results, run, start

from tfbig.training import Checkpoints


def as_one(norm, count, images=6):
    """Settings of one worker with the batches of `count`: accumulated, or as one batch for shared statistics."""
    if norm == "all":
        return {"batch": count, "images": images}
    return {"accumulate": count, "images": images}


slow = pytest.mark.slow
EVERY = [
    *[(model, "none") for model in ("plain", "streamed", "masks", "bags", "patches")],
    *[(model, "all") for model in ("plain", "streamed", "masks", "bags")],
]


@slow
def test_two_workers_equal_one(tmp_path, run_here):
    """One of the workers has no batch in the last of two rounds."""
    settings = {"images": 3, "epochs": 1}
    run_here(tmp_path / "one", accumulate=2, **settings)
    run(tmp_path / "workers", 2, strategy="multiworker", **settings)
    for worker in range(2):
        assert_equal(results(tmp_path / "workers", worker), results(tmp_path / "one"))


@slow
@pytest.mark.parametrize(("model", "norm"), EVERY)
def test_two_replicas_equal_one(model, norm, tmp_path, run_here):
    images = 6 if norm == "all" else 7  # of seven, one replica has none in the last round
    settings = {"model": model, "norm": norm, "images": images}
    run_here(tmp_path / "one", **settings | as_one(norm, 2, images))
    run(tmp_path / "mirrored", strategy="mirrored", replicas=2, **settings)
    run(tmp_path / "workers", 2, strategy="multiworker", **settings)
    expected, draws = results(tmp_path / "one"), model == "patches"
    assert_equal(results(tmp_path / "mirrored"), expected, draws=draws)
    assert_equal(results(tmp_path / "workers"), expected, draws=draws)
    assert_equal(results(tmp_path / "workers", 1), results(tmp_path / "workers"), rtol=0)


@slow
@pytest.mark.parametrize("norm", ["none", "all"])
def test_four_accumulating_workers_equal_one(norm, tmp_path, run_here):
    settings = {"norm": norm, "images": 16}
    alone = {"batch": 4, "accumulate": 2} if norm == "all" else {"accumulate": 8}
    run_here(tmp_path / "one", **settings | alone)
    run(tmp_path / "workers", 4, strategy="multiworker", accumulate=2, **settings)
    for worker in range(4):
        assert_equal(results(tmp_path / "workers", worker), results(tmp_path / "one"))


@slow
def test_statistics_are_averaged_over_replicas(tmp_path):
    """The averages differ from the statistics of the whole batch, and are equal on all workers."""
    run(tmp_path / "workers", 2, strategy="multiworker", norm="replica")
    run(tmp_path / "mirrored", strategy="mirrored", replicas=2, norm="replica")
    assert_equal(results(tmp_path / "workers", 1), results(tmp_path / "workers"), rtol=0)
    assert_equal(results(tmp_path / "mirrored"), results(tmp_path / "workers"))


@slow
@pytest.mark.parametrize(
    ("model", "norm"), [("streamed", "none"), ("streamed", "all"), ("masks", "none")]
)
def test_fit_on_several_devices(model, norm, tmp_path, run_here):
    """Keras clips the gradients of each replica before it sums them, so there is no clipping here."""
    settings = {"model": model, "norm": norm, "fit": True, "batch": 2, "clip": None}
    run_here(tmp_path / "one", **settings)
    run(tmp_path / "mirrored", strategy="mirrored", replicas=2, **settings)
    assert_equal(results(tmp_path / "mirrored"), results(tmp_path / "one"))


@slow
@pytest.mark.parametrize("norm", ["none", "all"])
@pytest.mark.parametrize("dies", [0, 1])
def test_killed_worker_resumes(dies, norm, tmp_path):
    """The others report that they lost it; all resume from the last checkpoint."""
    settings = {"strategy": "multiworker", "norm": norm, "images": 8}
    run(tmp_path / "whole", 2, **settings)
    ports, out = free_ports(2), tmp_path / "killed"
    workers = [
        start(out, ports, i, die_at=(1, 4) if i == dies else None, **settings) for i in range(2)
    ]
    ends = ended(workers)
    assert ends[dies][0] == -9
    code, errors = ends[1 - dies]
    assert code == 1
    assert "WorkerError: lost the other workers" in errors
    run(out, 2, **settings)
    for worker in range(2):
        assert_equal(results(out, worker), results(tmp_path / "whole", worker), rtol=0)


@slow
def test_unreadable_image_on_one_worker(tmp_path, run_here):
    """All workers end without waiting for it; or they skip the image, as one worker does."""
    settings = {"images": 6, "broken": 2, "epochs": 1}
    ports, out = free_ports(2), tmp_path / "strict"
    ends = ended([start(out, ports, i, strategy="multiworker", **settings) for i in range(2)])
    assert [code for code, _ in ends] == [1, 1]
    errors = "".join(text for _, text in ends)
    assert "SourceError: image: is truncated." in errors
    assert "WorkerError: another worker has failed" in errors
    run(tmp_path / "workers", 2, strategy="multiworker", strict=False, **settings)
    run_here(tmp_path / "one", accumulate=2, strict=False, **settings)
    for worker in range(2):
        assert_equal(results(tmp_path / "workers", worker), results(tmp_path / "one"))


@slow
def test_workers_with_different_images_end_before_the_first_step(tmp_path):
    ports, out = free_ports(2), tmp_path / "out"
    settings = {"strategy": "multiworker", "epochs": 1}
    ends = ended([start(out, ports, i, images=6 - i, **settings) for i in range(2)])
    assert [code for code, _ in ends] == [1, 1]
    assert "WorkerError: another worker has failed" in ends[0][1]
    assert "WorkerError: the images differ from those of the first" in ends[1][1]


@slow
def test_workers_with_different_settings_end_before_the_first_step(tmp_path):
    ports, out = free_ports(2), tmp_path / "out"
    settings = {"strategy": "multiworker", "images": 4}
    ends = ended([start(out, ports, i, epochs=1 + i, **settings) for i in range(2)])
    assert [code for code, _ in ends] == [1, 1]
    assert "WorkerError: another worker has failed" in ends[0][1]
    assert "WorkerError: the settings differ from those of the first" in ends[1][1]


@slow
@pytest.mark.parametrize("strategy", ["mirrored", "multiworker"])
def test_nan_in_any_replica_restores_the_weights(strategy, tmp_path):
    """The NaN is in the second replica of the first round."""
    image = int(np.random.default_rng(0).permutation(4)[1])
    settings = {"strategy": strategy, "images": 4, "nan": image, "epochs": 2, "replicas": 2}
    out, count = tmp_path / "out", 1 if strategy == "mirrored" else 2
    ports = free_ports(2) if count > 1 else ()
    ends = ended([start(out, ports, i, **settings) for i in range(count)])
    assert [code for code, _ in ends] == [1] * count
    assert "NonFiniteError: step " in ends[-1][1]
    stored = Checkpoints(out / "checkpoints", "a run").newest()
    assert all(np.isfinite(array).all() for array in stored.arrays.values())


@slow
def test_failing_callback_on_one_worker(tmp_path):
    ports, out = free_ports(2), tmp_path / "out"
    settings = {"strategy": "multiworker", "raise_at": [0, 2]}
    ends = ended([start(out, ports, i, **settings) for i in range(2)])
    assert [code for code, _ in ends] == [1, 1]
    assert "WorkerError: lost the other workers" in ends[0][1]
    assert ends[1][1].rstrip().endswith("OSError: a callback has failed")
    run(out, 2, strategy="multiworker")
    run(tmp_path / "whole", 2, strategy="multiworker")
    assert_equal(results(out), results(tmp_path / "whole"))


@slow
@pytest.mark.parametrize(("norm", "step"), [("none", 2), ("all", 4)])
def test_stop_request_on_one_worker(norm, step, tmp_path):
    """All stop at once, save and resume; with shared statistics they finish the round in which they wait."""
    ports, out = free_ports(2), tmp_path / "out"
    settings = {"strategy": "multiworker", "norm": norm}
    ends = ended([start(out, ports, i, stop_at=[1, 2], **settings) for i in range(2)])
    assert [code for code, _ in ends] == [1, 1]
    assert "Stopped: stopped, because another worker was" in ends[0][1]
    assert "Stopped: stopped by SIGTERM" in ends[1][1]
    place = Checkpoints(out / "checkpoints", "a run").newest().values["place"]
    assert (place["epoch"], place["step"]) == (1, step)
    run(out, 2, **settings)
    run(tmp_path / "whole", 2, **settings)
    assert_equal(results(out), results(tmp_path / "whole"))


@slow
def test_unreadable_image_with_shared_statistics(tmp_path):
    """The others wait within their step, where they cannot be notified, and lose the worker."""
    ports, out = free_ports(2), tmp_path / "out"
    settings = {"strategy": "multiworker", "norm": "all", "broken": 2, "epochs": 1}
    ends = ended([start(out, ports, i, **settings) for i in range(2)])
    assert [code for code, _ in ends] == [1, 1]
    errors = "".join(text for _, text in ends)
    assert "SourceError: image: is truncated." in errors
    assert "WorkerError: lost the other workers" in errors


@slow
def test_workers_under_slurm(tmp_path):
    """`train.py` under srun: its variables identify the workers."""
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
    outputs = [worker.communicate(timeout=PATIENCE) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], outputs
    assert "each of 2 replicas on this machine" in outputs[0][0]
    assert outputs[1][0] == ""  # the chief alone prints
    assert (tmp_path / "out" / "metrics.json").exists()


@slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_to_one_worker_stops_all_with_a_checkpoint(number, code, tmp_path):
    """TensorFlow sets a handler for SIGTERM when it creates the cluster."""
    out = tmp_path / "out"
    command = [sys.executable, str(ROOT / "train.py"), "--strategy", "multiworker"]
    command += ["--task", "mil", "--data", drawn_folders.bags(40, 2, 2), "--quiet"]
    command += ["--out", str(out), "--checkpoint-minutes", "0.001", "--resume"]

    def begin(epochs):
        ports = free_ports(2)
        cluster = {"worker": [f"localhost:{port}" for port in ports]}
        for i in range(2):
            config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": i}})
            yield subprocess.Popen(
                [*command, "--epochs", str(epochs)],
                env=os.environ | {"TF_CONFIG": config, "TF_CPP_MIN_LOG_LEVEL": "3"},
                stderr=subprocess.PIPE,
                text=True,
            )

    workers = list(begin(50))
    deadline = time.monotonic() + PATIENCE
    while not list((out / "checkpoints").glob("step-*")):
        assert all(worker.poll() is None for worker in workers)
        assert time.monotonic() < deadline
        time.sleep(0.1)
    workers[1].send_signal(number)
    (chief, errors), (second, _) = ended(workers)
    assert (chief, second) == (130, code)
    assert "stopped, because another worker was" in errors
    newest = max((out / "checkpoints").glob("step-*"))
    assert [code for code, _ in ended(list(begin(1)))] == [0, 0]
    assert max((out / "checkpoints").glob("step-*")) >= newest


@slow
def test_resume_with_another_number_of_workers(tmp_path, run_here):
    """Two workers, killed in the middle of the second epoch and of accumulated rounds; then four; then one.

    Two of the eight batches of an update are left behind, so the second round of the four workers has two.
    """
    run_here(tmp_path / "one", accumulate=8, images=16, epochs=4)
    out, settings = tmp_path / "workers", {"images": 16}
    ports = free_ports(2)
    dying = {"strategy": "multiworker", "accumulate": 4, "epochs": 4, "die_at": (1, 2)}
    ended([start(out, ports, i, **settings | dying) for i in range(2)])
    run(out, 4, strategy="multiworker", accumulate=2, epochs=3, **settings)
    run(out, accumulate=8, epochs=4, **settings)
    assert_equal(results(out), results(tmp_path / "one"))

"""Risk sets that several workers share: workers end identical, and equal to one."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from worker_processes import assert_equal, ended, free_ports, results, run, start

from tfbig.mil.target_losses import CoxLoss, Survival
from tfbig.mil.target_metrics import Concordance
from tfbig.training import Epochs, Loop
from tfbig.training.risk_sets import RiskSets
from tfbig.training.shared_risk_sets import SharedRiskSets

COUNT = 9
SETTINGS = {"model": "risks", "images": 11, "batch": 5}
WORKERS = {"strategy": "multiworker", **SETTINGS}
slow = pytest.mark.slow


def network(*middle):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), *middle, layers.Dense(1)])
    model.compile("adam", CoxLoss(), metrics=[Concordance(COUNT)])
    return model


def observations(labels):
    labels = np.asarray(labels)
    return labels[:, Survival.RANK], labels[:, Survival.EVENT]


def read(handle):
    return np.random.default_rng(int(handle)).normal(size=(1, 4)).astype("float32")


def batches(size):
    def of(shard):
        items = np.arange(COUNT)[shard.items(COUNT, size)]
        labels = np.stack([0 * items, items % 2, items * 5 % 7, items], 1)
        return tf.data.Dataset.from_tensor_slices((items.astype(str), labels)).batch(size)

    return Epochs(-(-COUNT // size), of)


def trained(worker, strategy=None):
    with (strategy or tf.distribute.get_strategy()).scope():
        model = network()
    rows = []
    record = keras.callbacks.LambdaCallback(on_epoch_end=lambda _, logs: rows.append(logs))
    of = lambda model: worker(model, observations, read)  # noqa: E731
    Loop(model, batches(4), batches(1), 2, callbacks=[record], worker=of).run()
    return model.get_weights(), rows


def one_replica():
    return tf.distribute.MirroredStrategy(["CPU:0"])


def test_one_of_one_worker_is_the_only_worker():
    weights, rows = trained(SharedRiskSets, one_replica())
    expected, expected_rows = trained(RiskSets)
    for found, other in zip(weights, expected, strict=True):
        np.testing.assert_array_equal(found, other)
    for row, other in zip(rows, expected_rows, strict=True):
        assert row == pytest.approx(other, rel=1e-6)


def test_synchronized_statistics_are_refused():
    with one_replica().scope():
        model = network(layers.BatchNormalization(synchronized=True))
    with pytest.raises(ValueError, match="synchronized=True, but workers compute the members"):
        SharedRiskSets(model, observations, read)


def test_accumulated_sets_are_refused():
    with one_replica().scope():
        model = network()
    with pytest.raises(ValueError, match="accumulate=2: several workers share each batch"):
        Loop(
            model, batches(4), accumulate=2, worker=lambda m: SharedRiskSets(m, observations, read)
        )


@slow
@pytest.mark.parametrize(("model", "count"), [("risks", 2), ("streamed risks", 2), ("risks", 3)])
def test_workers_equal_one(model, count, tmp_path, run_here):
    """The last set has two members, so one of three workers has none of it."""
    settings = {"model": model, "images": 12}
    run_here(tmp_path / "one", **SETTINGS | settings)
    run(tmp_path / "workers", count, **WORKERS | settings)
    for worker in range(count):
        assert_equal(results(tmp_path / "workers", worker), results(tmp_path / "one"))


@slow
def test_statistics_are_averaged_over_workers(tmp_path):
    run(tmp_path / "workers", 2, norm="replica", **WORKERS)
    assert_equal(results(tmp_path / "workers", 1), results(tmp_path / "workers"), rtol=0)


@slow
def test_killed_worker_resumes(tmp_path):
    """Also with another number of workers."""
    run(tmp_path / "whole", 2, **WORKERS)
    ports, out = free_ports(2), tmp_path / "killed"
    dies = [start(out, ports, i, die_at=(1, 1) if i else None, **WORKERS) for i in range(2)]
    ends = ended(dies)
    assert [code for code, _ in ends] == [1, -9]
    assert "WorkerError: lost the other workers" in ends[0][1]
    run(out, 3, **WORKERS)
    for worker in range(3):
        assert_equal(results(out, worker), results(tmp_path / "whole"))


@slow
def test_unreadable_member_on_one_worker(tmp_path, run_here):
    """All end; or all leave out its set, as one worker does."""
    settings = {"images": 15, "broken": 2}
    ports, out = free_ports(2), tmp_path / "strict"
    ends = ended([start(out, ports, i, **WORKERS | settings) for i in range(2)])
    assert [code for code, _ in ends] == [1, 1]
    errors = "".join(text for _, text in ends)
    assert "SourceError: image: is truncated." in errors
    assert "WorkerError: another worker has failed" in errors
    run(tmp_path / "workers", 2, strict=False, **WORKERS | settings)
    run_here(tmp_path / "one", strict=False, **SETTINGS | settings)
    for worker in range(2):
        assert_equal(results(tmp_path / "workers", worker), results(tmp_path / "one"))


@slow
def test_stop_request_on_one_worker(tmp_path):
    ports, out = free_ports(2), tmp_path / "out"
    ends = ended([start(out, ports, i, stop_at=[1, 1], **WORKERS) for i in range(2)])
    assert [code for code, _ in ends] == [1, 1]
    assert "Stopped: stopped, because another worker was" in ends[0][1]
    run(out, 2, **WORKERS)
    run(tmp_path / "whole", 2, **WORKERS)
    assert_equal(results(out), results(tmp_path / "whole"), rtol=0)

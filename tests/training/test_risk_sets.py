"""Training steps over risk sets: their gradients, what makes no step, validation, and resuming in an epoch."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from cohorts import cohort
from keras import layers

from tfbig import SourceError, Stopped
from tfbig.data.worker_shards import ALL_BATCHES
from tfbig.mil.target_losses import CoxLoss, Survival
from tfbig.mil.target_metrics import Concordance
from tfbig.survival import cox_loss
from tfbig.system import signals
from tfbig.training import Checkpoints, Epochs, Loop
from tfbig.training.risk_sets import RiskSets, is_informative

COUNT, SIZE = 14, 5
"""Members, and members of a risk set."""


def inputs():
    rng = np.random.default_rng(3)
    return [rng.normal(size=(1, int(n), 4)).astype("float32") for n in rng.integers(2, 6, COUNT)]


def labels():
    _, times, events = cohort(5, n=COUNT)
    ranks = np.unique(times, return_inverse=True)[1]
    return np.stack([0 * ranks, events, ranks, np.arange(COUNT)], 1).astype(np.int64)


def network():
    keras.utils.set_random_seed(1)
    bag = keras.Input((None, 4))
    hidden = layers.Dropout(0.3)(layers.Dense(6, "tanh")(bag))
    model = keras.Model(bag, layers.Dense(1)(layers.GlobalAveragePooling1D()(hidden)))
    model.compile(keras.optimizers.Adam(0.02), CoxLoss(), metrics=[Concordance(COUNT)])
    return model


def worker(model):
    members = inputs()
    return RiskSets(
        model,
        lambda y: (np.asarray(y)[:, Survival.RANK], np.asarray(y)[:, Survival.EVENT]),
        lambda handle: members[int(handle)],
    )


def batches(size, shuffle):
    y = labels()

    def of(shard):
        order = np.arange(COUNT)
        if shuffle:
            order = np.random.default_rng(shard.epoch).permutation(COUNT)
        items = order[shard.items(COUNT, size)]
        return tf.data.Dataset.from_tensor_slices((items.astype(str), y[items])).batch(size)

    return Epochs(-(-COUNT // size), of)


def loop(model, epochs=1, **options):
    training, validation = batches(SIZE, True), batches(1, False)
    return Loop(model, training, validation, epochs, worker=worker, **options)


def test_gradient_is_that_of_the_whole_set():
    model = network()
    steps = worker(model)
    ((handles, y),) = batches(COUNT, False).batches(ALL_BATCHES)
    logs = steps.prepare([(handles, y)], None)()
    found = steps.accumulated.means()
    keras.utils.set_random_seed(1)
    twin = network()
    with tf.GradientTape() as tape:
        risks = tf.concat([twin(x, training=True) for x in inputs()], 0)
        loss = cox_loss(risks, y[:, Survival.RANK], y[:, Survival.EVENT])
    assert float(logs["loss"]) == pytest.approx(float(loss), rel=1e-5)
    for gradient, expected in zip(
        found, tape.gradient(loss, twin.trainable_variables), strict=True
    ):
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("times", "events", "informative"),
    [
        ([1, 2, 3], [0, 0, 0], False),
        ([1, 2, 3], [0, 0, 1], False),  # nobody else is under observation
        ([1, 2, 3], [1, 0, 0], True),
        ([1, 3, 3], [0, 1, 0], True),
        ([2], [1], False),
    ],
)
def test_informative_sets(times, events, informative):
    assert is_informative(times, events) == informative


def test_a_set_without_an_event_makes_no_step():
    model = network()
    y = labels()
    y[:, Survival.EVENT] = 0
    y[0, Survival.EVENT] = y[1, Survival.EVENT] = 1
    y[:2, Survival.RANK] = 0

    def of(shard):
        items = np.arange(COUNT)[shard.items(COUNT, SIZE)]
        return tf.data.Dataset.from_tensor_slices((items.astype(str), y[items])).batch(SIZE)

    steps = Loop(model, Epochs(3, of), epochs=2, worker=worker)
    steps.run()
    assert int(model.optimizer.iterations) == 2  # one of three sets has events


@pytest.mark.slow
def test_validation_is_one_risk_set():
    model = network()
    history = []
    record = keras.callbacks.LambdaCallback(on_epoch_end=lambda _, logs: history.append(dict(logs)))
    loop(model, callbacks=[record]).run()
    risks = tf.concat([model(x) for x in inputs()], 0)
    y = labels()
    expected = cox_loss(risks, y[:, Survival.RANK], y[:, Survival.EVENT])
    assert history[0]["val_loss"] == pytest.approx(float(expected), rel=1e-5)
    assert 0 <= history[0]["val_concordance"] <= 1
    assert history[0]["loss"] > 0


class StopAt(keras.callbacks.Callback):
    """Fail at the beginning of a step."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.steps = step

    def on_train_batch_begin(self, batch, logs=None) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise Stopped("as asked")


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 4])
def test_a_stopped_run_resumes_bit_by_bit(step, tmp_path):
    """Training resumes in the middle of an epoch, with the metrics of the epoch so far."""
    runs = []
    for stops in (False, True):
        history = []
        record = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda _, logs, rows=history: rows.append(dict(logs))
        )
        model, checkpoints = network(), Checkpoints(tmp_path / f"{stops}", "a run")
        if stops:
            with pytest.raises(Stopped):
                callbacks = [record, StopAt(step)]
                loop(model, 3, checkpoints=checkpoints, callbacks=callbacks).run()
            model = network()
        loop(model, 3, checkpoints=checkpoints, callbacks=[record]).run()
        runs.append((model, history))
    (whole, expected), (model, history) = runs
    assert history == expected
    for found, weights in zip(model.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(found, weights)


def test_a_stop_within_a_set_undoes_it(tmp_path, monkeypatch):
    model = network()
    before = [np.array(w) for w in model.get_weights()]
    calls = []

    def check():
        calls.append(1)
        if len(calls) == 9:  # in the second pass over the first set
            raise Stopped("by a signal")

    monkeypatch.setattr("tfbig.training.risk_sets.signals.check", check)
    steps = loop(model, checkpoints=Checkpoints(tmp_path, "a run"))
    with pytest.raises(Stopped):
        steps.run()
    assert steps.position.step == 0
    for found, weights in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(found, weights)


@pytest.mark.slow
def test_an_unreadable_member_leaves_out_its_set():
    model, left = network(), []

    def reading(handle):
        if int(handle) == 0:
            raise SourceError("bag 0: is gone")
        return inputs()[int(handle)]

    def of(model):
        return RiskSets(model, worker(model).observations, reading)

    training = batches(SIZE, False)
    Loop(model, training, epochs=1, worker=of, left_out=left.append).run()
    assert [str(error) for error in left] == ["bag 0: is gone"]
    assert int(model.optimizer.iterations) == 2
    assert signals.requested() is None

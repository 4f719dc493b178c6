"""BestWindow: the selected epoch against brute force, and the files that are retained."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from itertools import product

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfbig.training.best_window import BestWindow, best_epoch, can_be_best


def brute_force(values, window):
    """Return the lowest epoch of the window with the lowest average, by trying all windows."""
    window = min(window, len(values))
    best = None
    for start in range(len(values) - window + 1):
        average = np.mean(values[start : start + window])
        if best is None or average < best[0]:
            best = average, start
    epochs = range(best[1], best[1] + window)
    return min(epochs, key=lambda e: values[e])


NUMBERS = st.lists(st.integers(-4, 4), min_size=1, max_size=25)  # sums are exact, ties are many
WINDOWS = st.integers(1, 8)


@given(NUMBERS, WINDOWS)
def test_best_epoch_equals_brute_force(values, window):
    assert best_epoch(values, window) == brute_force(values, window)


@pytest.mark.parametrize("seed", range(5))
def test_best_epoch_equals_brute_force_on_random_values(seed):
    values = list(np.random.default_rng(seed).normal(size=60))
    for length in range(1, 61):
        assert best_epoch(values[:length], 15) == brute_force(values[:length], 15)


def test_best_epoch_of_a_small_example():
    """The lucky 0 is surrounded by bad epochs."""
    values = [9, 0, 9, 3, 2, 3, 4]
    assert [best_epoch(values, w) for w in (1, 3, 100)] == [1, 4, 1]
    assert best_epoch([5, 4, 4], 2) == 1


def test_averages_are_compared_exactly():
    """In float64 all of these sums are rounded to 1e16."""
    assert best_epoch([1e16, 1.0, 1e16, 0.0], 2) == 3
    assert best_epoch([1e16, 0.0, 1e16, 1.0], 2) == 1


def test_values_that_are_not_finite_are_worst():
    nan, inf = np.nan, np.inf
    assert [best_epoch(v, 2) for v in ([nan, -inf], [nan, inf, 9], [inf, 1, nan, 2, 3])] == [
        0,
        2,
        3,
    ]


@pytest.mark.parametrize("window", [1, 2, 3, 4])
def test_epochs_are_retained_exactly_while_a_future_can_select_them(window):
    """Checks all short histories and futures of three numbers."""
    for values in product(range(3), repeat=4):
        futures = [f for n in range(window + 1) for f in product(range(3), repeat=n)]
        needed = {best_epoch([*values, *future], window) for future in futures}
        retained = {e for e in range(4) if can_be_best(e, values, window)}
        assert retained == needed & set(range(4)), values


def test_low_epochs_between_high_ones_are_retained():
    values = [1, 9, 2, 9, 3, 9]
    assert [e for e in range(6) if can_be_best(e, values, 15)] == [0, 2, 4]


def simulate(values, window):
    """Return the epochs retained at the end; checks that the best epoch is always among them."""
    retained: set[int] = set()
    for epoch in range(len(values)):
        past = values[: epoch + 1]
        retained = {e for e in retained | {epoch} if can_be_best(e, past, window)}
        assert best_epoch(past, window) in retained
    return retained


@given(st.lists(st.floats(), min_size=1, max_size=25), WINDOWS)
def test_best_epoch_is_always_retained(values, window):
    """Any floats, whose sums are rounded, infinite or NaN."""
    simulate(values, window)


def test_noisy_falling_loss_retains_few_files():
    rng = np.random.default_rng(0)
    values = list(np.exp(-np.arange(150) / 50) + 0.05 * rng.normal(size=150))
    assert max(len(simulate(values[:n], 15)) for n in range(60, 150, 10)) <= 5


class Scripted(keras.callbacks.Callback):
    """Callback that sets the value of each epoch, and the weight of the model to the number of the epoch."""

    def __init__(self, values):
        super().__init__()
        self.values = values

    def on_epoch_end(self, epoch, logs=None):
        self.model.set_weights([np.full((1, 1), epoch, "float32")])
        logs["val_loss"] = self.values[epoch]


class Watching(keras.callbacks.Callback):
    """Callback that records the epoch in the file `path` and the number of other files."""

    def __init__(self, path):
        super().__init__()
        self.path, self.seen, self.num_files = path, [], []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(weight(self.path))
        self.num_files.append(len(list(self.path.parent.iterdir())) - 1)


def tiny():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile("sgd", "mse")
    return model


def weight(path):
    if path.suffix == ".keras":
        return int(keras.models.load_model(path).get_weights()[0][0, 0])
    model = tiny()
    model.load_weights(path)
    return int(model.get_weights()[0][0, 0])


def fit(values, *callbacks):
    data = np.zeros((1, 1), "float32")
    model = tiny()
    model.fit(data, data, epochs=len(values), verbose=0, callbacks=[Scripted(values), *callbacks])
    return model


def replay(values, *callbacks, first=0):
    """Call callbacks as `fit` does, without training; starts at epoch `first`."""
    calls = keras.callbacks.CallbackList([Scripted(values), *callbacks], model=tiny())
    calls.on_train_begin()
    for epoch in range(first, len(values)):
        calls.on_epoch_end(epoch, {"loss": 0.0})
    calls.on_train_end()


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".weights.h5", ".keras"])
@pytest.mark.parametrize("seed", range(2))
def test_file_contains_the_best_epoch_after_every_epoch(seed, ending, tmp_path):
    values = [float(v) for v in np.random.default_rng(seed).integers(0, 30, 16)]
    path = tmp_path / "new" / f"best{ending}"
    watching = Watching(path)
    callback = BestWindow(path, window=4)
    replay(values, callback, watching)
    assert watching.seen == [brute_force(values[:n], 4) for n in range(1, 17)]
    assert max(watching.num_files) <= 5
    assert list(path.parent.iterdir()) == [path]
    assert weight(path) == brute_force(values, 4)
    assert callback.values == values


def test_window_of_one_selects_the_best_epoch(tmp_path):
    path = tmp_path / "best.weights.h5"
    fit([3.0, 1.0, 2.0, 1.0], BestWindow(path, window=1))
    assert weight(path) == 1
    replay([3.0, 1.0, 4.0, 4.0], BestWindow(path, window=1, mode="max"))
    assert weight(path) == 2


class Checkpointing(keras.callbacks.Callback):
    """Callback that stores the last two checkpoints, one after every epoch, as a loop does."""

    def __init__(self, callback):
        super().__init__()
        self.callback, self.states = callback, []

    def on_epoch_end(self, epoch, logs=None):
        self.states = [*self.states, json.dumps(self.callback.checkpoint_state())][-2:]
        self.callback.checkpoint_written()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_resumes_from_either_of_the_last_two_checkpoints(seed, tmp_path):
    """The run is killed after an epoch, and the newest checkpoint may be damaged."""
    values = [float(v) for v in np.random.default_rng(seed).integers(0, 30, 9)]
    path = tmp_path / "best.weights.h5"
    for done in range(1, len(values), 2):
        for damaged in (False, True):
            callback = BestWindow(path, window=4, folder=tmp_path / "checkpoints")
            checkpoints = Checkpointing(callback)
            replay(values[:done], callback, checkpoints)
            state = json.loads(checkpoints.states[0 if damaged else -1])
            again = BestWindow(path, window=4, folder=tmp_path / "checkpoints")
            again.restore_state(state)
            replay(values, again, Checkpointing(again), first=len(state["values"]))
            assert weight(path) == brute_force(values, 4)
            assert len(list((tmp_path / "checkpoints").iterdir())) <= 7


def one_more_epoch(values, path):
    """Train, and resume the finished run with one more epoch; return the files of epochs before that."""
    hidden = path.parent / "checkpoints"
    callback = BestWindow(path, window=1, folder=hidden)
    checkpoints = Checkpointing(callback)
    replay(values[:-1], callback, checkpoints)
    files = list(hidden.iterdir())
    again = BestWindow(path, window=1, folder=hidden)
    again.restore_state(json.loads(checkpoints.states[-1]))
    replay(values, again, Checkpointing(again), first=len(values) - 1)
    return files


def test_a_finished_run_has_its_best_epoch_on_disk_once(tmp_path):
    """The file of the best epoch is that of the selection, and a resumed run still has it."""
    path = tmp_path / "best.weights.h5"
    (best,) = one_more_epoch([1.0, 2.0, 3.0], path)
    assert best.name == ".epoch-1-best.weights.h5"
    assert best.samefile(path)
    assert weight(path) == 0


def test_a_later_selection_leaves_earlier_epochs_as_they_are(tmp_path):
    path = tmp_path / "best.weights.h5"
    (best,) = one_more_epoch([2.0, 3.0, 1.0], path)
    assert weight(path) == 2
    assert weight(best) == 0


def test_file_system_without_links(tmp_path, monkeypatch):
    def refuse(*paths):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "best.weights.h5"
    (best,) = one_more_epoch([1.0, 2.0, 3.0], path)
    assert not best.samefile(path)
    assert weight(path) == weight(best) == 0


def test_epoch_with_a_missing_file_is_not_selected(tmp_path):
    path = tmp_path / "best.weights.h5"
    again = BestWindow(path, window=1)
    again.restore_state({"values": [0.5, 0.7], "of": ["val_loss", 1, "min"]})
    again.on_train_begin()
    again.set_model(tiny())
    again.model.set_weights([np.full((1, 1), 2.0)])
    again.on_epoch_end(2, {"val_loss": 0.6})
    assert weight(path) == 2
    assert again.values[1:] == [0.7, 0.6]


def test_nan_epochs_are_not_selected(tmp_path):
    path = tmp_path / "best.weights.h5"
    replay([1.0, np.nan, 5.0, 4.0, np.nan], BestWindow(path, window=2))
    assert weight(path) == 3


def test_second_fit_selects_among_its_own_epochs(tmp_path):
    path = tmp_path / "best.weights.h5"
    callback = BestWindow(path, window=2)
    replay([1.0, 2.0, 3.0], callback)
    replay([9.0, 8.0, 7.0], callback)
    assert weight(path) == 2


def test_only_files_of_a_killed_run_are_deleted(tmp_path):
    path = tmp_path / "best.weights.h5"
    for name in (".epoch-7-best.weights.h5", ".epoch-7-the-best.weights.h5", "other.weights.h5"):
        (tmp_path / name).touch()
    replay([1.0], BestWindow(path))
    left = {".epoch-7-the-best.weights.h5", "other.weights.h5", path.name}
    assert {p.name for p in tmp_path.iterdir()} == left


def test_monitors_another_value(tmp_path):
    path = tmp_path / "best.keras"
    callback = BestWindow(str(path), monitor="loss", window=3)
    fit([3.0, 2.0], callback)
    assert callback.values == [0.0, 0.0]
    assert weight(path) == 0


def test_refuses_invalid_arguments(tmp_path):
    with pytest.raises(ValueError, match=r"path is best\.h5, expected \*\.weights\.h5 or"):
        BestWindow("best.h5")
    with pytest.raises(ValueError, match="window is 0, expected an integer of 1 or more"):
        BestWindow("best.keras", window=0)
    with pytest.raises(ValueError, match="mode is 'auto', expected 'min' or 'max'"):
        BestWindow("best.keras", mode="auto")
    data = np.zeros((1, 1))
    with pytest.raises(
        ValueError, match=r"an epoch have \['loss'\], expected 'val_loss'\. Pass val"
    ):
        tiny().fit(data, data, verbose=0, callbacks=[BestWindow(tmp_path / "best.keras")])


FULL = """
import resource, sys
import keras
from tfbig.errors import SourceError
from tfbig.training.best_window import BestWindow

model = keras.Sequential([keras.Input((100,)), keras.layers.Dense(1000)])
best = BestWindow(sys.argv[1])
best.set_model(model)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000,) * 2)
try:
    best.on_epoch_end(0, {"val_loss": 1.0})
except SourceError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.weights.h5", "a.keras"])
def test_a_disk_that_becomes_full(name, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / name)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        rf".*{name}: cannot be written: File too large\. Free space, .*\n", done.stdout
    )
    assert not list(tmp_path.iterdir())

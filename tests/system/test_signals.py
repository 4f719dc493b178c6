"""Signals end long work after a strip, with the usual exit code, also while TensorFlow holds the main thread."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import keras
import numpy as np
import pytest

import tfbig
from tfbig.system import progress, signals

WORK = """
import sys, time
from tfbig.system import signals
try:
    with signals.on_signals("ends soon"):
        print("ready", flush=True)
        while sys.argv[1] == "deaf":
            time.sleep(0.01)
        while True:
            time.sleep(0.01)
            signals.check()
except signals.Stopped as error:
    print(error, flush=True)
    sys.exit(7)
"""


@contextmanager
def working(kind="hears"):
    """A process that waits to be stopped; one that is deaf never asks whether it should."""
    work = subprocess.Popen(
        [sys.executable, "-c", WORK, kind],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with work:
        assert work.stdout.readline() == "ready\n"
        yield work
        work.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_work_where_it_asks(number):
    with working() as work:
        work.send_signal(number)
        out, err = work.communicate(timeout=20)
    assert (work.returncode, out.strip()) == (7, f"stopped by {number.name}")
    assert err.endswith("\nends soon\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_ends_the_process_at_once(number, code):
    with working("deaf") as work:
        work.send_signal(number)
        while work.stderr.readline() != "ends soon\n":
            assert work.poll() is None
        work.send_signal(number)
        work.communicate(timeout=20)
    assert work.returncode == code


def test_handlers_are_as_before_and_nothing_is_asked_afterwards():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with signals.on_signals(""):
        signals.request(signal.SIGTERM)
        assert signals.asked() == signal.SIGTERM
        assert signals.exit_code() == 143
        with pytest.raises(tfbig.Stopped, match="stopped by SIGTERM"):
            signals.check()
    assert signals.asked() is None
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    signals.check()


def test_a_thread_that_is_not_the_main_one_sets_no_handlers():
    seen = []

    def work():
        with signals.on_signals(""):
            seen.append(signal.getsignal(signal.SIGINT))

    other = threading.Thread(target=work)
    other.start()
    other.join()
    assert seen == [signal.getsignal(signal.SIGINT)]


def test_a_step_ends_after_the_strip_and_changes_no_weight(monkeypatch, capsys):
    """The signal comes while the main thread is inside TensorFlow; the weights are those of the step before."""
    image = keras.Input((None, None, 1))
    x = keras.layers.Conv2D(2, 3, padding="same")(image)
    x = keras.layers.BatchNormalization()(x)
    model = keras.Model(image, keras.layers.Conv2D(1, 1)(x))
    big = tfbig.stream(model, strip_rows=4)
    big.compile("adam", "mse")
    data = np.ones((1, 64, 16, 1), np.float32)
    big.train_on_batch(data, data)
    before = [w.numpy() for w in model.trainable_weights]
    ticks = []
    tick = progress.Meter.tick

    def third(self, what, index, count, unit="strip"):
        ticks.append(index)
        if len(ticks) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
            while signals.asked() is None:
                time.sleep(0.001)
        tick(self, what, index, count, unit)

    monkeypatch.setattr(progress.Meter, "tick", third)
    with (
        signals.on_signals("ends after the strip"),
        pytest.raises(tfbig.Stopped, match="SIGTERM"),
    ):
        big.train_on_batch(data, data)
    assert len(ticks) <= 4  # one more may have been at work
    assert "ends after the strip" in capsys.readouterr().err
    for known, weight in zip(before, model.trainable_weights, strict=True):
        np.testing.assert_array_equal(weight.numpy(), known)

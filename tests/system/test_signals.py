"""Signals stop long work after a strip, with the usual exit code, also while TensorFlow occupies the main thread."""

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
from samples import ENVIRONMENT, PROGRAMS

import tfbig
from tfbig.system import progress, signals

PATIENCE = 300
"""Seconds after which a process that should have ended is a failure."""


@contextmanager
def working(kind="hears"):
    """Start a process that waits to be stopped; a "deaf" one never checks."""
    work = subprocess.Popen(
        [sys.executable, str(PROGRAMS / "wait_for_signal.py"), kind],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with work:
        assert work.stdout.readline() == "ready\n"
        yield work
        work.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_work_at_its_next_check(number):
    with working() as work:
        work.send_signal(number)
        out, err = work.communicate(timeout=PATIENCE)
    assert (work.returncode, out.strip()) == (7, f"stopped by {number.name}")
    assert err.endswith("\nends soon\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_second_signal_ends_the_process_at_once(number, code):
    with working("deaf") as work:
        work.send_signal(number)
        while (line := work.stderr.readline()) != "ends soon\n":
            assert line, "the process ended without a message"
        work.send_signal(number)
        work.communicate(timeout=PATIENCE)
    assert work.returncode == code


def test_handlers_and_request_are_reset():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with signals.on_signals(""):
        signals.request(signal.SIGTERM)
        assert signals.requested() == signal.SIGTERM
        assert signals.exit_code() == 143
        with pytest.raises(tfbig.Stopped, match="stopped by SIGTERM"):
            signals.check()
    assert signals.requested() is None
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    signals.check()


def test_other_threads_set_no_handlers():
    seen = []

    def work():
        with signals.on_signals(""):
            seen.append(signal.getsignal(signal.SIGINT))

    other = threading.Thread(target=work)
    other.start()
    other.join()
    assert seen == [signal.getsignal(signal.SIGINT)]


def test_step_stops_after_a_strip_and_changes_no_weight(monkeypatch, capsys):
    """The signal arrives while the main thread is inside TensorFlow; the weights remain those of the step before."""
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

    def stop_at_third(self, what, index, count, unit="strip"):
        ticks.append(index)
        if len(ticks) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
            while signals.requested() is None:
                time.sleep(0.001)
        tick(self, what, index, count, unit)

    monkeypatch.setattr(progress.Meter, "tick", stop_at_third)
    with (
        signals.on_signals("ends after the strip"),
        pytest.raises(tfbig.Stopped, match="SIGTERM"),
    ):
        big.train_on_batch(data, data)
    assert len(ticks) <= 4  # two strips run at a time
    assert "ends after the strip" in capsys.readouterr().err
    for expected, weight in zip(before, model.trainable_weights, strict=True):
        np.testing.assert_array_equal(weight.numpy(), expected)

"""Progress of the first step: planning, tracing and running are reported, and a request to stop ends each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import keras
import numpy as np
import pytest

import tfbig
from tfbig.errors import Stopped
from tfbig.system import progress, signals

IMAGE = np.ones((1, 48, 48, 3), "float32")


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Lines of a meter whose clock moves by a minute whenever it is read."""
    clock = itertools.count(0, 60)
    meter, lines = progress.Meter(lambda: float(next(clock))), list[str]()
    monkeypatch.setattr(progress, "METER", meter)
    monkeypatch.setattr("tfbig.stores.transfers.METER", meter)
    monkeypatch.setattr(meter, "_print", lines.append)
    return lines


def network() -> keras.Model:
    """Two convolutions in a sweep, then a normalisation that ends the sweep."""
    image = keras.Input((None, None, 3))
    x = image
    for _ in range(2):
        x = keras.layers.Conv2D(4, 3, padding="same")(x)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.Conv2D(1, 1)(x)
    return keras.Model(image, x, name="two_sweeps")


def kinds(lines: list[str]) -> list[str]:
    """Return the kinds of lines that were reported, each once, without numbers."""
    words = [" ".join(line.split()[:2]).rstrip(",") for line in lines if line.strip()]
    return list(dict.fromkeys(words))


@pytest.mark.slow
def test_first_step_reports_planning_tracing_and_strips(printed: list[str]) -> None:
    big = tfbig.stream(network(), strip_rows=8)
    big.compile("sgd", "mse")
    big.fit(IMAGE, IMAGE[..., :1], verbose=0)
    expected = [
        "planning two_sweeps",
        "tracing forward",
        "tracing backward",
        "forward 1/2",
        "backward 2/2",
    ]
    assert [kind for kind in kinds(printed) if kind in expected] == expected
    assert any(line.startswith("\rtracing backward 1/2, ") for line in printed)


@pytest.mark.parametrize("work", ["planning", "tracing backward"])
def test_stop_ends_planning_and_tracing(
    work: str, printed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop_at(line: str) -> None:
        if line.startswith(f"\r{work}"):
            monkeypatch.setattr(signals, "_requested", 2)

    monkeypatch.setattr(progress.METER, "_print", stop_at)
    big = tfbig.stream(network(), strip_rows=8)
    big.compile("sgd", "mse")
    with pytest.raises(Stopped):
        big.fit(IMAGE, IMAGE[..., :1], verbose=0)

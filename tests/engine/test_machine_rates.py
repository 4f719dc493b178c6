"""Rates are measured once and kept; a damaged or forbidden file does no harm."""

from __future__ import annotations

import json

import pytest

from tfbig.engine import machine_rates
from tfbig.plan.plan import Rates

FOUND = Rates(3e11, 2e10, 4e9, 2e9, 5e8)
SAVED = machine_rates._saved


@pytest.fixture
def cache(tmp_path, monkeypatch, measured_rates):
    """An empty cache folder, and how often something was measured."""
    calls = []

    def measure(device, scratch):
        calls.append(device if scratch is None else scratch)
        return FOUND

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(machine_rates, "_known", {})
    monkeypatch.setattr(machine_rates, "measure", measure)
    monkeypatch.setattr(machine_rates, "_saved", SAVED)
    return calls


def test_measured_once_and_kept_in_a_file(cache, monkeypatch):
    assert machine_rates.of(None) == FOUND
    assert machine_rates.of(None) == FOUND
    monkeypatch.setattr(machine_rates, "_known", {})  # another process
    assert machine_rates.of(None) == FOUND
    assert cache == [None]
    (kept,) = json.loads(machine_rates.file().read_text()).values()
    assert kept == {"operations": 3e11, "passes": 2e10, "copies": 4e9, "mapped": 2e9, "disk": 5e8}


def test_devices_are_measured_apart(cache):
    machine_rates.of(None)
    machine_rates.of("/GPU:0")
    assert cache == [None, "/GPU:0"]
    assert len(json.loads(machine_rates.file().read_text())) == 2


def test_directories_are_measured_apart(cache, tmp_path):
    machine_rates.of(None)
    machine_rates.of(None, str(tmp_path))
    assert cache == [None, str(tmp_path)]


@pytest.mark.parametrize(
    "content", ["", "[]", "{", "null", '{"KEY": {"operations": -1}}', '{"KEY": 3}']
)
def test_a_damaged_file_is_measured_anew(cache, content, monkeypatch):
    machine_rates.of(None)
    (key,) = json.loads(machine_rates.file().read_text())
    machine_rates.file().write_text(content.replace("KEY", key))
    monkeypatch.setattr(machine_rates, "_known", {})
    assert machine_rates.of(None) == FOUND
    assert cache == [None, None]


def test_a_home_that_cannot_be_written_to(cache, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert machine_rates.of(None) == FOUND


def test_measured_rates_are_those_of_a_computer(measured_rates):
    found = measured_rates(None)
    assert 1e9 < found.operations < 1e16
    assert 1e8 < found.passes < 1e14
    assert 1e8 < found.copies < 1e13
    assert 1e6 < found.mapped < 1e13
    assert 1e5 < found.disk < 1e12

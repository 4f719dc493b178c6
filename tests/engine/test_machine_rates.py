"""Rates are measured once and saved; a damaged or read-only file is not an error."""

from __future__ import annotations

import json

import pytest

from tfbig.engine import machine_rates
from tfbig.plan.plan import Rates

RATES = Rates(3e11, 2e10, 4e9, 2e9, 5e8)
SAVED = machine_rates._saved


@pytest.fixture
def cache(tmp_path, monkeypatch, measured_rates):
    """Use an empty cache directory; return the list of measurements."""
    calls = []

    def measure(device, scratch):
        calls.append(device if scratch is None else scratch)
        return RATES

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(machine_rates, "_known", {})
    monkeypatch.setattr(machine_rates, "measure", measure)
    monkeypatch.setattr(machine_rates, "_saved", SAVED)
    return calls


def test_measured_once_and_saved(cache, monkeypatch):
    assert machine_rates.of(None) == RATES
    assert machine_rates.of(None) == RATES
    monkeypatch.setattr(machine_rates, "_known", {})  # another process
    assert machine_rates.of(None) == RATES
    assert cache == [None]
    (saved,) = json.loads(machine_rates.file().read_text()).values()
    assert saved == {"operations": 3e11, "passes": 2e10, "copies": 4e9, "mapped": 2e9, "disk": 5e8}


def test_rates_per_device(cache):
    machine_rates.of(None)
    machine_rates.of("/GPU:0")
    assert cache == [None, "/GPU:0"]
    assert len(json.loads(machine_rates.file().read_text())) == 2


def test_rates_per_directory(cache, tmp_path):
    machine_rates.of(None)
    machine_rates.of(None, str(tmp_path))
    assert cache == [None, str(tmp_path)]


@pytest.mark.parametrize(
    "content", ["", "[]", "{", "null", '{"KEY": {"operations": -1}}', '{"KEY": 3}']
)
def test_damaged_file_is_replaced(cache, content, monkeypatch):
    machine_rates.of(None)
    (key,) = json.loads(machine_rates.file().read_text())
    machine_rates.file().write_text(content.replace("KEY", key))
    monkeypatch.setattr(machine_rates, "_known", {})
    assert machine_rates.of(None) == RATES
    assert cache == [None, None]


def test_read_only_home(cache, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert machine_rates.of(None) == RATES


def in_ten_milliseconds(work, times=1):
    """Do the work once, and return a duration that does not depend on the machine or on what else runs on it."""
    work()
    return 0.01


def test_rates_from_durations(measured_rates, monkeypatch):
    """Rates of a measurement without the file of 512 MiB, with fixed durations."""
    monkeypatch.setattr(machine_rates, "_seconds", in_ten_milliseconds)
    monkeypatch.setattr(machine_rates, "_disk_seconds", lambda block, scratch: block.nbytes / 5e8)
    rates = measured_rates(None)
    pixels, channels, block_bytes = 256 * 256, 64, 4 * 2**23
    operations = 2 * channels * channels * pixels  # of a 1x1 kernel, which is timed nine times
    assert rates.operations == pytest.approx((9 + 9) * operations / (0.01 + 9 * 0.01))
    assert rates.passes == pytest.approx(4 * channels * pixels / 0.01)
    assert rates.copies == pytest.approx(block_bytes / 0.01)
    assert rates.mapped == pytest.approx(2 * block_bytes / 0.01)
    assert rates.disk == pytest.approx(5e8)


@pytest.mark.slow
def test_measured_rates_with_the_disk(measured_rates):
    """Rates are those of some machine, however busy: within six orders of magnitude."""
    rates = measured_rates(None)
    assert 1e8 < rates.operations < 1e16
    assert 1e6 < rates.passes < 1e14
    assert 1e6 < rates.copies < 1e13
    assert 1e5 < rates.mapped < 1e13
    assert 1e5 < rates.disk < 1e12

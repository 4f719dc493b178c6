"""Unified memory: what is set, what is verified, what is refused. No card is needed; `tests/gpu` has one."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import tensorflow as tf
from samples import ROOT

import tfbig
from tfbig.system import backend, unified_memory

GB = 10**9


def card(name="/physical_device:GPU:0"):
    return SimpleNamespace(name=name, device_type="GPU")


class Driver:
    """A CUDA driver of one card with 8 GB."""

    def __init__(self, concurrent=1, fails=()):
        self.concurrent, self.fails = concurrent, fails

    def cuDeviceGet(self, device, index):
        return int("get" in self.fails)

    def cuDeviceGetAttribute(self, found, attribute, device):
        assert attribute == 89  # of cuda.h: CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS
        ctypes.cast(found, ctypes.POINTER(ctypes.c_int))[0] = self.concurrent
        return 0

    def cuDeviceTotalMem_v2(self, total, device):
        ctypes.cast(total, ctypes.POINTER(ctypes.c_size_t))[0] = 8 * GB
        return 0


@pytest.fixture
def machine(monkeypatch):
    """One card of which everything can be asked, in a TensorFlow that has no devices yet; settings do no harm."""
    known = SimpleNamespace(
        details={"compute_capability": (9, 0)}, logical=None, driver=Driver(), limit=30 * GB
    )
    state = SimpleNamespace(_initialized=False, _config=None)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [card()])
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind=None: [card("/GPU:0")])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda device: known.details)
    monkeypatch.setattr(tf.config, "get_logical_device_configuration", lambda device: known.logical)
    monkeypatch.setattr(unified_memory.context, "context", lambda: state)
    monkeypatch.setattr(unified_memory, "_cuda", lambda: known.driver)
    monkeypatch.setattr(unified_memory, "available_bytes", lambda: 100 * GB)
    monkeypatch.setattr(unified_memory, "_is_apple_silicon", lambda: False)
    monkeypatch.setattr(backend, "accelerator_bytes", lambda: known.limit)
    known.state = state
    return known


def test_what_tensorflow_needs_is_set_before_its_devices(machine):
    found = tfbig.unified_memory(4.0)
    options = machine.state._config.gpu_options
    assert options.per_process_gpu_memory_fraction == 4.0
    assert options.experimental.use_unified_memory
    assert options.allow_growth  # memory comes as it is used
    assert (found.physical_bytes, found.limit_bytes) == (8 * GB, 30 * GB)
    assert "28.0 GiB for tensors, 7.5 GiB of it the device's own" in str(found)


def test_no_more_is_asked_for_than_card_and_host_have_free(machine, monkeypatch):
    monkeypatch.setattr(unified_memory, "available_bytes", lambda: 10 * GB)
    tfbig.unified_memory(4.0)
    fraction = machine.state._config.gpu_options.per_process_gpu_memory_fraction
    assert fraction == pytest.approx((8 + 9) / 8)


def test_a_limit_that_the_device_does_not_report_is_an_error(machine):
    machine.limit = 7 * GB
    with pytest.raises(tfbig.UnifiedMemoryError, match=r"did not take it: .* a limit of 6\.6 GiB"):
        tfbig.unified_memory()


def test_too_late_is_said(machine):
    machine.state._initialized = True
    with pytest.raises(tfbig.UnifiedMemoryError, match=r"too late: .* Call it first"):
        tfbig.unified_memory()
    assert machine.state._config is None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"details": {}}, r"is a plug-in device"),
        ({"details": {"compute_capability": (5, 2)}}, r"has compute capability 5\.2; .* from 6\.0"),
        ({"logical": ["one"]}, r"is divided into logical devices"),
        ({"driver": Driver(concurrent=0)}, r"cannot move pages .* Windows"),
        ({"driver": None}, r"does not say how much memory it has"),
        ({"driver": Driver(fails=["get"])}, r"does not say how much memory it has"),
    ],
)
def test_what_cannot_share_is_refused_with_what_to_use_instead(machine, changed, message):
    vars(machine).update(changed)
    with pytest.raises(tfbig.UnifiedMemoryError, match=message) as error:
        tfbig.unified_memory()
    assert "tfbig.stream" in str(error.value)
    assert machine.state._config is None


@pytest.mark.parametrize("times", [1.0, 0.5, -2, float("nan"), float("inf")])
def test_oversubscription_is_above_one(times):
    with pytest.raises(ValueError, match=r"expected a number above 1"):
        tfbig.unified_memory(times)


def test_shared_memory_needs_nothing(machine, monkeypatch):
    monkeypatch.setattr(unified_memory, "_is_apple_silicon", lambda: True)
    found = tfbig.unified_memory()
    assert found.limit_bytes == found.physical_bytes == 100 * GB
    assert machine.state._config is None


def test_tensorflow_itself_takes_the_configuration():
    """In a process of its own: the device options that TensorFlow makes devices with."""
    program = """
import json
from tensorflow.python.eager import context
from tfbig.system import unified_memory
assert not context.context()._initialized  # importing tfbig makes no devices
unified_memory._configure(2.5)
options = context.context().config.gpu_options
context.context().ensure_initialized()
print(json.dumps([options.per_process_gpu_memory_fraction, options.allow_growth]))
"""
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(found.stdout.splitlines()[-1]) == [2.5, True]


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="is for machines without")
def test_without_an_accelerator_memory_is_that_of_the_host():
    found = tfbig.unified_memory()
    assert found.device == "the CPU"
    assert 0 < found.limit_bytes == found.physical_bytes
    assert unified_memory.peak_bytes() is None

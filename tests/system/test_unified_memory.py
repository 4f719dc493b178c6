"""Unified memory with a simulated GPU: configuration, verification and errors. `tests/gpu` uses a real one."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import tensorflow as tf
from samples import ENVIRONMENT, PROGRAMS

import tfbig
from tfbig.system import cuda_driver, tensorflow_internals, unified_memory

GB = 10**9


def card(name="/physical_device:GPU:0"):
    return SimpleNamespace(name=name, device_type="GPU")


class Driver:
    """CUDA driver of one GPU with 8 GB."""

    def __init__(self, concurrent=1, fails=()):
        self.concurrent, self.fails = concurrent, fails

    def cuDeviceGet(self, device, index):
        return int("get" in self.fails)

    def cuDeviceGetAttribute(self, value, attribute, device):
        assert attribute == 89  # of cuda.h: CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS
        ctypes.cast(value, ctypes.POINTER(ctypes.c_int))[0] = self.concurrent
        return 0

    def cuDeviceTotalMem_v2(self, total, device):
        ctypes.cast(total, ctypes.POINTER(ctypes.c_size_t))[0] = 8 * GB
        return 0


@pytest.fixture
def machine(monkeypatch):
    """Simulate one GPU in a TensorFlow without devices so far; settings go to a substitute of its context."""
    gpu = SimpleNamespace(
        details={"compute_capability": (9, 0)}, logical=None, driver=Driver(), limit=30 * GB
    )
    state = SimpleNamespace(_initialized=False, _config=None)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [card()])
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind=None: [card("/GPU:0")])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda device: gpu.details)
    monkeypatch.setattr(tf.config, "get_logical_device_configuration", lambda device: gpu.logical)
    monkeypatch.setattr(tensorflow_internals.context, "context", lambda: state)
    monkeypatch.setattr(cuda_driver, "library", lambda: gpu.driver)
    monkeypatch.setattr(unified_memory, "available_bytes", lambda: 100 * GB)
    monkeypatch.setattr(unified_memory, "_is_apple_silicon", lambda: False)
    monkeypatch.setattr(tensorflow_internals, "accelerator_bytes", lambda: gpu.limit)
    gpu.state = state
    return gpu


def test_sets_the_options_of_tensorflow(machine):
    memory = tfbig.unified_memory(4.0)
    options = machine.state._config.gpu_options
    assert options.per_process_gpu_memory_fraction == 4.0
    assert options.experimental.use_unified_memory
    assert options.allow_growth
    assert (memory.physical_bytes, memory.limit_bytes) == (8 * GB, 30 * GB)
    assert "28.0 GiB for tensors, of which the device has 7.5 GiB" in str(memory)


def test_limit_is_reduced_to_available_memory(machine, monkeypatch):
    monkeypatch.setattr(unified_memory, "available_bytes", lambda: 10 * GB)
    tfbig.unified_memory(4.0)
    fraction = machine.state._config.gpu_options.per_process_gpu_memory_fraction
    assert fraction == pytest.approx((8 + 9) / 8)


def test_refuses_if_the_device_reports_another_limit(machine):
    machine.limit = 7 * GB
    with pytest.raises(tfbig.UnifiedMemoryError, match=r"ignored it: .* a limit of 6\.6 GiB"):
        tfbig.unified_memory()


def test_refuses_if_devices_exist(machine):
    machine.state._initialized = True
    with pytest.raises(tfbig.UnifiedMemoryError, match=r"too late: .* Ask for it first"):
        tfbig.unified_memory()
    assert machine.state._config is None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"details": {}}, r"is a plug-in device"),
        (
            {"details": {"compute_capability": (5, 2)}},
            r"has compute capability 5\.2; expected 6\.0",
        ),
        ({"logical": ["one"]}, r"is divided into logical devices"),
        ({"driver": Driver(concurrent=0)}, r"cannot move pages .* Windows"),
        ({"driver": None}, r"does not report the size of its memory"),
        ({"driver": Driver(fails=["get"])}, r"does not report the size of its memory"),
    ],
)
def test_refuses_unsupported_platforms_and_names_an_alternative(machine, changed, message):
    vars(machine).update(changed)
    with pytest.raises(tfbig.UnifiedMemoryError, match=message) as error:
        tfbig.unified_memory()
    assert "tfbig.stream" in str(error.value)
    assert machine.state._config is None


@pytest.mark.parametrize("times", [1.0, 0.5, -2, float("nan"), float("inf")])
def test_refuses_oversubscription_of_one_or_less(times):
    with pytest.raises(ValueError, match=r"expected a number above 1"):
        tfbig.unified_memory(times)


def test_apple_silicon_needs_no_options(machine, monkeypatch):
    monkeypatch.setattr(unified_memory, "_is_apple_silicon", lambda: True)
    memory = tfbig.unified_memory()
    assert memory.limit_bytes == memory.physical_bytes == 100 * GB
    assert machine.state._config is None


@pytest.mark.slow
def test_tensorflow_uses_the_options():
    """Runs in a new process, because TensorFlow creates its devices with the options."""
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "unified_memory_options.py")],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [2.5, True]


@pytest.mark.skipif(
    bool(tf.config.list_physical_devices("GPU")), reason="needs a machine without a GPU"
)
def test_without_an_accelerator():
    memory = tfbig.unified_memory()
    assert memory.device == "the CPU"
    assert 0 < memory.limit_bytes == memory.physical_bytes
    assert unified_memory.peak_bytes() is None

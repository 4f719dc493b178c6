"""Fixtures of all tests: a hypothesis profile, fixed seeds, float64, and fixed machine rates.

They import TensorFlow when they are used, so that the process that only hands tests to workers starts without it.
"""

from __future__ import annotations

import gc
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tfbig.engine import machine_rates

gc.disable()  # until all tests are collected: hardly any of the objects that this makes is garbage
settings.register_profile("tfbig", derandomize=True, deadline=None)
settings.load_profile("tfbig")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--update-plans`, for `tests/plan/test_golden_plans.py`."""
    parser.addoption(
        "--update-plans", action="store_true", help="write the files of golden plans again"
    )


def pytest_collection_finish() -> None:
    """Collect garbage less often, and not among modules and tests: it takes a tenth of the time of some tests."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 20)
    gc.enable()


def pytest_runtest_logfinish() -> None:
    """After every two million new objects, collect garbage, and never look at what is left again."""
    if gc.get_count()[2] >= 10:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def _independent_of_order() -> Iterator[None]:
    """Set seeds, and reset the policy, layer names and rules."""
    import keras

    from tfbig.network.rules.registry import RULES

    rules = dict(RULES)
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy("float32")
    yield
    keras.config.set_dtype_policy("float32")
    RULES.clear()
    RULES.update(rules)


@pytest.fixture(autouse=True)
def _small_images_stream(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stream small images too, which would run in plain Keras; but not in tests of that, marked `plain`."""
    from tfbig.streaming import settings

    if request.node.get_closest_marker("plain") is None:
        monkeypatch.setattr(settings.Settings, "_plain_bytes", lambda self, host: 0)


@pytest.fixture(autouse=True)
def _same_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan for the kernels of oneDNN, which TensorFlow does not use on every processor."""
    from tfbig.streaming import program_cache

    monkeypatch.setattr(program_cache, "fills_matrices", lambda devices: False)


@pytest.fixture
def float64() -> Iterator[None]:
    """Make float64 the default for layers, losses and optimisers."""
    import keras

    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx("float32")


@pytest.fixture(autouse=True)
def measured_rates(monkeypatch: pytest.MonkeyPatch) -> Callable[..., machine_rates.Rates]:
    """Fix the rates of the machine, so that plans are reproducible; return the function that measures them."""
    from tfbig.engine import machine_rates

    measure = machine_rates.measure
    monkeypatch.setattr(machine_rates, "measure", lambda *_: machine_rates.Rates())
    monkeypatch.setattr(machine_rates, "_known", {})
    monkeypatch.setattr(machine_rates, "_saved", dict)
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)  # no cache is written
    return measure


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run the tests of a file in one worker, and all of `tests/cli`, so that fixtures are made once."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "tests/cli" if nodeid.startswith("tests/cli/") else super()._split_scope(nodeid)

    return Scheduling(config, log)

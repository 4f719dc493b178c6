"""What the tests share: one hypothesis profile, integers that sum exactly, gradients, how to compare, small slides."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tifffile
from hypothesis import settings

from tfbig.engine import machine_rates
from tfbig.network.rules.registry import RULES

FLOAT64 = 1e-10
"""What the order of summation may change in float64, relative to the largest number."""

settings.register_profile("tfbig", derandomize=True, deadline=None)
settings.load_profile("tfbig")


@pytest.fixture(autouse=True)
def _alike_in_any_order() -> Iterator[None]:
    """Seeds, and no policy, layer names or rules left by another test."""
    known = dict(RULES)
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy("float32")
    yield
    keras.config.set_dtype_policy("float32")
    RULES.clear()
    RULES.update(known)


def integers(shape: Sequence[int], dtype: str = "float32", seed: int = 0, top: int = 3) -> Any:
    """Numbers of {-top, ..., top}: sums and products of a few thousand are exact in float32."""
    return np.random.default_rng(seed).integers(-top, top + 1, tuple(shape)).astype(dtype)


def integer_weights(layer: Any, top: int = 3) -> list[np.ndarray]:
    """Exact weights for a layer or model; variances are positive."""
    weights = [integers(w.shape, "float64", seed, top) for seed, w in enumerate(layer.weights)]
    return [
        abs(w) + 1 if "variance" in v.path else w
        for v, w in zip(layer.weights, weights, strict=True)
    ]


def gradients(
    function: Callable[..., Any], inputs: Any, variables: Sequence[Any], cotangents: Any = None
) -> tuple[Any, Any, Any]:
    """Outputs, and the gradients of `sum(cotangents * outputs)` for inputs and Keras variables."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = function(inputs)
    values = [v._value for v in variables]
    return outputs, *tape.gradient(outputs, (inputs, values), cotangents)


def assert_same(actual: Any, expected: Any, rtol: float = 0.0) -> None:
    """Structures are equal: bitwise, or to `rtol` of the largest number (at least 1).

    Not of each number: the rounding of a sum is relative to its terms, which are of order 1 in these tests, and
    what they add up to may be close to zero.
    """
    tf.nest.assert_same_structure(actual, expected)
    pairs = zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True)
    for position, (a, e) in enumerate(pairs):
        a, e = np.asarray(a), np.asarray(e)
        assert a.dtype == e.dtype, f"item {position}: {a.dtype}, expected {e.dtype}"
        if rtol == 0:
            np.testing.assert_array_equal(a, e, err_msg=f"item {position}", strict=True)
        else:
            assert a.shape == e.shape, f"item {position}: {a.shape}, expected {e.shape}"
            scale = max(float(np.abs(e).max(initial=0)), 1.0)
            error = np.abs(a.astype("float64") - e.astype("float64")).max(initial=0) / scale
            assert error <= rtol, f"item {position}: differs by {error:.1e} of {scale:.1e}"


def tissue(seed: int) -> np.ndarray:
    """A white slide `[256, 384, 3]` with a dark square of tissue."""
    random = np.random.default_rng(seed)
    image = random.integers(236, 256, (256, 384, 3)).astype(np.uint8)
    image[60:200, 80:300] = random.integers(90, 170, (140, 220, 3))
    return image


def write_slide(path: Path, seed: int) -> None:
    """`tissue` as a tiled TIFF."""
    path.parent.mkdir(exist_ok=True)
    tifffile.imwrite(path, tissue(seed), photometric="rgb", tile=(128, 128))


class History(keras.callbacks.Callback):
    """A row for each epoch, which a checkpoint keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, Any]] = []

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.rows.append({"epoch": epoch, **(logs or {})})

    def remembered(self) -> list[dict[str, Any]]:
        return self.rows

    def remember(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def written(self) -> None:
        pass


@pytest.fixture
def float64() -> Iterator[None]:
    """Layers, losses and optimisers of float64."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx("float32")


@pytest.fixture(autouse=True)
def measured_rates(monkeypatch: pytest.MonkeyPatch) -> Callable[..., machine_rates.Rates]:
    """Plans are those of one machine, whatever runs the tests; gives what measures this one."""
    measure = machine_rates.measure
    monkeypatch.setattr(machine_rates, "measure", lambda *_: machine_rates.Rates())
    monkeypatch.setattr(machine_rates, "_known", {})
    monkeypatch.setattr(machine_rates, "_saved", dict)
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)  # nothing is written
    return measure

"""The comparisons notice a rule that loses a row, a count or a channel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from layer_cases import CASES
from layer_paths import check

from tfbig.geometry.windows import Interval, Resize, Transposed, Window
from tfbig.network.rules.call import Sum
from tfbig.network.rules.normalisation import MomentsOf
from tfbig.ops import kernels

pytestmark = pytest.mark.slow


def _without_a_row(needs: Callable[..., Interval]) -> Callable[..., Interval]:
    """Drop the last row of what a window needs, where it needs several."""

    def shorter(self: Any, rows: Interval, size: int) -> Interval:
        start, stop = needs(self, rows, size)
        return Interval(start, stop - 1) if (stop - start).min() > 1 else Interval(start, stop)

    return shorter


def _with_another_count(finalize: Callable[..., Any]) -> Callable[..., Any]:
    """Count one pixel more than there are."""
    return lambda self, partial, pixels: finalize(self, partial, pixels + 1)


def _without_a_channel(function: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Leave out what the last channel holds."""

    def emptied(*arguments: Any) -> tf.Tensor:
        y = function(*arguments)
        return tf.concat([y[..., :-1], tf.zeros_like(y[..., -1:])], -1)

    return emptied


MUTATIONS: dict[str, tuple[Any, str, Callable[[Any], Any], str]] = {
    "row of a window": (Window, "needs", _without_a_row, "layers.Conv2D(filters=5, kernel_size=3)"),
    "row of a transposed window": (
        Transposed,
        "needs",
        _without_a_row,
        "layers.Conv2DTranspose(filters=3, kernel_size=4, strides=2, padding='same', use_bias=False)",
    ),
    "row of an interpolation": (
        Resize,
        "needs",
        _without_a_row,
        "layers.UpSampling2D(size=2, interpolation='bilinear')",
    ),
    "pixels of a mean": (Sum, "finalize", _with_another_count, "layers.GlobalAveragePooling2D()"),
    "pixels of statistics": (
        MomentsOf,
        "times",
        lambda _: lambda self, partial, copies: partial,
        "layers.BatchNormalization(momentum=0.75)",
    ),
    "taps of a window": (
        kernels,
        "_real_taps",
        lambda taps: lambda *arguments: taps(*arguments) + 1,
        "layers.AveragePooling2D(pool_size=3, strides=2, padding='same')",
    ),
    "channel of a convolution": (
        kernels,
        "convolution",
        _without_a_channel,
        "layers.Conv2D(filters=5, kernel_size=3)",
    ),
    "channel of a depthwise convolution": (
        kernels,
        "depthwise_convolution",
        _without_a_channel,
        "layers.DepthwiseConv2D(kernel_size=3, padding='same')",
    ),
    "channel of a transposed convolution": (
        kernels,
        "transposed_convolution",
        _without_a_channel,
        "layers.Conv2DTranspose(filters=3, kernel_size=2, strides=2)",
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_wrong_rule_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    owner, attribute, mutate, of = MUTATIONS[name]
    case = next(c for c in CASES if c.name == of and c.spatial == 2)
    way = "background" if name == "pixels of statistics" else "strips"
    check(case, way, ["call in training"], tmp_path)
    monkeypatch.setattr(owner, attribute, mutate(getattr(owner, attribute)))
    with pytest.raises(Exception, match=r"differs by|shape|incompatible|must be|expected"):
        check(case, way, ["call in training"], tmp_path)

"""Layouts for data, and layouts while tracing."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf
from graphs import make_planner

import tfbig
from tfbig.engine.layout_choice import LayoutChoice
from tfbig.network import keras_reader


def network() -> keras.Model:
    image = keras.Input((None, None, 2), name="image")
    x = keras.layers.Conv2D(3, 3, padding="same")(image)
    x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    return keras.Model(image, keras.layers.Conv2D(1, 3, padding="same")(x))


def choice_of(model: keras.Model, **options: Any) -> tuple[LayoutChoice, int]:
    graph = keras_reader.read(model, True)
    options = {"device": 2**28, "strip_rows": 3, **options}
    return LayoutChoice(make_planner(graph, **options)), graph.inputs[0]


def test_layout_is_reused_for_other_sizes() -> None:
    choice, source = choice_of(network())
    first = choice.for_shapes({source: (2, 11, 6, 2)})
    assert choice.for_shapes({source: (2, 14, 6, 2)}) is first


def test_forced_layout_ends_with_its_context() -> None:
    choice, source = choice_of(network())
    layout = choice.for_shapes({source: (2, 11, 6, 2)})
    with choice.using(layout):
        assert choice.forced is layout
    assert choice.forced is None


def test_budget_too_small_for_a_row() -> None:
    choice, source = choice_of(network(), device=100, strip_rows=None)
    with pytest.raises(tfbig.BudgetError, match="Raise `device`"):
        choice.for_shapes({source: (2, 11, 6, 2)})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "kept"),
    [([2, 16, 16, 2], True), ([None, 16, 16, 2], False), ([2, None, 16, 2], False), ([2], False)],
    ids=["all known", "batch unknown", "rows unknown", "handles"],
)
def test_images_stay_on_the_device_only_if_sizes_are_known_while_tracing(
    shape: list[int | None], kept: bool
) -> None:
    choice, source = choice_of(network(), strip_rows=None, keeps=True)
    layouts = []

    @tf.function(
        input_signature=[tf.TensorSpec(shape, tf.string if len(shape) == 1 else tf.float32)]
    )
    def trace(image: tf.Tensor) -> None:
        layouts.append(choice.while_tracing({source: image}))

    trace.get_concrete_function()
    assert bool(layouts[0].kept) is kept

"""Programs are rebuilt after `compile`, a change of layers or a new kind of data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same, integers
from keras import layers
from streamed_pairs import (
    LOSS,
    both,
    classifier,
    data,
    images,
    photographs,
    same_logs,
    scaled,
    segmenter,
    slow,
)

import tfbig
from tfbig.network import loss_reductions
from tfbig.plan import cut_search, prepared_graph, search
from tfbig.streaming.program_cache import fills_matrices
from tfbig.system import tensorflow_internals


@pytest.mark.parametrize("shape", [(7, 6, 2), (1, 7, 6, 3), (1, None, 6, 2)])
def test_plan_needs_a_complete_shape(shape: Any) -> None:
    with pytest.raises(
        ValueError, match=r"expected the shape \(N, rows, ..., C\) .* C = 2, received"
    ):
        both(segmenter)[0].plan(shape)


@pytest.mark.slow
def test_compile_between_fits(float64: None) -> None:
    """The last `compile` sets loss, metrics and optimiser, even if their names did not change."""
    x, y = data(segmenter, 4)
    settings: list[Any] = [
        (keras.optimizers.SGD(0.5), keras.losses.Huber(0.4), ["mae"]),
        (keras.optimizers.SGD(0.1), keras.losses.Huber(0.1), ["mae", "accuracy"]),
    ]
    pair = both(segmenter)
    for optimizer, loss, metrics in settings:

        def run(model: Any, o: Any = optimizer, loss: Any = loss, m: Any = metrics) -> Any:
            model.compile(type(o).from_config(o.get_config()), loss, metrics=m)
            return model.fit(x, y, batch_size=2, shuffle=False, verbose=0).history

        same_logs(pair, run)


def test_compile_after_layers_changed(float64: None) -> None:
    normalise = layers.Normalization(axis=-1)
    inputs = keras.Input((None, None, 2))
    model = keras.Model(inputs, layers.Conv2D(1, 3)(normalise(inputs)))
    big = tfbig.stream(model, strip_rows=2)
    big.predict(images(2), verbose=0)
    normalise.adapt(5 * images(2) + 3)
    big.compile("sgd", "mse")
    assert_same(big.predict(images(2), verbose=0), model(images(2)), FLOAT64)


@pytest.mark.slow
@pytest.mark.parametrize("build", [segmenter, slow(classifier)])
def test_freeze_layers_between_fits(build: Any, float64: None) -> None:
    """Layers may be frozen after `stream` and between fits; frozen statistics are used but not updated."""
    x, y = data(build, 4)
    pair = both(build)
    for frozen in (["first", "norm"], []):

        def run(model: Any, frozen: Any = frozen) -> dict[str, Any]:
            for layer in getattr(model, "twin", model).layers:
                layer.trainable = layer.name not in frozen
            model.compile(keras.optimizers.SGD(0.1), LOSS[build])
            return model.fit(x, y, batch_size=2, shuffle=False, verbose=0).history

        same_logs(pair, run)
        assert len(pair[0].trainable_variables) == len(pair[1].trainable_variables)


def test_freeze_layers_in_custom_loop(float64: None) -> None:
    pair, x = both(segmenter), images(2)
    for trainable in (True, False, True):
        for model in pair:
            model.get_layer("norm").trainable = trainable
        assert_same(*(np.asarray(m(x, training=True)) for m in pair), FLOAT64)
        assert_same(pair[0].get_weights(), pair[1].get_weights(), FLOAT64)


def test_jit_compile_false_disables_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    """`jit_compile=False` turns XLA off as for a plain model; by default losses of large images are compiled."""
    compiled: list[Any] = []
    monkeypatch.setattr(loss_reductions, "XLA_NUMBERS", 1)
    monkeypatch.setattr(
        loss_reductions, "_compiled", lambda f: compiled.append(f) or (lambda s, *t: f(*t))
    )
    big, _ = both(segmenter)
    x, y = np.ones((1, 8, 8, 2), "float32"), np.ones((1, 8, 8, 1), "float32")
    results = []
    for options in ({"jit_compile": False}, {}):
        big.compile(keras.optimizers.SGD(0.0), "mse", **options)
        results.append((float(big.train_on_batch(x, y)), len(compiled)))
    (off, none), (on, one) = results
    assert (none, one) == (0, 1)
    assert off == on


def test_only_kernels_of_the_cpu_fill_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    for onednn in (True, False):
        monkeypatch.setattr(tensorflow_internals, "uses_onednn", lambda onednn=onednn: onednn)
        assert fills_matrices(()) is fills_matrices(("/CPU:0",)) is not onednn
        assert not fills_matrices(("/GPU:0",))


@pytest.mark.slow
def test_images_of_different_sizes_trace_once() -> None:
    traces = []

    def counted(y_true: Any, y_pred: Any) -> Any:
        if not tf.executing_eagerly():  # when it is tried on a small image
            traces.append(1)
        return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)

    def images() -> Iterator[Any]:
        for side in (5, 8, 7, 6):
            shape = (1, side, 13 - side)
            yield integers((*shape, 2), seed=side), integers((*shape, 1), seed=side)

    specs = tuple(tf.TensorSpec([1, None, None, c]) for c in (2, 1))
    dataset = tf.data.Dataset.from_generator(images, output_signature=specs).repeat()
    logs = []
    for model in both(segmenter):
        traces.clear()
        model.compile("sgd", counted)
        logs.append(model.fit(dataset, epochs=2, steps_per_epoch=4, shuffle=False, verbose=0))
        if not logs[1:]:
            streamed = len(traces)
            model.evaluate(dataset, steps=4, verbose=0)
    assert streamed == 1
    # float32: sums of up to 64 pixels in eight steps
    assert logs[0].history["loss"] == pytest.approx(logs[1].history["loss"], rel=8 * 64 * 2**-24)


def test_plan_and_step_search_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """`plan` twice is one plan; a step on images behind handles finds its cut points, whatever its metrics are."""
    searches: list[str] = []

    def counted(name: str, function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            searches.append(name)
            return function(*arguments, **options)

        return call

    monkeypatch.setattr(prepared_graph, "choose_cuts", counted("cuts", cut_search.choose))
    monkeypatch.setattr(search, "fastest", counted("plan", search.fastest))
    model = tfbig.stream(scaled(), tfbig.Budget(device="40KB"))
    model.compile("sgd", "binary_crossentropy", metrics=["accuracy"])
    plan = model.plan((2, 11, 9, 2))
    assert model.plan((2, 11, 9, 2)) is plan
    assert sorted(searches) == ["cuts", "plan"]
    x, y = ([tfbig.open(image) for image in batch] for batch in photographs(2))
    handles = [tf.constant([source.handle for source in each]) for each in (x, y)]
    model.train_on_batch(*handles)
    assert sorted(searches) == ["cuts", "plan", "plan"]  # the plan of a step runs its own metrics
    assert model.plan((2, 11, 9, 2)) is plan
    model.twin.trainable = False
    assert model.plan((2, 11, 9, 2)) is not plan
    searches.clear()
    model.twin.trainable = True
    model.compile("sgd", "mse")
    changed = model.plan((2, 11, 9, 2))
    assert changed is not plan
    assert "plan" in searches
    assert changed.projected == plan.projected


def test_plan_after_a_changed_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stride that is changed before `compile` is another graph, for which cut points are searched."""
    model = tfbig.stream(segmenter(), tfbig.Budget(device="40KB"))
    model.compile("sgd", "mse")
    plan = model.plan((1, 32, 24, 2))
    layer = model.get_layer("first")
    layer.dilation_rate = (3, 3)
    model.compile("sgd", "mse")
    assert model.plan((1, 32, 24, 2)).costs != plan.costs

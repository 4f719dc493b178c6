"""Phase layout against plain layers: bitwise on integers, of which float32 sums are exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import layers

from tfbig.engine import keras_variables
from tfbig.engine.program import Program
from tfbig.geometry.windows import Interval, Transposed, Window, partition
from tfbig.network import keras_reader, losses, phase_layout
from tfbig.network.graph import Graph
from tfbig.network.phase_layout import Folding
from tfbig.ops.kernels import Rows, Strip
from tfbig.plan.planner import Planner

EXACT = 2**24
"""Integers up to here are float32 numbers: sums whose terms' sizes add up to less are exact in any order."""


def integers(seed: int, shape: tuple[int, ...], largest: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(-largest, largest + 1, shape).astype(np.float32)


# --------------------------------------------------------------------------------------- layout


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "float32", "float64", "bfloat16"])
@pytest.mark.parametrize("factor", [3, 4, 8])
@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("width", [1, 8, 13, 24])
def test_fold_is_space_to_depth(dtype: str, factor: int, channels: int, width: int) -> None:
    """Of an image padded with zeros on the right; and `unfold` undoes it."""
    numbers = np.random.default_rng(0).integers(-100, 100, [2, 3 * factor, width, channels])
    x = tf.cast(numbers, dtype)
    padded = tf.pad(x, [(0, 0), (0, 0), (0, -width % factor), (0, 0)])
    folded = phase_layout.fold(x, factor)
    assert folded.dtype == x.dtype
    expected = tf.nn.space_to_depth(tf.cast(padded, tf.float32), factor)  # exact below 256
    np.testing.assert_array_equal(tf.cast(folded, tf.float32), expected)
    np.testing.assert_array_equal(phase_layout.unfold(folded, factor), padded)


@pytest.mark.parametrize("height", range(1, 9))
def test_fold_of_the_last_strip_adds_the_missing_rows(height: int) -> None:
    x = tf.constant(integers(1, (1, height, 6, 1), 100))
    missing = -height % 4
    rows = Rows(tf.constant(0), tf.constant(height), 0, tf.constant(missing), height)
    strip = Strip(0, 1, 1, (rows,))
    padded = tf.pad(x, [(0, 0), (0, missing), (0, 2), (0, 0)])
    np.testing.assert_array_equal(phase_layout.fold(x, 4, strip), tf.nn.space_to_depth(padded, 4))


@given(st.integers(2, 9), st.integers(1, 50))
def test_an_output_row_of_a_folding_is_factor_input_rows(factor: int, size: int) -> None:
    axis = Folding(factor)
    blocks = [range(a, a + factor) for a in range(0, size, factor)]
    assert axis.extent(size) == len(blocks)
    for a in range(len(blocks)):
        for b in range(a, len(blocks)):
            found = axis.needs(Interval(a, b + 1), size)
            assert found == (blocks[a].start, blocks[b].stop)


# ------------------------------------------------------------------------- layers, strip by strip


def by_strips(
    function: Callable[[tf.Tensor, Strip], tf.Tensor], x: tf.Tensor, axis: Window, num_strips: int
) -> tf.Tensor:
    """Runs a strip function over rows of `x` with the rows and padding that its axis asks for."""
    size = x.shape[1]
    extent = axis.extent(size)
    made = []
    for index in range(min(num_strips, extent)):
        own = partition(extent, min(num_strips, extent), index)
        wanted = axis.needs(own, size)
        inside = wanted.clip(size)
        before, after = inside.start - wanted.start, wanted.stop - inside.stop
        rows = Rows(*inside, before, after, size)
        made.append(function(x[:, slice(*inside)], Strip(*own, extent, (rows, None))))
    return tf.concat(made, 1)


def fold_whole(x: tf.Tensor, factor: int) -> tf.Tensor:
    return phase_layout.fold(tf.pad(x, [(0, 0), (0, -x.shape[1] % factor), (0, 0), (0, 0)]), factor)


def gradients(function: Callable[..., tf.Tensor], *tensors: np.ndarray) -> list[tf.Tensor]:
    """Value, and gradients under integer cotangents."""
    sources = [tf.constant(t) for t in tensors]
    with tf.GradientTape() as tape:
        tape.watch(sources)
        y = function(*sources)
    cotangent = integers(9, tuple(y.shape))
    terms = np.abs(cotangent).sum() * max(np.abs(t).max() for t in tensors)
    assert terms < EXACT
    return [y, *tape.gradient(y, sources, tf.constant(cotangent))]


def assert_bitwise(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, int, int, tuple[int, int], int, int]:
    """Stride, kernel rows and columns from the stride to three times it, size, filters, strips."""
    stride = draw(st.integers(4, 8))
    kernel = st.integers(stride, 3 * stride)
    size = draw(st.tuples(st.integers(1, 4 * stride), st.integers(1, 3 * stride)))
    return (
        stride,
        draw(kernel),
        draw(kernel),
        size,
        draw(st.integers(1, 3)),
        draw(st.integers(1, 4)),
    )


@given(cases(), st.integers(1, 3))
@settings(deadline=None, max_examples=60)
def test_strided_convolution(case: Any, channels: int) -> None:
    stride, high, wide, size, filters, num_strips = case
    kernel = integers(1, (high, wide, channels, filters))
    axes = tuple(Window(k, stride, padding="same") for k in (high, wide))
    form = phase_layout.strided(kernel, axes, bias=True)
    assert (form.factor, form.side) == (stride, "input")
    assert all(
        a.extent(-(-n // stride)) == -(-n // stride) for a, n in zip(form.axes, size, strict=True)
    )

    def folded(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
        inputs, weights = [tf.constant(size)], [kernel, bias]
        return by_strips(
            lambda rows, strip: form.function([rows, *inputs], weights, strip),
            fold_whole(x, stride),
            form.axes[0],
            num_strips,
        )

    def plain(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
        return keras.ops.conv(x, kernel, stride, "same") + bias

    tensors = integers(2, (2, *size, channels)), kernel, integers(3, (filters,))
    assert_bitwise(gradients(folded, *tensors), gradients(plain, *tensors))


@given(cases(), st.integers(1, 2))
@settings(deadline=None, max_examples=60)
def test_transposed_convolution(case: Any, channels: int) -> None:
    stride, high, wide, size, filters, num_strips = case
    size = tuple(-(-n // 4) for n in size)
    kernel = integers(1, (high, wide, channels, filters))
    axes = tuple(Transposed(k, stride, padding="same") for k in (high, wide))
    form = phase_layout.transposed(kernel, axes, bias=True)
    assert (form.factor, form.side) == (stride, "output")
    assert all(a.extent(n) == n for a, n in zip(form.axes, size, strict=True))

    def folded(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
        y = by_strips(
            lambda rows, strip: form.function([rows], [kernel, bias], strip),
            x,
            form.axes[0],
            num_strips,
        )
        return phase_layout.unfold(y, stride)

    def plain(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
        return keras.ops.conv_transpose(x, kernel, stride, "same") + bias

    tensors = integers(2, (2, *size, filters)), kernel, integers(3, (channels,))
    assert_bitwise(gradients(folded, *tensors), gradients(plain, *tensors))


@pytest.mark.parametrize("bias", [True, False])
def test_without_a_bias_there_is_none(bias: bool) -> None:
    kernel, weights = integers(1, (8, 8, 1, 2)), [tf.constant([5.0, 7.0])]
    rows = Rows(0, 3, 1, 1, 3)
    window = Window(8, 4, padding="same")
    form = phase_layout.strided(kernel, (window, window), bias)
    inputs = [tf.zeros([1, 3, 3, 16]), tf.constant([12, 12])]
    y = form.function(inputs, [tf.constant(kernel), *weights[:bias]], Strip(0, 3, 3, (rows, None)))
    np.testing.assert_array_equal(y[0, 0, 0], [5, 7] if bias else [0, 0])


@pytest.mark.parametrize("channels", [1, 64])
def test_kernel_gradient_from_either_side(channels: int) -> None:
    """Few channels in or few channels out: shifted copies of the thin side, the same numbers."""
    filters = 65 - channels
    window = Window(3, padding=(1, 1))
    strip = Strip(0, 4, 4, (Rows(0, 4, 1, 1, 4),))

    def thin(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        return phase_layout.thin_convolution(x, kernel, (window, window), strip)

    def plain(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        return keras.ops.conv(x, kernel, 1, "same")

    tensors = integers(1, (1, 4, 5, channels)), integers(2, (3, 3, channels, filters))
    assert_bitwise(gradients(thin, *tensors), gradients(plain, *tensors))


# --------------------------------------------------------------------------------- whole programs


def build(model: keras.Model, loss: Any = None, dtypes: Any = ("float32", "float32"), **how: Any):
    """A graph with its loss after `rewrite`, as `tfbig.stream` makes it for a step of `fit`."""
    graph = keras_reader.read(model, True, [dtypes[0]])
    (prediction,) = graph.outputs
    known = graph.values[prediction]
    target = graph.input("labels", True, known.channels, dtypes[1])
    loss = loss or keras.losses.MeanSquaredError()
    value = losses.add(graph, prediction, target, loss, **how)
    graph.outputs = [losses.total(graph, [value])]
    phase_layout.rewrite(graph)
    return graph


def folds(graph: Graph) -> list[str]:
    """Names of what a graph folds."""
    return [n.name for n in graph.nodes if n.name.endswith("/fold")]


def set_integers(model: keras.Model) -> None:
    for seed, weight in enumerate(model.weights):
        weight.assign(integers(seed, tuple(weight.shape)))


def run(graph: Graph, strip_rows: int, x: np.ndarray, y: np.ndarray) -> tuple[Any, list[Any]]:
    """Loss and gradients, in the order of `graph.weights`."""
    program = Program(graph, Planner(graph, 10**12, strip_rows=strip_rows))
    inputs = dict(zip(graph.inputs, (tf.constant(x), tf.constant(y)), strict=True))
    results, found = program.loss_and_gradients(inputs, keras_variables.weights(program))
    return results[graph.outputs[0]], found


def plain_step(model: keras.Model, x: np.ndarray, y: np.ndarray, filters: int) -> Any:
    """The sum over pixels of the mean over channels of squared errors, and its gradients by weight."""
    variables = model.trainable_variables
    with tf.GradientTape() as tape:
        prediction = model(tf.cast(x, tf.float32), training=True)
        error = prediction - tf.cast(y, tf.float32)
        loss = tf.reduce_sum(error * error) / filters
    assert float(tf.reduce_sum(tf.cast(error, tf.float64) ** 2)) < EXACT
    found = tape.gradient(loss, [v._value for v in variables])
    return loss, {id(v): g for v, g in zip(variables, found, strict=True)}


def assert_step_is_bitwise(
    model: keras.Model, size: tuple[int, int], strip_rows: int, dtype: str = "float32"
) -> Graph:
    """Weighted by the number of pixels, a mean is a sum, of integers here."""
    set_integers(model)
    rng = np.random.default_rng(5)
    x = rng.integers(0, 3, (2, *size, model.input_shape[-1])).astype(dtype)
    shape = model(tf.cast(x, tf.float32)).shape
    y = rng.integers(0, 3, tuple(shape)).astype(dtype)
    graph = build(model, dtypes=(dtype, dtype), weight=float(np.prod(shape[:3])))
    loss, found = run(graph, strip_rows, x, y)
    expected, by_weight = plain_step(model, x, y, shape[3])
    assert float(loss) == float(expected)
    assert_bitwise(found, [by_weight[id(w)] for w in graph.weights])
    return graph


def image(channels: int = 1) -> keras.KerasTensor:
    return keras.Input((None, None, channels), name="image")


def down(filters: int, kernel: int, stride: int, **options: Any) -> layers.Layer:
    options = {"padding": "same", "name": "down"} | options
    return layers.Conv2D(filters, kernel, stride, **options)


def up(filters: int, kernel: int, stride: int, **options: Any) -> layers.Layer:
    options = {"padding": "same", "name": "up"} | options
    return layers.Conv2DTranspose(filters, kernel, stride, **options)


@pytest.mark.parametrize(
    ("stride", "kernel", "size", "dtype"),
    [
        (4, 4, (17, 23), "float32"),
        (5, 9, (13, 26), "uint8"),
        (8, 18, (30, 41), "uint8"),
        (7, 21, (29, 15), "float32"),
    ],
)
def test_a_step_with_a_strided_convolution(
    stride: int, kernel: int, size: tuple[int, int], dtype: str
) -> None:
    start = image()
    model = keras.Model(start, down(2, kernel, stride, activation="relu")(start))
    graph = assert_step_is_bitwise(model, size, stride, dtype)
    assert folds(graph) == ["image/fold"]


@pytest.mark.parametrize(
    ("stride", "kernel", "size", "dtype"),
    [
        (4, 11, (5, 7), "float32"),
        (6, 6, (4, 3), "uint8"),
        (8, 18, (3, 5), "uint8"),
    ],
)
def test_a_step_with_a_transposed_convolution(
    stride: int, kernel: int, size: tuple[int, int], dtype: str
) -> None:
    start = image(2)
    model = keras.Model(start, up(1, kernel, stride)(start))
    graph = assert_step_is_bitwise(model, size, 2, dtype)
    assert folds(graph) == ["labels/fold"]


def test_a_step_with_both() -> None:
    start = image()
    x = down(2, 9, 4, activation="relu")(start)
    model = keras.Model(start, up(1, 10, 4)(layers.Conv2D(2, 3, padding="same", name="flat")(x)))
    graph = assert_step_is_bitwise(model, (18, 21), 5)
    assert folds(graph) == ["image/fold", "labels/fold"]


def test_a_folded_prediction_is_the_plain_one() -> None:
    """What metrics see of each strip, unfolded, is the output of the plain model; labels likewise."""
    start = image(2)
    model = keras.Model(start, up(1, 18, 8)(start))
    set_integers(model)
    seen: list[tuple[np.ndarray, np.ndarray]] = []

    def metrics(y_true: tf.Tensor, y_pred: tf.Tensor, share: tf.Tensor) -> None:
        tf.numpy_function(lambda a, b: seen.append((a.copy(), b.copy())), [y_true, y_pred], [])

    x, y = integers(1, (1, 5, 6, 2)), integers(2, (1, 40, 48, 1), 100)
    run(build(model, metrics=metrics), 2, x, y)
    labels, predictions = (tf.concat(parts, 1) for parts in zip(*seen, strict=True))
    np.testing.assert_array_equal(phase_layout.unfold(predictions, 8), model(x))
    np.testing.assert_array_equal(phase_layout.unfold(labels, 8), y)


@pytest.mark.parametrize("strip_rows", [3, 8, 100])
def test_the_output_of_a_strided_convolution(strip_rows: int) -> None:
    start = image()
    model = keras.Model(start, down(3, 11, 5)(start))
    set_integers(model)
    graph = keras_reader.read(model, False)
    phase_layout.rewrite(graph)
    assert folds(graph) == ["image/fold"]
    program = Program(graph, Planner(graph, 10**12, strip_rows=strip_rows, training=False))
    x = tf.constant(integers(1, (2, 33, 28, 1), 3))
    found = program.forward({graph.inputs[0]: x}, keras_variables.weights(program))
    np.testing.assert_array_equal(found[graph.outputs[0]], model(x))


# ---------------------------------------------------------------------------------------- rewrite


def strided_only(layer: layers.Layer, channels: int = 1) -> keras.Model:
    start = image(channels)
    return keras.Model(start, layer(start))


def test_pixelwise_nodes_move_behind_the_folding_of_bytes() -> None:
    start = image()
    x = layers.Rescaling(1 / 255, name="scale")(start)
    graph = build(keras.Model(start, down(1, 8, 4)(x)), dtypes=("uint8", "float32"))
    assert [n.name for n in graph.nodes[:4]] == [
        "image/fold",
        "image/cast",
        "scale",
        "down/convolution",
    ]
    types = [(graph.values[n.output].dtype, graph.values[n.output].channels) for n in graph.nodes]
    assert types[:3] == [("uint8", 16), ("float32", 16), ("float32", 16)]


def test_what_others_read_stays_where_it_is() -> None:
    """The scaled image has a second reader, so it is no longer part of the chain that moves."""
    start = image()
    x = layers.Rescaling(0.5, name="scale")(start)
    both = layers.Add()([up(1, 3, 4)(down(1, 8, 4)(x)), x])
    assert folds(build(keras.Model(start, both))) == []


def inner() -> keras.Model:
    """A strided convolution on an image that the model made itself."""
    start = image()
    x = layers.Conv2D(1, 3, padding="same")(start)
    return keras.Model(start, down(1, 8, 4)(x))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (lambda: strided_only(down(1, 8, 4)), True),
        (lambda: strided_only(down(1, 4, 4)), True),
        (lambda: strided_only(down(1, 4, 4), 16), True),
        (lambda: strided_only(down(1, 8, 3)), False),  # small stride
        (lambda: strided_only(down(1, 4, 4), 17), False),  # 272 folded channels
        (lambda: strided_only(down(1, 3, 4)), False),  # leaves pixels out
        (lambda: strided_only(down(1, (3, 8), 4)), False),
        (lambda: strided_only(down(1, (8, 3), 4)), False),
        (lambda: strided_only(down(1, 8, 4, padding="valid")), False),
        (lambda: strided_only(down(1, 8, (4, 5))), False),
        (lambda: strided_only(down(2, 8, 4, groups=2), 2), False),
        (inner, False),
    ],
)
def test_which_strided_convolutions_are_folded(
    model: Callable[[], keras.Model], expected: bool
) -> None:
    graph = keras_reader.read(model(), False)
    phase_layout.rewrite(graph)
    assert bool(folds(graph)) is expected


@pytest.mark.parametrize(
    ("layer", "loss", "expected"),
    [
        (up(1, 8, 4), keras.losses.MeanSquaredError(), True),
        (up(1, 8, 4, activation="sigmoid"), keras.losses.BinaryCrossentropy(), True),
        (up(1, 8, 4), keras.losses.Dice(), True),
        (up(1, 8, 3), keras.losses.MeanSquaredError(), False),  # small stride
        (up(1, 8, 4, padding="valid"), keras.losses.MeanSquaredError(), False),
        (up(1, 8, 4, output_padding=3), keras.losses.MeanSquaredError(), False),
        (up(2, 8, 4), keras.losses.MeanSquaredError(), False),  # a mean over channels
        (up(2, 8, 4, activation="softmax"), keras.losses.CategoricalCrossentropy(), False),
        (up(1, 8, 4), keras.losses.CategoricalCrossentropy(), False),
        (up(1, 8, 4), keras.losses.CosineSimilarity(), False),
        (up(1, 8, 4), keras.losses.MeanSquaredError(reduction="sum"), False),
    ],
)
def test_which_losses_are_folded(layer: layers.Layer, loss: Any, expected: bool) -> None:
    graph = build(strided_only(layer, 3), loss)
    assert bool(folds(graph)) is expected


def test_a_sparse_categorical_loss_is_not_folded() -> None:
    graph = keras_reader.read(strided_only(up(2, 8, 4, activation="softmax"), 3), True)
    target = graph.input("labels", True, 1, "uint8")
    loss = keras.losses.SparseCategoricalCrossentropy()
    graph.outputs = [losses.add(graph, graph.outputs[0], target, loss)]
    phase_layout.rewrite(graph)
    assert folds(graph) == []


def test_a_prediction_with_another_reader_is_not_folded() -> None:
    start = image(2)
    x = up(1, 8, 4)(start)
    graph = keras_reader.read(keras.Model(start, [x, layers.GlobalMaxPooling2D()(x)]), True)
    prediction, top = graph.outputs
    target = graph.input("labels", True, 1, "float32")
    loss = losses.add(graph, prediction, target, keras.losses.MeanSquaredError())
    graph.outputs = [loss, top]
    phase_layout.rewrite(graph)
    assert folds(graph) == []


def predicted(model: keras.Model, x: tf.Tensor) -> tf.Tensor:
    graph = keras_reader.read(model, False)
    phase_layout.rewrite(graph)
    program = Program(graph, Planner(graph, 10**12, strip_rows=8, training=False))
    results = program.forward({graph.inputs[0]: x}, keras_variables.weights(program))
    return results[graph.outputs[0]]


def test_a_kernel_with_fewer_columns_than_its_stride_gives_the_plain_output() -> None:
    """TensorFlow's `same` never pads less than nothing, which the phase form does not know."""
    model = strided_only(down(1, (8, 3), 4))
    set_integers(model)
    x = tf.constant(integers(1, (1, 16, 16, 1)))
    np.testing.assert_array_equal(predicted(model, x), model(x))


@pytest.mark.parametrize(
    "size",
    [
        (16, 16),
        (17, 18),
    ],
)
def test_pixelwise_nodes_that_change_zero_give_the_plain_output(size: tuple[int, int]) -> None:
    start = image()
    x = layers.Rescaling(0.5, offset=3.0)(start)
    model = keras.Model(start, down(1, 8, 4)(x))
    set_integers(model)
    numbers = tf.constant(integers(1, (1, *size, 1)))
    np.testing.assert_array_equal(predicted(model, numbers), model(numbers))


def test_refuses_labels_of_another_size_than_the_prediction() -> None:
    graph = build(strided_only(up(1, 8, 4), 2))
    image_id, labels_id = graph.inputs
    with pytest.raises(ValueError, match="its inputs have different sizes"):
        graph.extents({image_id: (4, 4), labels_id: (15, 16)})

"""Space-to-depth layout compared with plain layers, bitwise: float32 sums of integers are exact."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from graphs import make_planner
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import layers

from tfbig.engine.bound_program import weights_of
from tfbig.engine.program import Program
from tfbig.geometry.windows import Interval, Transposed, Window, partition
from tfbig.network import keras_reader, losses, phase_layout
from tfbig.network.graph import Graph
from tfbig.network.phase_layout import BlockAxis
from tfbig.ops.kernels import InputRows, Strip

EXACT = 2**24
"""Float32 represents integers up to here, so sums whose absolute terms add up to less are exact in any order."""


def integers(seed: int, shape: tuple[int, ...], largest: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(-largest, largest + 1, shape).astype(np.float32)


def depth_to_space(x: tf.Tensor, factor: int) -> tf.Tensor:
    """Invert `space_to_depth`: `[N, r, W, s * s * C] -> [N, r * s, W * s, C]`."""
    shape, channels = tf.shape(x), x.shape[3] // factor**2
    x = tf.reshape(x, [shape[0], shape[1], shape[2], factor, factor * channels])
    x = tf.transpose(x, [0, 1, 3, 2, 4])
    return tf.reshape(x, [shape[0], shape[1] * factor, shape[2] * factor, channels])


# --------------------------------------------------------------------------------------- layout


@pytest.mark.parametrize(
    "dtype",
    [
        "uint8",
        "float32",
        "bfloat16",
        *(pytest.param(dtype, marks=pytest.mark.slow) for dtype in ("int8", "int32", "float64")),
    ],
)
@pytest.mark.parametrize("factor", [3, 4, 8])
@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("width", [1, 8, 13, 24])
def test_space_to_depth(dtype: str, factor: int, channels: int, width: int) -> None:
    """Equal to TensorFlow's of an image padded with zeros on the right, and inverted by `depth_to_space`."""
    numbers = np.random.default_rng(0).integers(-100, 100, [2, 3 * factor, width, channels])
    x = tf.cast(numbers, dtype)
    padded = tf.pad(x, [(0, 0), (0, 0), (0, -width % factor), (0, 0)])
    blocks = phase_layout.space_to_depth(x, factor)
    assert blocks.dtype == x.dtype
    expected = tf.nn.space_to_depth(tf.cast(padded, tf.float32), factor)  # exact below 256
    np.testing.assert_array_equal(tf.cast(blocks, tf.float32), expected)
    np.testing.assert_array_equal(depth_to_space(blocks, factor), padded)


@pytest.mark.parametrize("height", range(1, 9))
def test_last_strip_is_padded(height: int) -> None:
    x = tf.constant(integers(1, (1, height, 6, 1), 100))
    missing = -height % 4
    rows = InputRows(tf.constant(0), tf.constant(height), 0, tf.constant(missing), height)
    strip = Strip(0, 1, 1, (rows,))
    padded = tf.pad(x, [(0, 0), (0, missing), (0, 2), (0, 0)])
    blocks = phase_layout.space_to_depth(x, 4, strip)
    np.testing.assert_array_equal(blocks, tf.nn.space_to_depth(padded, 4))


def test_block_axis() -> None:
    """An output row is `factor` input rows: all intervals of output rows, for all factors and sizes."""
    for factor, size in product(range(2, 10), range(1, 51)):
        axis = BlockAxis(factor)
        starts = np.arange(0, size, factor)
        assert axis.extent(size) == len(starts)
        first, last = np.triu_indices(len(starts))
        start, stop = axis.needs(Interval(first, last + 1), size)
        np.testing.assert_array_equal(start, starts[first])
        np.testing.assert_array_equal(stop, starts[last] + factor)


# ------------------------------------------------------------------------- layers, strip by strip


def by_strips(
    function: Callable[[tf.Tensor, Strip], tf.Tensor], x: tf.Tensor, axis: Window, num_strips: int
) -> tf.Tensor:
    """Run a strip function over the rows of `x` with the rows and padding that its axis requests."""
    size = x.shape[1]
    extent = axis.extent(size)
    outputs = []
    for index in range(min(num_strips, extent)):
        strip_rows = partition(extent, min(num_strips, extent), index)
        needed = axis.needs(strip_rows, size)
        inside = needed.clip(size)
        before, after = inside.start - needed.start, needed.stop - inside.stop
        rows = InputRows(*inside, before, after, size)
        strip = Strip(*strip_rows, extent, (rows, None))
        outputs.append(function(x[:, slice(*inside)], strip))
    return tf.concat(outputs, 1)


def blocks_of_image(x: tf.Tensor, factor: int) -> tf.Tensor:
    padded = tf.pad(x, [(0, 0), (0, -x.shape[1] % factor), (0, 0), (0, 0)])
    return phase_layout.space_to_depth(padded, factor)


def gradients(function: Callable[..., tf.Tensor], *tensors: np.ndarray) -> list[tf.Tensor]:
    """Return the value, and the gradients for integer cotangents."""
    sources = [tf.constant(t) for t in tensors]
    with tf.GradientTape() as tape:
        tape.watch(sources)
        y = function(*sources)
    cotangent = integers(9, tuple(y.shape))
    terms = np.abs(cotangent).sum() * max(np.abs(t).max() for t in tensors)
    assert terms < EXACT
    return [y, *tape.gradient(y, sources, tf.constant(cotangent))]


def assert_bitwise(actual: list[Any], expected: list[Any]) -> None:
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(a, e)


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, int, int, tuple[int, int], int, int]:
    """Draw stride, kernel rows and columns (one to three times the stride), size, filters, strips."""
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


def check_strided_convolution(case: Any, channels: int) -> None:
    stride, high, wide, size, filters, num_strips = case
    kernel = integers(1, (high, wide, channels, filters))
    axes = tuple(Window(k, stride, padding="same") for k in (high, wide))
    form = phase_layout.strided(kernel, axes, bias=True)
    assert (form.factor, form.side) == (stride, "input")
    assert all(
        a.extent(-(-n // stride)) == -(-n // stride) for a, n in zip(form.axes, size, strict=True)
    )

    def by_blocks(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
        inputs, weights = [tf.constant(size)], [kernel, bias]
        return by_strips(
            lambda rows, strip: form.function([rows, *inputs], weights, strip),
            blocks_of_image(x, stride),
            form.axes[0],
            num_strips,
        )

    def plain(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
        return keras.ops.conv(x, kernel, stride, "same") + bias

    tensors = integers(2, (2, *size, channels)), kernel, integers(3, (filters,))
    assert_bitwise(gradients(by_blocks, *tensors), gradients(plain, *tensors))


def check_transposed_convolution(case: Any, channels: int) -> None:
    stride, high, wide, size, filters, num_strips = case
    size = tuple(-(-n // 4) for n in size)
    kernel = integers(1, (high, wide, channels, filters))
    axes = tuple(Transposed(k, stride, padding="same") for k in (high, wide))
    form = phase_layout.transposed(kernel, axes, bias=True)
    assert (form.factor, form.side) == (stride, "output")
    assert all(a.extent(n) == n for a, n in zip(form.axes, size, strict=True))

    def by_blocks(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
        y = by_strips(
            lambda rows, strip: form.function([rows], [kernel, bias], strip),
            x,
            form.axes[0],
            num_strips,
        )
        return depth_to_space(y, stride)

    def plain(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
        return keras.ops.conv_transpose(x, kernel, stride, "same") + bias

    tensors = integers(2, (2, *size, filters)), kernel, integers(3, (channels,))
    assert_bitwise(gradients(by_blocks, *tensors), gradients(plain, *tensors))


FAST = settings(deadline=None, max_examples=20)
SLOW = settings(deadline=None, max_examples=60)


def test_strided_convolution() -> None:
    FAST(given(cases(), st.integers(1, 3))(check_strided_convolution))()


def test_transposed_convolution() -> None:
    FAST(given(cases(), st.integers(1, 2))(check_transposed_convolution))()


@pytest.mark.slow
def test_convolutions_on_more_examples() -> None:
    SLOW(given(cases(), st.integers(1, 3))(check_strided_convolution))()
    SLOW(given(cases(), st.integers(1, 2))(check_transposed_convolution))()


@pytest.mark.parametrize("bias", [True, False])
def test_bias(bias: bool) -> None:
    kernel, weights = integers(1, (8, 8, 1, 2)), [tf.constant([5.0, 7.0])]
    rows = InputRows(0, 3, 1, 1, 3)
    window = Window(8, 4, padding="same")
    form = phase_layout.strided(kernel, (window, window), bias)
    inputs = [tf.zeros([1, 3, 3, 16]), tf.constant([12, 12])]
    y = form.function(inputs, [tf.constant(kernel), *weights[:bias]], Strip(0, 3, 3, (rows, None)))
    np.testing.assert_array_equal(y[0, 0, 0], [5, 7] if bias else [0, 0])


@pytest.mark.parametrize("channels", [1, 64])
def test_kernel_gradient(channels: int) -> None:
    """Few channels in the input or in the output, whichever is copied and shifted."""
    filters = 65 - channels
    window = Window(3, padding=(1, 1))
    strip = Strip(0, 4, 4, (InputRows(0, 4, 1, 1, 4),))

    def thin(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        return phase_layout.thin_convolution(x, kernel, (window, window), strip)

    def plain(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        return keras.ops.conv(x, kernel, 1, "same")

    tensors = integers(1, (1, 4, 5, channels)), integers(2, (3, 3, channels, filters))
    assert_bitwise(gradients(thin, *tensors), gradients(plain, *tensors))


# --------------------------------------------------------------------------------- whole programs


def build(model: keras.Model, loss: Any = None, dtypes: Any = ("float32", "float32"), **how: Any):
    """Return a graph with its loss after `rewrite`, as `tfbig.stream` builds it for a step of `fit`."""
    graph = keras_reader.read(model, True, [dtypes[0]])
    (prediction,) = graph.outputs
    channels = graph.values[prediction].channels
    target = graph.input("labels", True, channels, dtypes[1])
    loss = loss or keras.losses.MeanSquaredError()
    value = losses.add(graph, prediction, target, loss, **how)
    graph.outputs = [losses.total(graph, [value])]
    phase_layout.rewrite(graph)
    return graph


def blocks_in(graph: Graph) -> list[str]:
    """Return the names of the images that a graph converts to space-to-depth layout."""
    nodes = [n.name.partition("/") for n in graph.nodes]
    return [image for image, _, step in nodes if step == "space_to_depth"]


def set_integers(model: keras.Model) -> None:
    for seed, weight in enumerate(model.weights):
        weight.assign(integers(seed, tuple(weight.shape)))


def run(graph: Graph, strip_rows: int, x: np.ndarray, y: np.ndarray) -> tuple[Any, list[Any]]:
    """Return loss and gradients, in the order of `graph.weights`."""
    program = Program(graph, make_planner(graph, 10**12, strip_rows=strip_rows))
    inputs = dict(zip(graph.inputs, (tf.constant(x), tf.constant(y)), strict=True))
    results, weight_gradients = program.loss_and_gradients(inputs, weights_of(program.graph))
    return results[graph.outputs[0]], weight_gradients


def plain_step(model: keras.Model, x: np.ndarray, y: np.ndarray, filters: int) -> Any:
    """Return the sum over pixels of the mean over channels of squared errors, and its gradients by weight."""
    variables = model.trainable_variables
    with tf.GradientTape() as tape:
        prediction = model(tf.cast(x, tf.float32), training=True)
        error = prediction - tf.cast(y, tf.float32)
        loss = tf.reduce_sum(error * error) / filters
    assert float(tf.reduce_sum(tf.cast(error, tf.float64) ** 2)) < EXACT
    weight_gradients = tape.gradient(loss, [v._value for v in variables])
    return loss, {id(v): g for v, g in zip(variables, weight_gradients, strict=True)}


def assert_step_is_bitwise(
    model: keras.Model, size: tuple[int, int], strip_rows: int, dtype: str = "float32"
) -> Graph:
    """Compare a step: a mean weighted by the number of pixels is a sum, here of integers."""
    set_integers(model)
    rng = np.random.default_rng(5)
    x = rng.integers(0, 3, (2, *size, model.input_shape[-1])).astype(dtype)
    shape = model(tf.cast(x, tf.float32)).shape
    y = rng.integers(0, 3, tuple(shape)).astype(dtype)
    graph = build(model, dtypes=(dtype, dtype), weight=float(np.prod(shape[:3])))
    loss, weight_gradients = run(graph, strip_rows, x, y)
    expected, by_weight = plain_step(model, x, y, shape[3])
    assert float(loss) == float(expected)
    assert_bitwise(weight_gradients, [by_weight[id(w)] for w in graph.weights])
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
        pytest.param(4, 4, (17, 23), "float32", marks=pytest.mark.slow),
        (5, 9, (13, 26), "uint8"),
        pytest.param(8, 18, (30, 41), "uint8", marks=pytest.mark.slow),
        pytest.param(7, 21, (29, 15), "float32", marks=pytest.mark.slow),
    ],
)
def test_step_with_strided_convolution(
    stride: int, kernel: int, size: tuple[int, int], dtype: str
) -> None:
    start = image()
    model = keras.Model(start, down(2, kernel, stride, activation="relu")(start))
    graph = assert_step_is_bitwise(model, size, stride, dtype)
    assert blocks_in(graph) == ["image"]


@pytest.mark.parametrize(
    ("stride", "kernel", "size", "dtype"),
    [
        pytest.param(4, 11, (5, 7), "float32", marks=pytest.mark.slow),
        pytest.param(6, 6, (4, 3), "uint8", marks=pytest.mark.slow),
        pytest.param(8, 18, (3, 5), "uint8", marks=pytest.mark.slow),
    ],
)
def test_step_with_transposed_convolution(
    stride: int, kernel: int, size: tuple[int, int], dtype: str
) -> None:
    start = image(2)
    model = keras.Model(start, up(1, kernel, stride)(start))
    graph = assert_step_is_bitwise(model, size, 2, dtype)
    assert blocks_in(graph) == ["labels"]


def test_step_with_both() -> None:
    start = image()
    x = down(2, 9, 4, activation="relu")(start)
    model = keras.Model(start, up(1, 10, 4)(layers.Conv2D(2, 3, padding="same", name="flat")(x)))
    graph = assert_step_is_bitwise(model, (18, 21), 5)
    assert blocks_in(graph) == ["image", "labels"]


def test_metrics_get_blocks() -> None:
    """Labels and predictions reach metrics in space-to-depth layout, with the values of the plain model."""
    start = image(2)
    model = keras.Model(start, up(1, 18, 8)(start))
    set_integers(model)
    seen: list[tuple[np.ndarray, np.ndarray]] = []

    def metrics(y_true: tf.Tensor, y_pred: tf.Tensor, share: tf.Tensor) -> None:
        tf.numpy_function(lambda a, b: seen.append((a.copy(), b.copy())), [y_true, y_pred], [])

    x, y = integers(1, (1, 5, 6, 2)), integers(2, (1, 40, 48, 1), 100)
    run(build(model, metrics=metrics), 2, x, y)
    labels, predictions = (tf.concat(parts, 1) for parts in zip(*seen, strict=True))
    np.testing.assert_array_equal(depth_to_space(predictions, 8), model(x))
    np.testing.assert_array_equal(depth_to_space(labels, 8), y)


@pytest.mark.parametrize("strip_rows", [3, 8, 100])
def test_output_of_strided_convolution(strip_rows: int) -> None:
    start = image()
    model = keras.Model(start, down(3, 11, 5)(start))
    set_integers(model)
    graph = keras_reader.read(model, False)
    phase_layout.rewrite(graph)
    assert blocks_in(graph) == ["image"]
    program = Program(graph, make_planner(graph, 10**12, strip_rows=strip_rows, training=False))
    x = tf.constant(integers(1, (2, 33, 28, 1), 3))
    results = program.forward({graph.inputs[0]: x}, weights_of(program.graph))
    np.testing.assert_array_equal(results[graph.outputs[0]], model(x))


# ---------------------------------------------------------------------------------------- rewrite


def strided_only(layer: layers.Layer, channels: int = 1) -> keras.Model:
    start = image(channels)
    return keras.Model(start, layer(start))


def test_pixelwise_nodes_move_behind_space_to_depth() -> None:
    start = image()
    x = layers.Rescaling(1 / 255, name="scale")(start)
    graph = build(keras.Model(start, down(1, 8, 4)(x)), dtypes=("uint8", "float32"))
    assert [n.name for n in graph.nodes[:4]] == [
        "image/space_to_depth",
        "image/cast",
        "scale",
        "down/convolution",
    ]
    types = [(graph.values[n.output].dtype, graph.values[n.output].channels) for n in graph.nodes]
    assert types[:3] == [("uint8", 16), ("float32", 16), ("float32", 16)]


def test_node_with_two_readers_does_not_move() -> None:
    """The scaled image has a second reader, so it is not part of the chain that moves."""
    start = image()
    x = layers.Rescaling(0.5, name="scale")(start)
    both = layers.Add()([up(1, 3, 4)(down(1, 8, 4)(x)), x])
    assert blocks_in(build(keras.Model(start, both))) == []


def inner() -> keras.Model:
    """Strided convolution on an inner image of the model."""
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
        (lambda: strided_only(down(1, 4, 4), 17), False),  # 272 channels after space-to-depth
        (lambda: strided_only(down(1, 3, 4)), False),  # does not read every pixel
        (lambda: strided_only(down(1, (3, 8), 4)), False),
        (lambda: strided_only(down(1, (8, 3), 4)), False),
        (lambda: strided_only(down(1, 8, 4, padding="valid")), False),
        (lambda: strided_only(down(1, 8, (4, 5))), False),
        (lambda: strided_only(down(2, 8, 4, groups=2), 2), False),
        (inner, False),
    ],
)
def test_eligible_strided_convolutions(model: Callable[[], keras.Model], expected: bool) -> None:
    graph = keras_reader.read(model(), False)
    phase_layout.rewrite(graph)
    assert bool(blocks_in(graph)) is expected


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
def test_eligible_losses(layer: layers.Layer, loss: Any, expected: bool) -> None:
    graph = build(strided_only(layer, 3), loss)
    assert bool(blocks_in(graph)) is expected


def test_sparse_categorical_loss_is_not_eligible() -> None:
    graph = keras_reader.read(strided_only(up(2, 8, 4, activation="softmax"), 3), True)
    target = graph.input("labels", True, 1, "uint8")
    loss = keras.losses.SparseCategoricalCrossentropy()
    graph.outputs = [losses.add(graph, graph.outputs[0], target, loss)]
    phase_layout.rewrite(graph)
    assert blocks_in(graph) == []


def test_prediction_with_another_reader_is_not_eligible() -> None:
    start = image(2)
    x = up(1, 8, 4)(start)
    graph = keras_reader.read(keras.Model(start, [x, layers.GlobalMaxPooling2D()(x)]), True)
    prediction, top = graph.outputs
    target = graph.input("labels", True, 1, "float32")
    loss = losses.add(graph, prediction, target, keras.losses.MeanSquaredError())
    graph.outputs = [loss, top]
    phase_layout.rewrite(graph)
    assert blocks_in(graph) == []


def predicted(model: keras.Model, x: tf.Tensor) -> tf.Tensor:
    graph = keras_reader.read(model, False)
    phase_layout.rewrite(graph)
    program = Program(graph, make_planner(graph, 10**12, strip_rows=8, training=False))
    results = program.forward({graph.inputs[0]: x}, weights_of(program.graph))
    return results[graph.outputs[0]]


def test_kernel_narrower_than_the_stride() -> None:
    """TensorFlow's `same` never pads a negative amount, which the layout would have to."""
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
def test_pixelwise_nodes_that_change_zero(size: tuple[int, int]) -> None:
    start = image()
    x = layers.Rescaling(0.5, offset=3.0)(start)
    model = keras.Model(start, down(1, 8, 4)(x))
    set_integers(model)
    numbers = tf.constant(integers(1, (1, *size, 1)))
    np.testing.assert_array_equal(predicted(model, numbers), model(numbers))


def test_labels_of_another_size() -> None:
    graph = build(strided_only(up(1, 8, 4), 2))
    image_id, labels_id = graph.inputs
    with pytest.raises(ValueError, match="its inputs have different sizes"):
        graph.extents({image_id: (4, 4), labels_id: (15, 16)})

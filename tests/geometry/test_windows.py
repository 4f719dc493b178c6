"""Input rows of windows equal, and not merely include, those that TensorFlow's layers read from one-hot rows."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from layer_pairs import dilates_transposes

from tfbig.geometry.windows import (
    SAME,
    Interval,
    ReceptiveField,
    Resize,
    Transposed,
    Window,
    partition,
)
from tfbig.network import keras_reader
from tfbig.network.graph import Graph, axes_of

thorough = settings(max_examples=150, deadline=None)

kernels = st.integers(1, 6)
strides = st.integers(1, 5)
dilations = st.integers(1, 3)
lengths = st.integers(1, 16)


def one_hot_rows(size: int) -> tf.Tensor:
    """Return images `[size, size, 1, 1]`; image `i` is one column that is 1 in row `i` and 0 elsewhere."""
    return tf.reshape(tf.eye(size, dtype=tf.float32), [size, size, 1, 1])


def influence(images: tf.Tensor) -> np.ndarray:
    """Return whether input row `i` changes output row `o`, `[inputs, outputs]`."""
    return images.numpy()[:, :, 0, 0] != 0


def subintervals(size: int) -> list[Interval]:
    """Return every non-empty interval of rows."""
    return [Interval(a, b) for a in range(size) for b in range(a + 1, size + 1)]


def hull(rows: set[int]) -> Interval:
    return Interval(min(rows), max(rows) + 1)


# ------------------------------------------------------------------------------------- Interval


@given(st.integers(-20, 20), st.integers(0, 20), st.integers(0, 20))
def test_clip(start: int, size: int, extent: int) -> None:
    interval = Interval(start, start + size)
    inside = interval.clip(extent)
    assert set(range(*inside)) == set(range(*interval)) & set(range(extent))
    assert 0 <= inside.start <= inside.stop <= extent
    assert interval.size == size == len(range(*interval))


@given(st.integers(-9, 9), st.integers(1, 9), st.integers(-9, 9), st.integers(1, 9))
def test_hull(a: int, m: int, b: int, n: int) -> None:
    one, other = Interval(a, a + m), Interval(b, b + n)
    assert one.hull(other) == hull({*range(*one), *range(*other)})


def test_even() -> None:
    intervals = Interval(np.array([0, 3, 6, 9]), np.array([4, 8, 11, 11]))
    assert np.array_equal(intervals.even(11), [[0, 3, 6, 6], [5, 8, 11, 11]])
    of_two_counts = Interval(np.array([[0, 0], [2, 5]]), np.array([[2, 5], [3, 6]]))
    assert np.array_equal(of_two_counts.even(6), [[[0, 0], [2, 1]], [[2, 5], [4, 6]]])


@given(st.integers(0, 300), st.integers(1, 300))
def test_partition(extent: int, num_strips: int) -> None:
    strips = [partition(extent, num_strips, i) for i in range(num_strips)]
    assert [row for strip in strips for row in range(*strip)] == list(range(extent))
    sizes = {strip.size for strip in strips}
    assert sizes <= {extent // num_strips, -(-extent // num_strips)}


# --------------------------------------------------------------------------------------- Window


@st.composite
def windows(draw: st.DrawFn) -> tuple[Window, int]:
    """Draw a window and the size of an image, which may be too small for it."""
    padding = draw(
        st.one_of(
            st.sampled_from(["valid", "same"]), st.tuples(st.integers(-4, 6), st.integers(-4, 6))
        )
    )
    return Window(draw(kernels), draw(strides), draw(dilations), padding), draw(lengths)


def taps(window: Window, size: int) -> list[set[int]]:
    """Return the rows that each output row reads, padding included, by moving the window to the end of the image."""
    before, after = window.pads(size)
    reads = []
    for first in range(-before, size + after, window.stride):
        rows = {first + t * window.dilation for t in range(window.kernel)}
        if max(rows) >= size + after:
            break
        reads.append(rows)
    return reads


def plain(window: Window, size: int) -> np.ndarray:
    """Return the influence `[inputs, outputs]` in TensorFlow's convolution with a kernel of ones."""
    images, padding = one_hot_rows(size), window.padding
    if not isinstance(padding, str):
        before, after = padding
        images = tf.pad(images, [(0, 0), (max(before, 0), max(after, 0)), (0, 0), (0, 0)])
        images = images[:, max(-before, 0) : images.shape[1] - max(-after, 0)]
        padding = "valid"
    kernel = tf.ones([window.kernel, 1, 1, 1])
    dilations = [window.dilation, 1]
    return influence(
        tf.nn.conv2d(images, kernel, [window.stride, 1], padding.upper(), dilations=dilations)
    )


@thorough
@given(windows())
def test_window_reads_rows_of_tensorflow(case: tuple[Window, int]) -> None:
    window, size = case
    if window.extent(size) == 0:  # TensorFlow refuses these
        assert taps(window, size) == []
        return
    expected = plain(window, size)
    assert window.extent(size) == expected.shape[1]
    actual = np.zeros_like(expected)
    for o, rows in enumerate(taps(window, size)):
        actual[[i for i in rows if 0 <= i < size], o] = True
    np.testing.assert_array_equal(actual, expected)


@thorough
@given(windows())
def test_window_needs_hull_of_taps(case: tuple[Window, int]) -> None:
    window, size = case
    reads = taps(window, size)
    assert window.extent(size) == len(reads)
    for rows in subintervals(len(reads)):
        assert window.needs(rows, size) == hull(set().union(*reads[slice(*rows)]))


def test_same_padding_adds_odd_row_after() -> None:
    """Padding depends on the extent: the same window pads differently for other sizes."""
    window = Window(3, 2, padding="same")
    assert [window.pads(size) for size in (5, 6)] == [(1, 1), (0, 1)]
    assert Window(2, 1, padding="same").pads(6) == (0, 1)
    assert Window(1, 3, padding="same").pads(5) == (0, 0)  # never negative


def test_defaults() -> None:
    """The default is a valid window of one row."""
    assert Window() == Window(1, 1, 1, "valid")
    assert Transposed(3) == Transposed(3, 1, 1, "valid", None)
    assert Resize(2) == Resize(2, 1)
    assert ReceptiveField() == ReceptiveField(1, 1, 0)


def test_pixelwise_window() -> None:
    assert SAME.extent(7) == 7
    assert all(SAME.needs(rows, 7) == rows for rows in subintervals(7))


# ----------------------------------------------------------------------------------- Transposed


@st.composite
def transposes(draw: st.DrawFn) -> tuple[Transposed, int]:
    """Draw arguments that `keras.layers.Conv2DTranspose` accepts, and the size of an image."""
    kernel, stride, size = draw(kernels), draw(strides), draw(lengths)
    dilated = stride == 1 and dilates_transposes()  # Keras refuses a stride and a dilation
    dilation = draw(dilations) if dilated else 1
    padding = draw(st.sampled_from(["valid", "same"]))
    added = draw(st.none() | st.integers(0, stride - 1))
    axis = Transposed(kernel, stride, dilation, padding, added)
    if padding == "same" and added is not None:
        assume(axis.span % 2 + added >= 1)  # Keras accepts the others, TensorFlow does not
    return axis, size


def plain_transposed(axis: Transposed, size: int) -> np.ndarray:
    """Return the influence `[inputs, outputs]` in Keras' transposed convolution with a kernel of ones."""
    added = None if axis.output_padding is None else (axis.output_padding, 0)
    return influence(
        keras.ops.conv_transpose(
            one_hot_rows(size),
            tf.ones([axis.kernel, 1, 1, 1]),
            (axis.stride, 1),
            axis.padding,
            added,
            dilation_rate=(axis.dilation, 1),
        )
    )


def reached(axis: Transposed, size: int) -> np.ndarray:
    """Return the influence from the documented equation: `input[i]` adds to `output[i * s - before + t * d]`."""
    influenced = np.zeros([size, axis.extent(size)], bool)
    for i in range(size):
        for t in range(axis.kernel):
            o = i * axis.stride - axis.cuts()[0] + t * axis.dilation
            if 0 <= o < influenced.shape[1]:
                influenced[i, o] = True
    return influenced


@thorough
@given(transposes())
def test_transposed_writes_rows_of_keras(case: tuple[Transposed, int]) -> None:
    axis, size = case
    np.testing.assert_array_equal(reached(axis, size), plain_transposed(axis, size))


@thorough
@given(
    transposes()
    | st.tuples(
        st.builds(
            Transposed, kernels, strides, dilations, st.tuples(st.integers(0, 3), st.integers(0, 3))
        ),
        lengths,
    )
)
def test_transposed_needs_inputs_that_reach_rows(
    case: tuple[Transposed, int],
) -> None:
    axis, size = case
    before = axis.cuts()[0]
    spans = [
        set(range(i * axis.stride - before, i * axis.stride - before + axis.span))
        for i in range(size)
    ]
    for rows in subintervals(max(axis.extent(size), 0)):
        needed = axis.needs(rows, size)
        readers = {i for i, span in enumerate(spans) if span & set(range(*rows))}
        if readers:
            assert needed == hull(readers)
        else:  # rows that no input reaches: any one input row is valid
            assert needed.size == 1
            assert 0 <= needed.start < size


@given(kernels, strides, st.integers(0, 3), st.integers(0, 3), lengths)
def test_transposed_explicit_padding(
    kernel: int, stride: int, before: int, after: int, size: int
) -> None:
    axis = Transposed(kernel, stride, padding=(before, after))
    full = reached(Transposed(kernel, stride, padding=(0, 0)), size)
    assume(before + after <= full.shape[1])
    assert axis.extent(size) == full.shape[1] - before - after
    np.testing.assert_array_equal(reached(axis, size), full[:, before : full.shape[1] - after])


@given(kernels, strides, lengths)
def test_transposed_is_adjoint_of_window(kernel: int, stride: int, size: int) -> None:
    """The influence matrix of a transposed window is the transpose of that of the window, with `same` padding."""
    window = Window(kernel, stride, padding="same")
    matrix = plain(window, size * stride)
    np.testing.assert_array_equal(
        reached(Transposed(kernel, stride, padding="same"), size), matrix.T
    )


# --------------------------------------------------------------------------------------- Resize


@given(st.integers(1, 5), lengths)
def test_resize_covers_rows_of_tensorflow(factor: int, size: int) -> None:
    axis = Resize(factor)
    assert axis.extent(size) == size * factor
    resized = influence(tf.image.resize(one_hot_rows(size), [size * factor, 1], "bilinear"))
    for rows in subintervals(size * factor):
        readers = hull(set(np.flatnonzero(resized[:, slice(*rows)].any(1))))
        needed = axis.needs(rows, size)
        assert needed.start <= readers.start
        assert readers.stop <= needed.stop
        assert needed == needed.clip(size)


@given(st.integers(1, 7), st.integers(1, 3), lengths, st.data())
def test_resize_needs_one_extra_row(
    factor: int, taps_aside: int, size: int, data: st.DataObject
) -> None:
    rows = data.draw(st.sampled_from(subintervals(size * factor)))
    first, last = (
        (row + Fraction(1, 2)) / factor - Fraction(1, 2) for row in (rows.start, rows.stop - 1)
    )
    exact = Interval(floor(first) - taps_aside + 1, floor(last) + taps_aside + 1)
    wider = Interval(exact.start - 1, exact.stop + 1)
    assert Resize(factor, taps_aside).needs(rows, size) == wider.clip(size)


@pytest.mark.parametrize("factor", [2, 3, 5, 7])
def test_resize_covers_float32_rounding(factor: int) -> None:
    """The extra row is enough up to 2**21 input rows.

    The centre is `(o + 0.5) * (1 / factor) - 0.5` in float32: four roundings (of `o + 0.5`, the reciprocal, the
    product, the difference) of half a unit in the last place each, below 2**-24 relative, hence an error below
    `4 * 2**21 * 2**-24 = 0.5` rows, which moves floor and ceil by one row at most.
    """
    size = 2**21
    outputs = np.random.default_rng(factor).integers(0, size * factor, 3000)
    at = (outputs.astype(np.float32) + np.float32(0.5)) * np.float32(1 / factor) - np.float32(0.5)
    moved = 0
    for o, centre in zip(outputs.tolist(), at, strict=True):
        needed = Resize(factor).needs(Interval(o, o + 1), size)
        assert needed.start <= max(floor(centre), 0)
        assert min(ceil(centre), size - 1) < needed.stop
        exact = (o + Fraction(1, 2)) / factor - Fraction(1, 2)
        moved += floor(centre) != floor(exact)
    if factor == 7:
        assert moved  # the extra row is necessary


# ------------------------------------------------------------------------------- receptive field


def deepest_fields(graph: Graph, size: int) -> dict[int, ReceptiveField]:
    """Return the receptive field of every image; the largest one where paths meet."""
    (image,) = graph.inputs
    extents = graph.extents({image: (size, size)})
    fields = {image: ReceptiveField()}
    for node in graph.nodes:
        positions = node.image_positions
        if not positions:
            continue
        candidates = []
        for p in positions:
            axis, source = axes_of(node, p)[0], node.inputs[p]
            assert isinstance(axis, Window)
            candidates.append(fields[source].then(axis, extents[source][0]))
        fields[node.output] = max(candidates, key=lambda f: f.size)
    return fields


@pytest.mark.slow
@pytest.mark.parametrize(
    ("application", "expected"),
    [
        # Araujo, Norris, Sim (2019), table: VGG-16 212, 32, 90; ResNet-50 v1 483, 32, 239. Theirs pads the first
        # pooling with "same", no row before at 224; Keras pads one explicitly, two rows of the image.
        (keras.applications.VGG16, ReceptiveField(212, 32, 90)),
        (keras.applications.ResNet50, ReceptiveField(483, 32, 239 + 2)),
    ],
)
def test_published_receptive_fields(application: type, expected: ReceptiveField) -> None:
    model = application(weights=None, include_top=False, input_shape=(None, None, 3))
    graph = keras_reader.read(model, training=False)
    assert deepest_fields(graph, 224)[graph.outputs[0]] == expected


@given(st.lists(st.tuples(kernels, strides, dilations), min_size=1, max_size=4))
def test_receptive_field_matches_needs(chain: list[tuple[int, int, int]]) -> None:
    """Following `needs` backwards from one output yields the size, and from the next one the stride."""
    layers = [Window(*numbers) for numbers in chain]
    size = 400 + 5 ** len(layers) * 20
    field, sizes = ReceptiveField(), [size]
    for window in layers:
        field = field.then(window, sizes[-1])
        sizes.append(window.extent(sizes[-1]))

    def back(row: int) -> Interval:
        rows = Interval(row, row + 1)
        for window, length in zip(reversed(layers), reversed(sizes[:-1]), strict=True):
            rows = window.needs(rows, length)
        return rows

    assert back(0) == (0, field.size)
    assert back(1) == (field.stride, field.stride + field.size)
    assert field.padding == 0


@given(st.lists(st.tuples(st.sampled_from([1, 3, 5]), strides), min_size=1, max_size=4))
def test_receptive_field_padding(
    chain: list[tuple[int, int]],
) -> None:
    layers = [Window(k, s, padding=(k // 2, k)) for k, s in chain]
    field, size = ReceptiveField(), 64 * 5**4
    sizes = [size]
    for window in layers:
        field = field.then(window, sizes[-1])
        sizes.append(window.extent(sizes[-1]))
    start = 0
    for window, length in zip(reversed(layers), reversed(sizes[:-1]), strict=True):
        start = window.needs(Interval(start, start + 1), length).start
    assert start == -field.padding

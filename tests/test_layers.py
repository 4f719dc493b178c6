"""Every Big layer against its Keras twin: bitwise where sums are exact, else float64 to 1e-10."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import keras
import keras.src.testing as keras_testing
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same, gradients, integer_weights, integers
from hypothesis import Phase, assume, example, given, settings
from hypothesis import strategies as st

from tfbig import layers


@dataclass(frozen=True)
class Row:
    """How a layer is tested.

    Args:
        arguments: what it is made with; `max_elements` comes on top.
        inputs: number of input images.
        exact: gives the twin's bits for integers in float32; otherwise float64 is compared to 1e-10.
        linear: in its input, up to a constant.
    """

    arguments: dict[str, Any] = field(default_factory=dict)
    inputs: int = 1
    exact: bool = True
    linear: bool = False


TABLE: dict[type, Row] = {
    layers.BigConv2D: Row({"filters": 3, "kernel_size": 3, "padding": "same"}, linear=True),
    layers.BigDepthwiseConv2D: Row({"kernel_size": (3, 2), "depth_multiplier": 2}, linear=True),
    layers.BigSeparableConv2D: Row({"filters": 3, "kernel_size": 3}, linear=True),
    layers.BigConv2DTranspose: Row({"filters": 3, "kernel_size": 3, "strides": 2}, linear=True),
    layers.BigDense: Row({"units": 3}, linear=True),
    layers.BigBatchNormalization: Row({"momentum": 0.75}, exact=False, linear=True),
    layers.BigLayerNormalization: Row(exact=False),
    layers.BigGroupNormalization: Row({"groups": 2}, exact=False),
    layers.BigMaxPooling2D: Row({"pool_size": 3, "strides": 2, "padding": "same"}),
    layers.BigAveragePooling2D: Row({"pool_size": 3, "padding": "same"}, exact=False, linear=True),
    layers.BigGlobalAveragePooling2D: Row({"keepdims": True}, exact=False, linear=True),
    layers.BigGlobalMaxPooling2D: Row(),
    layers.BigUpSampling2D: Row({"size": (2, 3)}, linear=True),
    layers.BigZeroPadding2D: Row({"padding": ((1, 2), (0, 3))}, linear=True),
    layers.BigCropping2D: Row({"cropping": ((1, 0), (2, 1))}, linear=True),
    layers.BigActivation: Row({"activation": "tanh"}, exact=False),
    layers.BigReLU: Row({"max_value": 2.0, "negative_slope": 0.5, "threshold": 1.0}),
    layers.BigDropout: Row({"rate": 0.5, "seed": 3}),
    layers.BigAdd: Row(inputs=2, linear=True),
    layers.BigMultiply: Row(inputs=2),
    layers.BigConcatenate: Row(inputs=2, linear=True),
}
EVERY = pytest.mark.parametrize("kind", TABLE, ids=lambda kind: kind.__name__)
IMAGE = (2, 7, 6, 4)


def twin_of(kind: type) -> Any:
    return getattr(keras.layers, kind.__name__.removeprefix("Big"))


def shapes(row: Row, shape: Any = IMAGE) -> Any:
    """What `build` takes: a shape, or one per input."""
    return shape if row.inputs == 1 else [shape] * row.inputs


def images(row: Row, shape: Any, dtype: str = "float32", top: int = 3) -> Any:
    """What the layer takes: integers."""
    found = [tf.constant(integers(shape, dtype, seed, top)) for seed in range(row.inputs)]
    return found[0] if row.inputs == 1 else found


def pair(
    kind: type, row: Row, channels: int = 4, dtype: str | None = None, **more: Any
) -> tuple[Any, Any]:
    """A Big layer and its twin, built for any size, with the same integer weights."""
    dtype = dtype or ("float32" if row.exact else "float64")
    big = kind(**row.arguments, **more, dtype=dtype)
    twin = twin_of(kind)(**row.arguments, dtype=dtype)
    for layer in (big, twin):
        layer.build(shapes(row, (None, None, None, channels)))
    big.set_weights(integer_weights(twin))
    twin.set_weights(big.get_weights())
    return big, twin


def spec(t: tf.Tensor, known: bool) -> tf.TensorSpec:
    """The type of a tensor; batch and size are left out unless known."""
    shape = [*[None] * (len(t.shape) - 1), t.shape[-1]]
    return tf.TensorSpec(t.shape if known else shape, t.dtype)


def compare(
    big: Any,
    twin: Any,
    row: Row,
    sizes: list[tuple[int, int, int]],
    channels: int,
    rtol: float = 0.0,
    **call: Any,
) -> None:
    """Outputs, gradients of inputs and weights, and moving statistics, for images `[N, H, W]`.

    The Big layer is traced once: one size is known then, several are not.
    """
    traces = []

    @tf.function(autograph=False)
    def traced(x: Any, dy: Any) -> Any:
        traces.append(1)
        return gradients(lambda x: big(x, **call), x, big.trainable_variables, dy)

    for n, h, w in sizes:
        x = images(row, (n, h, w, channels), big.compute_dtype)
        shape = twin(x, **call).shape if not twin.non_trainable_variables else (n, h, w, channels)
        dy = tf.constant(integers(shape, big.compute_dtype, seed=9))
        expected = gradients(lambda x: twin(x, **call), x, twin.trainable_variables, dy)
        concrete = traced.get_concrete_function(
            *tf.nest.map_structure(lambda t: spec(t, known=len(sizes) == 1), (x, dy))
        )
        assert_same(concrete(*tf.nest.flatten((x, dy))), expected, rtol)
        assert_same(big.get_weights(), twin.get_weights(), rtol)
    assert len(traces) == 1


# --------------------------------------------------------------------- the surface of the twin


def test_the_table_holds_every_layer() -> None:
    assert list(TABLE) == layers.ALL
    assert len(layers.ALL) == 21


@EVERY
@pytest.mark.filterwarnings(
    "ignore:`shuffle=True` was passed:UserWarning",
    "ignore:The model does not have any trainable weights:UserWarning",
)
def test_passes_the_layer_test_of_keras(kind: type) -> None:
    row = TABLE[kind]
    arguments = {**row.arguments, "max_elements": 24}
    shape = IMAGE if row.inputs == 1 else (IMAGE,) * row.inputs
    keras_testing.TestCase().run_layer_test(kind, arguments, input_shape=shape)


@EVERY
def test_has_the_signature_and_config_of_its_twin(kind: type) -> None:
    ours, theirs = (inspect.signature(c).parameters for c in (kind, twin_of(kind)))
    extra = inspect.Parameter("max_elements", inspect.Parameter.KEYWORD_ONLY, default=None)
    assert [p for p in ours.values() if p != extra] == list(theirs.values())
    assert ours["max_elements"] == extra

    arguments = {**TABLE[kind].arguments, "name": "one"}
    config = kind(**arguments).get_config()
    assert config == {**twin_of(kind)(**arguments).get_config(), "max_elements": None}
    again = kind.from_config(kind(**arguments, max_elements=7).get_config())
    assert again.get_config() == {**config, "max_elements": 7}


@EVERY
def test_weights_interchange_in_both_directions(kind: type) -> None:
    row = TABLE[kind]
    big, twin = kind(**row.arguments), twin_of(kind)(**row.arguments)
    for layer in (big, twin):
        layer.build(shapes(row))
    names = [[(w.name, w.shape, w.dtype) for w in layer.weights] for layer in (big, twin)]
    assert names[0] == names[1]
    for giver, taker in ((big, twin), (twin, big)):
        giver.set_weights(integer_weights(giver))
        taker.set_weights(giver.get_weights())
        assert_same(taker.get_weights(), giver.get_weights())


@pytest.mark.parametrize("max_elements", [0, -1, 1.5, "8MB"])
def test_refuses_a_strip_of_nothing(max_elements: Any) -> None:
    with pytest.raises(ValueError, match=f"Expected a positive integer.*={max_elements}"):
        layers.BigConv2D(2, 3, max_elements=max_elements)


# ---------------------------------------------------------------------- the numbers of the twin


@EVERY
def test_equals_its_twin_at_sizes_known_only_at_run_time(kind: type) -> None:
    row = TABLE[kind] if kind is not layers.BigDropout else Row({"rate": 0.0})
    big, twin = pair(kind, row, max_elements=1)
    rtol = 0.0 if row.exact else FLOAT64
    compare(big, twin, row, [(2, 7, 6), (1, 4, 9), (3, 13, 5)], 4, rtol, training=True)


@pytest.mark.parametrize(
    "kind",
    [
        layers.BigConv2D,
        layers.BigBatchNormalization,
        layers.BigGlobalMaxPooling2D,
        layers.BigMultiply,
    ],
)
def test_equals_its_twin_in_an_eager_tape(kind: type) -> None:
    """TensorFlow then traces the gradient where it does not keep stateful operations in order."""
    row = TABLE[kind]
    big, twin = pair(kind, row, max_elements=1)
    x = images(row, IMAGE, big.compute_dtype)
    for variables in ([], big.trainable_variables, []):
        found = gradients(lambda x: big(x, training=True), x, variables)
        own = twin.trainable_variables if variables else []
        expected = gradients(lambda x: twin(x, training=True), x, own)
        assert_same(found, expected, 0.0 if row.exact else FLOAT64)


def test_gradients_of_a_persistent_tape() -> None:
    """The gradient is then traced twice; and it is the same however often it is asked for."""
    row = TABLE[layers.BigConv2D]
    big, twin = pair(layers.BigConv2D, row, max_elements=1)
    x = images(row, IMAGE)
    results = []
    for layer in (big, twin):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = layer(x)
        sources = [x, *(v._value for v in layer.trainable_variables)]
        results.append([tape.gradient(y, sources, scale * tf.ones_like(y)) for scale in (1, 2, 1)])
    assert_same(*results)


QUICK = (Phase.explicit, Phase.generate)
"""An example is traced anew, so none is spent on making a failing one smaller."""
few = settings(max_examples=5, phases=QUICK)
some = settings(max_examples=8, phases=QUICK)
strips = st.sampled_from([1, 40, None])
twos = st.tuples(st.integers(1, 5), st.integers(1, 5))
paddings = st.sampled_from(["same", "valid"])


@st.composite
def image_sizes(draw: st.DrawFn, least: tuple[int, int] = (1, 1)) -> list[tuple[int, int, int]]:
    """One or two sizes `(N, H, W)`, odd ones and single rows among them."""
    one = st.tuples(
        st.integers(1, 3),
        st.integers(least[0], least[0] + 12),
        st.integers(least[1], least[1] + 8),
    )
    return draw(st.lists(one, min_size=1, max_size=2))


@st.composite
def windows(draw: st.DrawFn, channels: int = 2) -> tuple[dict[str, Any], list[Any]]:
    """Kernel, stride or dilation, and padding, with images that are large enough for them.

    Not with one channel: TensorFlow's own convolution (oneDNN, 2.21) is wrong for one channel, strides (1, s > 1) and
    an output of one column.
    """
    kernel = draw(twos)
    strided = draw(st.booleans())
    stride = draw(twos) if strided else (1, 1)
    dilation = (1, 1) if strided else draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    padding = draw(paddings)
    spans = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True))
    arguments = {
        "kernel_size": kernel,
        "strides": stride,
        "dilation_rate": dilation,
        "padding": padding,
    }
    return arguments, draw(image_sizes(spans if padding == "valid" else (1, 1)))


def check(
    kind: type, arguments: dict[str, Any], sizes: Any, max_elements: Any, **more: Any
) -> None:
    """Equal to the twin, bitwise unless `exact=False`."""
    channels, exact = more.pop("channels", 4), more.pop("exact", True)
    row = Row(arguments, exact=exact)
    big, twin = pair(kind, row, channels, max_elements=max_elements)
    big.trainable = twin.trainable = more.pop("trainable", True)
    compare(big, twin, row, sizes, channels, 0.0 if exact else FLOAT64, **more)


@some
@given(windows(), st.booleans(), strips)
@example(  # the phase layout of a large stride, and an image smaller than its kernel
    (
        {"kernel_size": (18, 18), "strides": (8, 8), "padding": "same"},
        [(1, 37, 21), (2, 5, 3)],
    ),
    True,
    1,
)
@example(({"kernel_size": (3, 2), "strides": (2, 3), "groups": 2}, [(2, 9, 7)]), True, 1)
@example(({"kernel_size": 3, "groups": 4, "padding": "same"}, [(1, 6, 5)]), False, None)
def test_convolution(window: Any, use_bias: bool, max_elements: Any) -> None:
    arguments, sizes = window
    arguments = {**arguments, "filters": 4, "use_bias": use_bias}
    channels = 1 if arguments["kernel_size"] == (18, 18) else 4
    check(layers.BigConv2D, arguments, sizes, max_elements, channels=channels)


@few
@given(windows(), st.integers(1, 2), strips)
def test_depthwise_convolution(window: Any, multiplier: int, max_elements: Any) -> None:
    arguments, sizes = window
    arguments = {**square(arguments), "depth_multiplier": multiplier}
    check(layers.BigDepthwiseConv2D, arguments, sizes, max_elements)


@settings(max_examples=3, phases=QUICK)
@given(windows(), st.integers(1, 2), strips)
def test_separable_convolution(window: Any, multiplier: int, max_elements: Any) -> None:
    arguments, sizes = window
    arguments = {**square(arguments), "depth_multiplier": multiplier, "filters": 3}
    check(layers.BigSeparableConv2D, arguments, sizes, max_elements)


def square(arguments: dict[str, Any]) -> dict[str, Any]:
    """TensorFlow has depthwise convolutions for equal strides only."""
    return {**arguments, "strides": (arguments["strides"][0],) * 2}


@some
@given(
    twos,
    twos,
    st.booleans(),
    st.sampled_from([None, 0]),
    paddings,
    image_sizes((3, 3)),
    st.booleans(),
    strips,
)
@example((18, 18), (8, 8), False, None, "same", [(1, 5, 3), (2, 3, 4)], True, 1)  # phase layout
@example((3, 4), (3, 2), False, 1, "same", [(2, 4, 5), (1, 1, 3)], True, 1)
@example((2, 3), (4, 5), False, 1, "valid", [(1, 6, 2)], False, 1)
def test_transposed_convolution(
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilated: bool,
    output_padding: int | None,
    padding: str,
    sizes: Any,
    use_bias: bool,
    max_elements: Any,
) -> None:
    stride = (1, 1) if dilated else stride
    if padding == "same" and output_padding is not None:  # else Keras asks for an impossible shape
        pairs = zip(kernel, stride, strict=True)
        assume(all(1 <= k % 2 + output_padding <= s for k, s in pairs))
    arguments = {
        "filters": 3,
        "kernel_size": kernel,
        "strides": stride,
        "dilation_rate": 2 if dilated else 1,
        "padding": padding,
        "output_padding": output_padding,
        "use_bias": use_bias,
    }
    channels = 1 if kernel == (18, 18) else 4
    check(layers.BigConv2DTranspose, arguments, sizes, max_elements, channels=channels)


@st.composite
def pools(draw: st.DrawFn) -> tuple[dict[str, Any], list[Any]]:
    size, padding = draw(twos), draw(paddings)
    arguments = {"pool_size": size, "strides": draw(st.none() | twos), "padding": padding}
    return arguments, draw(image_sizes(size if padding == "valid" else (1, 1)))


@some
@given(pools(), strips)
def test_max_pooling(pool: Any, max_elements: Any) -> None:
    check(layers.BigMaxPooling2D, *pool, max_elements)


@few
@given(pools(), strips)
def test_average_pooling(pool: Any, max_elements: Any) -> None:
    check(layers.BigAveragePooling2D, *pool, max_elements, exact=False)


@few
@given(twos, image_sizes(), strips)
def test_upsampling_nearest(size: tuple[int, int], sizes: Any, max_elements: Any) -> None:
    check(layers.BigUpSampling2D, {"size": size}, sizes, max_elements)


@settings(max_examples=3, phases=QUICK)
@given(st.tuples(*[st.sampled_from([1, 2, 4])] * 2), image_sizes(), strips)
def test_upsampling_bilinear(size: tuple[int, int], sizes: Any, max_elements: Any) -> None:
    """By powers of two, where the weights of interpolation are exact."""
    arguments = {"size": size, "interpolation": "bilinear"}
    check(layers.BigUpSampling2D, arguments, sizes, max_elements)


sides = st.tuples(*[st.tuples(st.integers(0, 3), st.integers(0, 3))] * 2)


@few
@given(sides, image_sizes(), strips)
@example(((3, 3), (0, 0)), [(1, 1, 1), (2, 3, 2)], 1)  # strips of nothing but padding
def test_zero_padding(padding: Any, sizes: Any, max_elements: Any) -> None:
    check(layers.BigZeroPadding2D, {"padding": padding}, sizes, max_elements)


@settings(max_examples=3, phases=QUICK)
@given(sides, image_sizes((7, 7)), strips)
def test_cropping(cropping: Any, sizes: Any, max_elements: Any) -> None:
    check(layers.BigCropping2D, {"cropping": cropping}, sizes, max_elements)


@few
@given(
    st.sampled_from(["Batch", "Group", "Layer"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 2, -1]),
    image_sizes(),
    strips,
    st.sampled_from([(True, True), (True, False), (False, True)]),
)
@example("Batch", True, True, 1, [(3, 9, 5), (1, 1, 1)], 1, (True, True))
@example("Batch", False, False, 1, [(1, 12, 3)], 1, (True, False))
def test_normalisation(
    name: str,
    center: bool,
    scale: bool,
    groups: int,
    sizes: Any,
    max_elements: Any,
    mode: tuple[bool, bool],
) -> None:
    """Statistics are those of the whole batch, and move as the twin's; not so with `trainable=False`."""
    arguments: dict[str, Any] = {"center": center, "scale": scale, "epsilon": 0.01}
    arguments |= {"groups": groups} if name == "Group" else {}
    arguments |= {"momentum": 0.75} if name == "Batch" else {}
    kind = getattr(layers, f"Big{name}Normalization")
    training, trainable = mode
    more = {"training": training, "trainable": trainable}
    check(kind, arguments, sizes, max_elements, exact=False, **more)


@pytest.mark.parametrize("activation", ["relu", "softmax", "gelu", "sigmoid", None])
def test_activations(activation: str | None) -> None:
    arguments = {"units": 3, "activation": activation}
    check(layers.BigDense, arguments, [(2, 3, 5)], 1, exact=False)
    check(layers.BigActivation, {"activation": activation}, [(2, 3, 5)], 1, exact=False)


@pytest.mark.parametrize("kind", [kind for kind, row in TABLE.items() if row.linear])
def test_the_gradient_of_a_linear_layer_is_its_adjoint(kind: type) -> None:
    """`<v, J u> = <J^T v, u>`, `J u = f(u) - f(0)`; the terms of both sums are of order 1."""
    row = TABLE[kind]
    big, _ = pair(kind, row, dtype="float64", max_elements=1)
    random = np.random.default_rng(4)
    u = tf.nest.map_structure(
        lambda t: tf.constant(random.normal(size=t.shape)), images(row, IMAGE, "float64")
    )
    zero = big(tf.nest.map_structure(tf.zeros_like, u))
    v = tf.constant(random.normal(size=zero.shape))
    y, adjoint, _ = gradients(big, u, [], v)
    right = sum(
        np.vdot(a, b) for a, b in zip(tf.nest.flatten(adjoint), tf.nest.flatten(u), strict=True)
    )
    assert np.vdot(v, y - zero) == pytest.approx(right, rel=1e-12, abs=1e-12 * y.numpy().size)


# ---------------------------------------------------------------------------------- precision

EPSILON = {"bfloat16": 2.0**-7, "float16": 2.0**-10}
"""Distance from 1 to the next number: twice the error of one rounding."""


@pytest.mark.parametrize(
    ("kind", "policy"),
    [(kind, "mixed_bfloat16") for kind in TABLE]
    + [(layers.BigConv2D, "mixed_float16"), (layers.BigBatchNormalization, "mixed_float16")],
)
def test_runs_in_mixed_precision(kind: type, policy: str) -> None:
    """Against float64: what is not exact is computed in float32 and rounded once.

    Not against the twin, whose gradient of a bias stops at 256 in bfloat16.
    """
    row = TABLE[kind] if kind is not layers.BigDropout else Row({"rate": 0.0})
    big, twin = pair(kind, row, dtype=policy, max_elements=1)
    truth = twin_of(kind)(**row.arguments, dtype="float64")
    truth.build(shapes(row))
    for layer in (big, twin, truth):
        layer.set_weights(integer_weights(big, top=1))
    x, wide = (images(row, IMAGE, dtype, top=1) for dtype in ("float32", "float64"))

    @tf.function(autograph=False)
    def traced(x: Any) -> Any:
        return gradients(lambda x: big(x, training=True), x, big.trainable_variables)

    found = traced(x)
    expected = gradients(lambda x: truth(x, training=True), wide, truth.trainable_variables)
    assert found[0].dtype == twin(x, training=True).dtype == big.compute_dtype
    assert all(d.dtype == "float32" for d in tf.nest.flatten(found[1:]))
    count = None if row.exact else 1  # the gradient of a normalisation is rounded more often
    found, expected = (
        [tf.cast(t, "float64") for t in tf.nest.flatten(r)[:count]] for r in (found, expected)
    )
    assert_same(found, expected, EPSILON[big.compute_dtype])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_statistics_are_float32_or_wider(dtype: str) -> None:
    """Of sums beyond what the narrow type can count: bfloat16 stops at 256, float16 at 65504."""
    pixels = np.full((1, 300, 300, 2), 1.0)
    pixels[:, ::4] = 3.0  # mean 1.5, variance 0.75, the sum 135000
    x, strips = tf.constant(pixels, dtype), 10
    options = {"max_elements": 300 * 300 * 2 // strips}

    batch = layers.BigBatchNormalization(momentum=0.0, dtype=f"mixed_{dtype}", **options)
    batch(x, training=True)
    expected = [np.full(2, m, "float32") for m in (1.5, 0.75)]
    rounding = 300 * 300 // strips * 2.0**-24  # each sum is one of as many numbers
    assert rounding < 2.0**-10  # less than one rounding of a narrow mean
    assert_same([v.numpy() for v in batch.non_trainable_variables], expected, rounding)

    mean = layers.BigGlobalAveragePooling2D(dtype=dtype, **options)(x)
    assert_same(tf.cast(mean, "float32"), np.full((1, 2), 1.5, "float32"))

    group = layers.BigGroupNormalization(1, epsilon=0.0625, dtype=f"mixed_{dtype}", **options)
    values = np.unique(tf.cast(group(x), "float32"))
    assert_same(values, np.float32([-0.5, 1.5]) / np.float32(0.8125**0.5), EPSILON[dtype])


def test_gradients_of_weights_add_up_in_their_own_type() -> None:
    """257 strips, each adding 1 to a gradient: bfloat16 would stop at 256."""
    big = layers.BigConv2D(1, 1, dtype="mixed_bfloat16", max_elements=1)
    x = tf.ones([1, 257, 1, 1])
    big.build(x.shape)
    _, _, (kernel, bias) = gradients(big, x, big.trainable_variables)
    assert (float(kernel[0, 0, 0, 0]), float(bias[0])) == (257.0, 257.0)


def test_a_policy_set_globally_is_that_of_the_layer() -> None:
    keras.config.set_dtype_policy("mixed_bfloat16")
    layer = layers.BigConv2D(3, 3, max_elements=1)
    symbolic = layer(keras.Input((None, None, 2)))
    assert symbolic.dtype == layer(tf.ones([1, 5, 4, 2])).dtype == "bfloat16"
    assert {w.dtype for w in layer.weights} == {"float32"}


# ------------------------------------------------------------------------------------ dropout


def dropped(x: tf.Tensor, max_elements: int | None, **arguments: Any) -> tuple[Any, Any]:
    """A fresh layer's output and the gradient of its sum."""
    layer = layers.BigDropout(**{"rate": 0.3, "seed": 11, **arguments}, max_elements=max_elements)
    return gradients(lambda x: layer(x, training=True), x, [])[:2]


def test_dropout_has_the_same_mask_for_any_strips() -> None:
    x = tf.ones([3, 13, 7, 5])
    whole = dropped(x, None)
    for max_elements in (1, 200, 500):
        assert_same(dropped(x, max_elements), whole)
    assert not np.array_equal(dropped(x, 1, seed=12)[0], whole[0])
    assert len(np.unique(np.reshape(whole[0], [39, -1]), axis=0)) == 39  # no row repeats another


def test_dropout_makes_its_mask_again_backward() -> None:
    x = tf.random.normal([2, 13, 7, 5])
    for dtype in ("float32", "float64", "mixed_bfloat16"):
        y, dx = dropped(x, 1, dtype=dtype)
        kept = np.asarray(y) != 0
        assert np.array_equal(kept, np.asarray(dx) != 0)
        scale = tf.constant(1 / 0.7, y.dtype)
        assert_same(y, tf.where(kept, tf.cast(x, y.dtype) * scale, tf.zeros([], y.dtype)))
        assert_same(dx, tf.where(kept, tf.cast(scale, x.dtype), 0.0))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9, 1.0])
def test_dropout_drops_its_rate(rate: float) -> None:
    """Within five standard deviations of the binomial distribution."""
    x = tf.ones([2, 50, 50, 20])
    share = np.mean(dropped(x, 5000, rate=rate)[0].numpy() == 0)
    assert abs(share - rate) <= 5 * (rate * (1 - rate) / np.size(x)) ** 0.5


def test_dropout_draws_anew_at_each_call() -> None:
    x, layer = tf.ones([1, 9, 9, 2]), layers.BigDropout(0.5, seed=1, max_elements=1)
    first, second = layer(x, training=True), layer(x, training=True)
    assert not np.array_equal(first, second)
    again = layers.BigDropout(0.5, seed=1)
    assert_same([again(x, training=True) for _ in range(2)], [first, second])
    assert_same(layer(x, training=False), x)


# ------------------------------------------------------------------- where layers are used

FALLBACKS = [
    (layers.BigDense, {"units": 3, "activation": "tanh"}),
    (layers.BigBatchNormalization, {"momentum": 0.5}),
    (layers.BigLayerNormalization, {}),
    (layers.BigActivation, {"activation": "gelu"}),
    (layers.BigReLU, {"max_value": 1.0}),
    (layers.BigDropout, {"rate": 0.5, "seed": 5}),
    (layers.BigAdd, {}),
    (layers.BigMultiply, {}),
    (layers.BigConcatenate, {}),
]


@pytest.mark.parametrize(("kind", "arguments"), FALLBACKS)
@pytest.mark.parametrize("shape", [(4, 3), (4, 5, 3)])
def test_what_is_not_an_image_goes_to_the_twin(kind: type, arguments: Any, shape: Any) -> None:
    row = Row(arguments, inputs=TABLE[kind].inputs)
    both = [c(**arguments, dtype="float64") for c in (kind, twin_of(kind))]
    x = images(row, shape, "float64")
    for layer in both:
        layer.build(shapes(row, shape))
        layer.set_weights(integer_weights(layer))
    found, expected = (
        gradients(lambda x, c=c: c(x, training=True), x, c.trainable_variables) for c in both
    )
    assert_same(found, expected)
    assert_same(both[0].get_weights(), both[1].get_weights())
    assert not both[0]._programs


def all_layers(source: Any, prefix: str) -> keras.Model:
    """A functional model of every layer of the table, Big or plain."""

    def of(name: str) -> Any:
        return getattr(source, prefix + name)

    inputs = keras.Input((None, None, 3))
    x = of("Conv2D")(4, 3, padding="same")(inputs)
    x = of("ReLU")()(of("BatchNormalization")()(x))
    shortcut = of("SeparableConv2D")(4, 3, padding="same")(x)
    x = of("GroupNormalization")(2)(of("DepthwiseConv2D")(3, padding="same")(x))
    x = of("Multiply")()([of("Add")()([x, shortcut]), shortcut])
    x = of("UpSampling2D")()(of("MaxPooling2D")(2)(x))
    x = of("AveragePooling2D")(2)(of("Conv2DTranspose")(4, 2, strides=2)(x))
    x = of("Concatenate")()([x, shortcut])
    x = of("Cropping2D")(2)(of("ZeroPadding2D")(1)(x))
    x = of("Dropout")(0.2)(of("LayerNormalization")()(of("Dense")(5)(x)))
    x = of("Activation")("tanh")(x)
    vectors = [of("GlobalAveragePooling2D")()(x), of("GlobalMaxPooling2D")()(x)]
    return keras.Model(inputs, of("Dense")(2)(of("Concatenate")()(vectors)))


def test_a_model_of_big_layers_equals_the_plain_one_and_is_saved(tmp_path: Any) -> None:
    big, plain = all_layers(layers, "Big"), all_layers(keras.layers, "")
    assert {type(layer) for layer in big.layers} >= set(layers.ALL)
    x = tf.random.normal([2, 8, 6, 3])
    plain.set_weights([w + 0.1 for w in plain.get_weights()])
    big.set_weights(plain.get_weights())

    big.save(tmp_path / "big.keras")
    again = keras.saving.load_model(tmp_path / "big.keras")
    assert [type(layer) for layer in again.layers] == [type(layer) for layer in big.layers]
    assert_same(again.get_weights(), big.get_weights())
    # float32 through some twenty layers, each rounding what is of order one
    assert_same(tf.function(again)(x), plain(x), 20 * 2**-23)


@pytest.mark.filterwarnings("ignore:Skipping nested container:UserWarning")
def test_weight_files_interchange(tmp_path: Any) -> None:
    """By order in `.h5`; a `.weights.h5` names weights by class, so Keras refuses it between the two."""
    big, plain = all_layers(layers, "Big"), all_layers(keras.layers, "")
    for giver, taker in ((plain, big), (big, plain)):
        giver.set_weights([w + 1 for w in giver.get_weights()])
        giver.save(tmp_path / "whole.h5")
        taker.load_weights(tmp_path / "whole.h5")
        assert_same(taker.get_weights(), giver.get_weights())
    plain.save_weights(tmp_path / "plain.weights.h5")
    with pytest.raises(ValueError, match="objects could not be loaded"):
        big.load_weights(tmp_path / "plain.weights.h5")


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")
def test_fit_traces_once_for_images_of_all_sizes() -> None:
    traces = []

    class Counted(layers.BigReLU):
        def call(self, inputs: Any, training: bool | None = None) -> Any:
            traces.append(1)
            return super().call(inputs, training=training)

    inputs = keras.Input((None, None, 1))
    x = Counted(max_elements=1)(layers.BigConv2D(2, 3, max_elements=1)(inputs))
    model = keras.Model(inputs, layers.BigGlobalAveragePooling2D(max_elements=1)(x))
    model.compile("sgd", "mse")

    def batches() -> Any:
        for side in (5, 7, 9, 6):
            yield integers((1, side, side + 1, 1)), integers((1, 2))

    unknown = (tf.TensorSpec([1, None, None, 1]), tf.TensorSpec([1, 2]))
    dataset = tf.data.Dataset.from_generator(batches, output_signature=unknown)
    model.fit(dataset, steps_per_epoch=4, verbose=0)
    assert len(traces) == 1

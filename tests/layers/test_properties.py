"""Big layers equal their Keras twins for random arguments, image sizes and strips."""

from __future__ import annotations

from typing import Any

import pytest
from exactness import FLOAT64
from hypothesis import Phase, assume, example, given, settings
from hypothesis import strategies as st
from layer_pairs import Row, compare, dilates_transposes, pair

from tfbig import layers

QUICK = (Phase.explicit, Phase.generate)
"""Phases without shrinking: every example is traced anew."""


few = settings(max_examples=2, phases=QUICK)


some = settings(max_examples=3, phases=QUICK)


every_strip = pytest.mark.parametrize(
    "max_elements", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (40, None))]
)
"""Strips of one row, of a few rows, and one strip for the image."""


other_strips = pytest.mark.parametrize(
    "max_elements", [pytest.param(n, marks=pytest.mark.slow) for n in (1, 40, None)]
)
"""The same, of layers whose code the fast tests of another layer run."""


twos = st.tuples(st.integers(1, 5), st.integers(1, 5))


paddings = st.sampled_from(["same", "valid"])


@st.composite
def image_sizes(draw: st.DrawFn, least: tuple[int, int] = (1, 1)) -> list[tuple[int, int, int]]:
    """Draw one or two sizes `(N, H, W)`, including odd ones and single rows."""
    one = st.tuples(
        st.integers(1, 3),
        st.integers(least[0], least[0] + 12),
        st.integers(least[1], least[1] + 8),
    )
    return draw(st.lists(one, min_size=1, max_size=2))


@st.composite
def windows(draw: st.DrawFn, channels: int = 2) -> tuple[dict[str, Any], list[Any]]:
    """Draw kernel, stride or dilation, and padding, with images that are large enough for them.

    Not for one channel: TensorFlow's own convolution (oneDNN, 2.21) is wrong for one channel, strides (1, s > 1) and
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
    """Compare a layer with its twin, bitwise unless `exact=False`."""
    channels, exact = more.pop("channels", 4), more.pop("exact", True)
    row = Row(arguments, exact=exact)
    big, twin = pair(kind, row, channels, max_elements=max_elements)
    big.trainable = twin.trainable = more.pop("trainable", True)
    compare(big, twin, row, sizes, channels, 0.0 if exact else FLOAT64, **more)


@every_strip
@some
@given(windows(), st.booleans())
@example(  # space-to-depth layout of a large stride, and an image smaller than the kernel
    (
        {"kernel_size": (18, 18), "strides": (8, 8), "padding": "same"},
        [(1, 37, 21), (2, 5, 3)],
    ),
    True,
)
@example(({"kernel_size": (3, 2), "strides": (2, 3), "groups": 2}, [(2, 9, 7)]), True)
@example(({"kernel_size": 3, "groups": 4, "padding": "same"}, [(1, 6, 5)]), False)
def test_convolution(max_elements: Any, window: Any, use_bias: bool) -> None:
    arguments, sizes = window
    arguments = {**arguments, "filters": 4, "use_bias": use_bias}
    channels = 1 if arguments["kernel_size"] == (18, 18) else 4
    check(layers.BigConv2D, arguments, sizes, max_elements, channels=channels)


@other_strips
@few
@given(windows(), st.integers(1, 2))
def test_depthwise_convolution(max_elements: Any, window: Any, multiplier: int) -> None:
    arguments, sizes = window
    arguments = {**square(arguments), "depth_multiplier": multiplier}
    check(layers.BigDepthwiseConv2D, arguments, sizes, max_elements)


@every_strip
@few
@given(windows(), st.integers(1, 2))
def test_separable_convolution(max_elements: Any, window: Any, multiplier: int) -> None:
    arguments, sizes = window
    arguments = {**square(arguments), "depth_multiplier": multiplier, "filters": 3}
    check(layers.BigSeparableConv2D, arguments, sizes, max_elements)


def square(arguments: dict[str, Any]) -> dict[str, Any]:
    """Make the strides equal, as TensorFlow requires for depthwise convolutions."""
    return {**arguments, "strides": (arguments["strides"][0],) * 2}


@pytest.mark.slow
@every_strip
@some
@given(
    twos,
    twos,
    st.booleans(),
    st.sampled_from([None, 0]),
    paddings,
    image_sizes((3, 3)),
    st.booleans(),
)
@example((18, 18), (8, 8), False, None, "same", [(1, 5, 3), (2, 3, 4)], True)  # space-to-depth
@example((3, 4), (3, 2), False, 1, "same", [(2, 4, 5), (1, 1, 3)], True)
@example((2, 3), (4, 5), False, 1, "valid", [(1, 6, 2)], False)
def test_transposed_convolution(
    max_elements: Any,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilated: bool,
    output_padding: int | None,
    padding: str,
    sizes: Any,
    use_bias: bool,
) -> None:
    assume(not dilated or dilates_transposes())
    stride = (1, 1) if dilated else stride
    if (
        padding == "same" and output_padding is not None
    ):  # otherwise Keras computes an impossible shape
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


@every_strip
@some
@given(pools())
def test_max_pooling(max_elements: Any, pool: Any) -> None:
    check(layers.BigMaxPooling2D, *pool, max_elements)


@every_strip
@few
@given(pools())
def test_average_pooling(max_elements: Any, pool: Any) -> None:
    check(layers.BigAveragePooling2D, *pool, max_elements, exact=False)


@other_strips
@few
@given(twos, image_sizes())
def test_upsampling_nearest(max_elements: Any, size: tuple[int, int], sizes: Any) -> None:
    check(layers.BigUpSampling2D, {"size": size}, sizes, max_elements)


@every_strip
@few
@given(st.tuples(*[st.sampled_from([1, 2, 4])] * 2), image_sizes())
def test_upsampling_bilinear(max_elements: Any, size: tuple[int, int], sizes: Any) -> None:
    """Factors are powers of two, for which interpolation weights are exact."""
    arguments = {"size": size, "interpolation": "bilinear"}
    check(layers.BigUpSampling2D, arguments, sizes, max_elements)


sides = st.tuples(*[st.tuples(st.integers(0, 3), st.integers(0, 3))] * 2)


@every_strip
@few
@given(sides, image_sizes())
@example(((3, 3), (0, 0)), [(1, 1, 1), (2, 3, 2)])  # strips that are padding only
def test_zero_padding(max_elements: Any, padding: Any, sizes: Any) -> None:
    check(layers.BigZeroPadding2D, {"padding": padding}, sizes, max_elements)


@every_strip
@few
@given(sides, image_sizes((7, 7)))
def test_cropping(max_elements: Any, cropping: Any, sizes: Any) -> None:
    check(layers.BigCropping2D, {"cropping": cropping}, sizes, max_elements)


@every_strip
@few
@given(
    st.sampled_from(["Batch", "Group", "Layer"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 2, -1]),
    image_sizes(),
    st.sampled_from([(True, True), (True, False), (False, True)]),
)
@example("Batch", True, True, 1, [(3, 9, 5), (1, 1, 1)], (True, True))
@example("Batch", False, False, 1, [(1, 12, 3)], (True, False))
def test_normalisation(
    max_elements: Any,
    name: str,
    center: bool,
    scale: bool,
    groups: int,
    sizes: Any,
    mode: tuple[bool, bool],
) -> None:
    """Statistics are those of the whole batch and update moving averages, except with `trainable=False`."""
    arguments: dict[str, Any] = {"center": center, "scale": scale, "epsilon": 0.01}
    arguments |= {"groups": groups} if name == "Group" else {}
    arguments |= {"momentum": 0.75} if name == "Batch" else {}
    kind = getattr(layers, f"Big{name}Normalization")
    training, trainable = mode
    more = {"training": training, "trainable": trainable}
    check(kind, arguments, sizes, max_elements, exact=False, **more)


@pytest.mark.parametrize(
    "activation",
    [
        "softmax",
        "gelu",
        *(pytest.param(a, marks=pytest.mark.slow) for a in ("relu", "sigmoid", None)),
    ],
)
def test_activations(activation: str | None) -> None:
    arguments = {"units": 3, "activation": activation}
    check(layers.BigDense, arguments, [(2, 3, 5)], 1, exact=False)
    check(layers.BigActivation, {"activation": activation}, [(2, 3, 5)], 1, exact=False)

"""Every layer and operation of Keras that works on images, with the options to try it with.

The registry derives from Keras: `tests/conformance/test_registry.py` lists the public layers and operations that have
neither a case here nor a reason in `NOT_ON_IMAGES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import layers, ops

CHANNELS = 4
"""Channels of the images that a layer under test receives."""

SIZES = {1: (23,), 2: (11, 9), 3: (7, 6, 5)}
"""Size of the images, by number of spatial axes."""


@dataclass(frozen=True)
class Case:
    """One use of a layer or operation, alone between plain convolutions.

    Args:
        of: Public name in Keras, such as `"layers.Conv2D"`.
        apply: Function from Keras tensors `[N, rows, ..., C]` to one tensor or a list.
        note: Its options, for names of tests.
        spatial: Number of spatial axes.
        inputs: Number of images that it receives.
        size: Size of the images; by default that in `SIZES`.
        fixed: Whether the model is built for that size.
        exact: Whether it computes integers without rounding, so that float32 is compared bitwise.
        random: Whether it draws random numbers in training: these depend on position and seed only, and differ from
            those of plain Keras. It is compared with one strip of the whole image.
        skips: Whether a sweep with it skips background.
        tiles: Whether a sweep with it can be cut into tiles.
        positive: Whether its input lies between 0.1 and 0.9.
        float64: Whether TensorFlow computes it in float64; otherwise it is compared in float32.
        saves: Whether Keras loads it without more ado.
        partly_float32: Whether TensorFlow computes a part of it in float32, between layers in float64.
        divides: Whether equal maxima share the gradient, which is then exact in float32 for some numbers of them only.
        sized: Whether Keras needs the size of the images when it traces a function.
        ties: Whether no gradient is compared where maxima are equal: in volumes, TensorFlow gives it to each of them
            (`MaxPool3DGrad`), and so too much, unless oneDNN computes it, which depends on the graph.
    """

    of: str
    apply: Callable[..., Any]
    note: str = ""
    spatial: int = 2
    inputs: int = 1
    size: tuple[int, ...] | None = None
    fixed: bool = False
    exact: bool = True
    random: bool = False
    skips: bool = True
    tiles: bool = True
    positive: bool = False
    float64: bool = True
    saves: bool = True
    partly_float32: bool = False
    divides: bool = False
    sized: bool = False
    ties: bool = False

    @property
    def name(self) -> str:
        """Name and options."""
        return f"{self.of}({self.note})"

    @property
    def extent(self) -> tuple[int, ...]:
        """Size of the images."""
        return self.size or SIZES[self.spatial]

    def model(self) -> keras.Model:
        """Return a model of the layer between plain convolutions; a vector or number per image ends in a Dense."""
        side = self.extent if self.fixed else (None,) * self.spatial
        start = keras.Input((*side, 3))
        convolution = getattr(layers, f"Conv{self.spatial}D")
        images = [
            convolution(CHANNELS, 3, padding="same", name=f"before_{i}")(start)
            for i in range(self.inputs)
        ]
        if self.positive:
            images = [0.1 + 0.8 * ops.sigmoid(x) for x in images]
        outputs = self.apply(*images)
        flat = keras.tree.flatten(outputs)
        return keras.Model(start, [self._after(y, i) for i, y in enumerate(flat)])

    def _after(self, y: Any, number: int) -> Any:
        if len(y.shape) == self.spatial + 1 and len(y.shape) > 2:
            y = ops.expand_dims(y, -1)  # a number for each pixel
        if not keras.backend.is_float_dtype(y.dtype):
            y = ops.cast(y, keras.config.floatx())  # comparisons, positions
        if len(y.shape) == self.spatial + 2:
            side = 1 if 1 in y.shape[1:-1] else 2
            return getattr(layers, f"Conv{self.spatial}D")(2, side, name=f"after_{number}")(y)
        if len(y.shape) == 2:
            return layers.Dense(2, name=f"after_{number}")(y)
        return y


def _note(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{k}={v!r}" for k, v in options.items())


def layer(kind: type, *options: Mapping[str, Any], **traits: Any) -> Iterable[Case]:
    """Yield a case for each of the options of a layer, which is called on one image, or on a list of `inputs`."""
    for each in options or ({},):

        def apply(*images: Any, each: Mapping[str, Any] = each) -> Any:
            return kind(**each)(images[0] if len(images) == 1 else list(images))

        yield Case(f"layers.{kind.__name__}", apply, _note(each), **traits)


IN_FLOAT32 = {f"{kind}PoolingND3" for kind in ("Max", "Average", "AdaptiveAverage")}
"""Layers that TensorFlow does not compute in float64."""


def of_rank(
    name: str, *options: Mapping[str, Any], ranks: Sequence[int] = (1, 2, 3), **traits: Any
) -> Iterable[Case]:
    """Yield cases of a layer that Keras has for one, two and three axes, as far as it has it."""
    for spatial in ranks:
        kind = getattr(layers, name.replace("ND", f"{spatial}D"), None)
        float64 = f"{name}{spatial}" not in IN_FLOAT32
        if kind is not None:
            ties = name == "MaxPoolingND" and spatial == 3
            yield from layer(kind, *options, spatial=spatial, float64=float64, ties=ties, **traits)


def operation(name: str, apply: Callable[..., Any], note: str = "", **traits: Any) -> Case:
    """Return a case of an operation."""
    return Case(f"ops.{name}", apply, note, **traits)


def options(**values: Any) -> Mapping[str, Any]:
    """Return options as they are written in a call."""
    return values


CONVOLUTIONS = [
    *of_rank(
        "ConvND",
        options(filters=5, kernel_size=3),
        options(filters=5, kernel_size=3, padding="same", dilation_rate=2),
        options(filters=4, kernel_size=4, padding="same", strides=2, activation="relu"),
        options(filters=6, kernel_size=3, padding="same", groups=2, use_bias=False),
        options(filters=5, kernel_size=1),
        options(filters=5, kernel_size=2, strides=3),
        options(filters=4, kernel_size=2, dilation_rate=3),
    ),
    *layer(
        layers.Conv1D,
        options(filters=5, kernel_size=3, padding="causal", dilation_rate=2),
        options(filters=8, kernel_size=3, padding="same", groups=4, strides=2),
        options(filters=8, kernel_size=3, padding="same", groups=2, dilation_rate=2),
        spatial=1,
    ),
    *layer(
        layers.Conv2D,
        options(filters=5, kernel_size=(3, 2), padding="same", dilation_rate=(1, 3)),
        options(filters=5, kernel_size=(1, 5), padding="same", strides=(2, 1)),
        options(filters=8, kernel_size=3, padding="same", groups=4),
        options(filters=4, kernel_size=3, padding="same", groups=4, strides=(2, 1)),
        options(filters=8, kernel_size=3, groups=4, strides=(1, 3)),
        options(filters=4, kernel_size=3, padding="same", groups=4, dilation_rate=2),
        options(filters=4, kernel_size=3, padding="same", groups=2, dilation_rate=2),
        options(filters=4, kernel_size=3, padding="same", dilation_rate=12),
    ),
    *layer(
        layers.Conv2D,
        options(filters=5, kernel_size=5, padding="same", activation="softmax"),
        exact=False,
    ),
    *layer(layers.Conv3D, options(filters=4, kernel_size=2, padding="same", groups=4), spatial=3),
    *of_rank(
        "DepthwiseConvND",
        options(kernel_size=3, padding="same"),
        options(kernel_size=3, padding="same", dilation_rate=2, depth_multiplier=2),
        options(kernel_size=2, strides=2, use_bias=False),
        options(kernel_size=3, dilation_rate=2),
        options(kernel_size=3, padding="same", dilation_rate=2, strides=2),
    ),
    *of_rank(
        "SeparableConvND",
        options(filters=5, kernel_size=3, padding="same"),
        options(filters=5, kernel_size=3, padding="same", dilation_rate=2),
        options(filters=3, kernel_size=4, strides=2, depth_multiplier=2, activation="relu"),
    ),
    *of_rank(
        "ConvNDTranspose",
        options(filters=3, kernel_size=3, strides=2, padding="same"),
        options(filters=3, kernel_size=2, strides=2),
        options(filters=3, kernel_size=4, strides=2, padding="same", use_bias=False),
        options(filters=3, kernel_size=2, strides=3, output_padding=1),
        options(filters=3, kernel_size=3, padding="same", activation="relu"),
    ),
    *layer(
        layers.EinsumDense,
        options(equation="abcd,de->abce", output_shape=(None, None, 5), bias_axes="e"),
        options(equation="...x,xy->...y", output_shape=5),
        exact=False,
    ),
    *(
        case
        for spatial in (1, 2, 3)
        for case in layer(
            layers.Dense,
            options(units=5),
            options(units=3, activation="softmax", use_bias=False),
            spatial=spatial,
            exact=False,
        )
    ),
]

POOLING = [
    *of_rank(
        "MaxPoolingND",
        options(pool_size=2),
        options(pool_size=3, strides=2, padding="same"),
        options(pool_size=2, strides=1, padding="same"),
    ),
    *of_rank(
        "AveragePoolingND",
        options(pool_size=2),
        options(pool_size=3, strides=2, padding="same"),
        options(pool_size=3, strides=1, padding="same"),
        exact=False,
    ),
    *of_rank("GlobalAveragePoolingND", options(), options(keepdims=True), exact=False),
    *of_rank("GlobalMaxPoolingND", options(), options(keepdims=True), divides=True),
]

RESAMPLING = [
    *of_rank("UpSamplingND", options(size=2)),
    *layer(
        layers.UpSampling2D,
        options(size=(2, 3)),
    ),
    *layer(
        layers.UpSampling2D,
        options(size=2, interpolation="bilinear"),
        exact=False,
        partly_float32=True,
        sized=True,
    ),
    *of_rank("ZeroPaddingND", options(padding=2)),
    *layer(layers.ZeroPadding1D, options(padding=(0, 3)), spatial=1),
    *layer(layers.ZeroPadding2D, options(padding=((1, 2), (0, 3)))),
    *layer(layers.ZeroPadding3D, options(padding=((1, 2), (0, 3), (2, 0))), spatial=3),
    *of_rank("CroppingND", options(cropping=1)),
    *layer(layers.Cropping2D, options(cropping=((1, 0), (2, 1)))),
    *layer(layers.CenterCrop, options(height=6, width=5), skips=False),
    *layer(layers.Resizing, options(height=7, width=14, interpolation="nearest"), skips=False),
    *layer(
        layers.Resizing,
        options(height=7, width=14),
        options(height=5, width=4, antialias=True),
        options(height=7, width=14, interpolation="bicubic"),
        options(height=5, width=4, interpolation="lanczos5", antialias=True),
        exact=False,
        skips=False,
        float64=False,
    ),
    *layer(
        layers.UpSampling2D,
        options(size=2, interpolation="bicubic"),
        options(size=(3, 2), interpolation="lanczos3"),
        exact=False,
        float64=False,
        sized=True,
    ),
]

ADAPTIVE = [
    *of_rank(
        "AdaptiveAveragePoolingND",
        options(output_size=4),
        options(output_size=7),
        exact=False,
        skips=False,
        fixed=True,
    ),
    *layer(
        layers.AdaptiveAveragePooling2D,
        options(output_size=(3, 13)),
        exact=False,
        skips=False,
        fixed=True,
    ),
    *of_rank(
        "AdaptiveMaxPoolingND",
        options(output_size=4),
        options(output_size=7),
        ranks=(1, 2),
        skips=False,
        fixed=True,
    ),
    *layer(layers.AdaptiveMaxPooling2D, options(output_size=(3, 13)), skips=False, fixed=True),
    # Keras pools along one axis after the other, so windows that overlap make ties.
    *layer(
        layers.AdaptiveMaxPooling3D,
        options(output_size=(4, 3, 2)),
        options(output_size=(2, 3, 4)),
        spatial=3,
        size=(8, 6, 4),
        float64=False,
        ties=True,
        skips=False,
        fixed=True,
    ),
]
"""Keras computes these for images of known size only."""

NORMALISATION = [
    *(
        case
        for spatial in (1, 2, 3)
        for case in layer(
            layers.BatchNormalization,
            options(momentum=0.75),
            options(scale=False, center=False),
            spatial=spatial,
            exact=False,
        )
    ),
    *layer(
        layers.BatchNormalization,
        options(trainable=False),
        options(scale=False),
        options(center=False, epsilon=0.1),
        exact=False,
    ),
    *layer(
        layers.GroupNormalization,
        options(groups=2),
        options(groups=1),
        options(groups=-1),
        options(groups=2, scale=False),
        options(groups=1, scale=False),
        options(groups=1, center=False),
        options(groups=2, scale=False, center=False),
        exact=False,
    ),
    *layer(layers.GroupNormalization, options(groups=2, scale=False), spatial=3, exact=False),
    *layer(
        layers.LayerNormalization,
        options(),
        options(scale=False),
        options(center=False),
        options(axis=[1, 2, 3], scale=False, center=False),
        options(axis=[1, 2], scale=False, center=False),
        exact=False,
    ),
    *layer(
        layers.LayerNormalization,
        options(axis=[1, 2, 3, 4], scale=False, center=False),
        spatial=3,
        exact=False,
    ),
    *layer(layers.RMSNormalization, exact=False),
    *layer(layers.UnitNormalization, exact=False),
    *layer(
        layers.Normalization,
        options(mean=[0.5, 1.0, -1.0, 2.0], variance=[1.0, 4.0, 0.25, 2.0]),
        exact=False,
    ),
]

ACTIVATIONS = [
    *layer(
        layers.Activation,
        options(activation="relu"),
        options(activation="gelu"),
        options(activation="softmax"),
        exact=False,
    ),
    *layer(layers.ReLU, options(), options(max_value=2.0, negative_slope=0.5, threshold=1.0)),
    *layer(layers.LeakyReLU, exact=False),
    *layer(layers.ELU, exact=False),
    *layer(layers.PReLU, options(shared_axes=[1, 2], alpha_initializer="ones")),
    *layer(layers.Softmax, exact=False),
    *layer(layers.Rescaling, options(scale=2.0, offset=1.0), options(scale=[1.0, 2.0, 3.0, 4.0])),
    *layer(layers.Identity),
    Case("layers.Lambda", lambda x: layers.Lambda(lambda t: 2 * ops.relu(t))(x), saves=False),
]

MERGING = [
    *(
        case
        for kind in (layers.Add, layers.Subtract, layers.Multiply, layers.Maximum, layers.Minimum)
        for case in layer(kind, inputs=2)
    ),
    *layer(layers.Average, inputs=2, exact=False),
    *layer(layers.Concatenate, inputs=3),
    *layer(layers.Concatenate, inputs=2, spatial=3),
    *(
        case
        for spatial, axis in ((1, 1), (2, 1), (2, -2), (3, 2))
        for case in layer(
            *(layers.Concatenate, {"axis": axis}),
            inputs=3,
            spatial=spatial,
            fixed=True,
            skips=False,
        )
    ),
    Case(
        "layers.Multiply",
        lambda x: layers.Multiply()([x, layers.GlobalMaxPooling2D(keepdims=True)(x)]),
        "image, pooled image",
        divides=True,
    ),
]


def _attention(
    kind: type, *options: Mapping[str, Any], of_call: Mapping[str, Any] | None = None, **traits: Any
) -> Iterable[Case]:
    """Yield a case of self-attention for each of the options, which a query and a value share with two images."""
    called = dict(of_call or {})
    for each in options:

        def apply(*images: Any, each: Mapping[str, Any] = each) -> Any:
            return kind(**each)(images[0], images[-1], **called)

        note = _note({**each, **called, "images": traits.get("inputs", 1)})
        yield Case(
            f"layers.{kind.__name__}", apply, note, skips=False, **{"exact": False, **traits}
        )


def _of_heads(x: Any, heads: int) -> Any:
    """Return the pixels of a series in heads of two numbers."""
    return layers.EinsumDense("abc,cde->abde", (None, heads, 2))(x)


def _of_channels(x: Any) -> Any:
    """Return the pixels of a series in heads of two numbers with one axis of channels."""
    return layers.EinsumDense("abde,dec->abc", (None, 4))(x)


MULTI_HEAD, GROUPED = layers.MultiHeadAttention, layers.GroupQueryAttention

ATTENTION = [
    *_attention(MULTI_HEAD, options(num_heads=2, key_dim=3)),
    *_attention(MULTI_HEAD, options(num_heads=2, key_dim=3), inputs=2),
    *(
        case
        for spatial in (1, 3)
        for case in _attention(MULTI_HEAD, options(num_heads=2, key_dim=3), spatial=spatial)
    ),
    *_attention(
        MULTI_HEAD,
        options(num_heads=2, key_dim=3, value_dim=2, output_shape=5, use_bias=False),
        options(num_heads=1, key_dim=4, attention_axes=(1,)),
        options(num_heads=3, key_dim=2, attention_axes=2),
    ),
    *_attention(MULTI_HEAD, options(num_heads=2, key_dim=2, attention_axes=(1, 3)), spatial=3),
    *_attention(MULTI_HEAD, options(num_heads=2, key_dim=3, dropout=0.3, seed=1), random=True),
    *_attention(
        MULTI_HEAD,
        options(num_heads=2, key_dim=3, dropout=0.3, seed=1, attention_axes=2),
        random=True,
    ),
    *_attention(
        MULTI_HEAD,
        options(num_heads=2, key_dim=3, sliding_window=4),
        options(num_heads=2, key_dim=3, use_gate=True),
        spatial=1,
    ),
    *_attention(
        MULTI_HEAD,
        options(num_heads=2, key_dim=3),
        options(num_heads=2, key_dim=3, sliding_window=3),
        of_call={"use_causal_mask": True},
        spatial=1,
    ),
    *_attention(
        GROUPED,
        options(head_dim=3, num_query_heads=4, num_key_value_heads=2),
        options(head_dim=2, num_query_heads=3, num_key_value_heads=1, use_gate=True),
        spatial=1,
    ),
    *_attention(
        GROUPED,
        options(head_dim=2, num_query_heads=2, num_key_value_heads=1, dropout=0.2, seed=1),
        of_call={"use_causal_mask": True},
        spatial=1,
        random=True,
    ),
    *layer(
        layers.Attention, options(use_scale=True), spatial=1, inputs=3, skips=False, exact=False
    ),
    *layer(layers.Attention, options(use_scale=False), inputs=2, skips=False, exact=False),
    *layer(
        layers.Attention,
        options(dropout=0.3, seed=1),
        spatial=1,
        inputs=2,
        skips=False,
        exact=False,
        random=True,
    ),
    operation(
        "dot_product_attention",
        lambda x: _of_channels(ops.dot_product_attention(*(_of_heads(x, n) for n in (4, 2, 2)))),
        "of 4, 2, 2 heads",
        spatial=1,
        skips=False,
        exact=False,
    ),
    operation(
        "dot_product_attention",
        lambda x: _of_channels(
            ops.dot_product_attention(
                *(_of_heads(x, 3) for _ in range(3)), scale=0.4, is_causal=True
            )
        ),
        "scale=0.4, is_causal=True",
        spatial=1,
        skips=False,
        exact=False,
    ),
]
"""Cases of attention between the pixels of an image, or of two."""

NOISE = [
    *layer(
        layers.Dropout,
        options(rate=0.4, seed=1),
        options(rate=0.4, noise_shape=(None, None, None, 1), seed=1),
        random=True,
        skips=False,
    ),
    *of_rank("SpatialDropoutND", options(rate=0.4, seed=1), random=True),
    *layer(
        layers.GaussianNoise, options(stddev=0.3, seed=1), random=True, skips=False, exact=False
    ),
    *layer(
        layers.GaussianDropout, options(rate=0.3, seed=1), random=True, skips=False, exact=False
    ),
    *layer(
        layers.AlphaDropout,
        options(rate=0.3, seed=1),
        options(rate=0.3, noise_shape=(None, None, None, 1), seed=1),
        random=True,
        skips=False,
        exact=False,
    ),
    *layer(
        layers.AlphaDropout,
        options(rate=0.3, noise_shape=(None, 1, 1, 4), seed=1),
        random=True,
        exact=False,
    ),
]

WRAPPED = [
    *(
        Case(
            "layers.SpectralNormalization",
            lambda x, w=wrapped, n=iterations: layers.SpectralNormalization(w(), n)(x),
            f"{wrapped().__class__.__name__}, power_iterations={iterations}",
            exact=False,
        )
        for wrapped, iterations in (
            (lambda: layers.Conv2D(5, 3, padding="same"), 1),
            (lambda: layers.Dense(3), 2),
            (lambda: layers.Conv2DTranspose(3, 2, strides=2), 1),
        )
    ),
    *(
        Case(
            "layers.TimeDistributed",
            lambda x, wrapped=wrapped: layers.TimeDistributed(wrapped())(x),
            wrapped().__class__.__name__,
            exact=False,
            fixed=True,
        )
        for wrapped in (
            lambda: layers.Dense(3, activation="softmax"),
            layers.LayerNormalization,
            layers.ReLU,
        )
    ),
]


SHAPED = [
    Case(
        "layers.Reshape",
        lambda x: layers.Reshape((11, 9, 4))(
            layers.Permute((1, 2, 4, 3))(layers.Reshape((11, 9, 2, 2))(x))
        ),
        "channel shuffle",
        fixed=True,
    ),
    Case(
        "layers.Reshape",
        lambda x: ops.max(layers.Reshape((-1, 9, 2, 2))(x), -1),
        "(-1, 9, 2, 2)",
        fixed=True,
    ),
    Case(
        "layers.EinsumDense",
        lambda x: ops.max(
            layers.EinsumDense("abcd,def->abcef", (None, None, 2, 3), bias_axes="ef")(x), 3
        ),
        "abcd,def->abcef",
        exact=False,
    ),
]

PIXELS_ENLARGED = [
    Case(
        "layers.Concatenate",
        lambda x: layers.Concatenate()(
            [
                layers.UpSampling2D((11, 9))(
                    layers.Conv2D(2, 1)(layers.GlobalMaxPooling2D(keepdims=True)(x))
                ),
                x,
            ]
        ),
        f"pixel enlarged, fixed={fixed}",
        divides=True,
        size=(11, 9),
        fixed=fixed,
        skips=False,
    )
    for fixed in (False, True)
] + [
    Case(
        "layers.Add",
        lambda x: layers.Add()(
            [x, layers.UpSampling2D((11, 9))(layers.GlobalMaxPooling2D(keepdims=True)(x))]
        ),
        "pixel enlarged",
        divides=True,
        size=(11, 9),
        skips=False,
    )
]

WHOLE = [
    *layer(layers.Flatten, size=(5, 4), fixed=True, skips=False, tiles=False),
    *layer(
        layers.Reshape,
        options(target_shape=(20, 4)),
        size=(5, 4),
        fixed=True,
        skips=False,
        tiles=False,
    ),
    *layer(
        layers.Permute, options(dims=(2, 1, 3)), size=(5, 4), fixed=True, skips=False, tiles=False
    ),
]

LAYERS: list[Case] = [
    *CONVOLUTIONS,
    *POOLING,
    *RESAMPLING,
    *ADAPTIVE,
    *NORMALISATION,
    *ACTIVATIONS,
    *MERGING,
    *NOISE,
    *ATTENTION,
    *WRAPPED,
    *SHAPED,
    *PIXELS_ENLARGED,
    *WHOLE,
]
"""Cases of layers."""

UNARY = """
    absolute arccos arcsin arcsinh arctan arctanh cbrt ceil celu cos cosh deg2rad elu erf erfc exp expm1 floor gelu
    hard_shrink hard_sigmoid hard_silu hard_tanh isfinite isinf isnan leaky_relu log log10 log1p log2 log_sigmoid
    hard_swish swish
    nan_to_num negative rad2deg reciprocal relu relu6 round rsqrt selu sigmoid sign silu sin sinc sinh soft_shrink
    softplus softsign sparse_sigmoid sparse_plus sqrt square squareplus tan tanh tanh_shrink trunc ones_like zeros_like
    logical_not copy stop_gradient abs fabs i0 signbit isposinf isneginf isreal conj conjugate real imag angle erfinv
"""
"""Operations on one image, element by element; all are defined between 0.1 and 0.9."""

BINARY = """
    add arctan2 divide divide_no_nan equal floor_divide fmax fmin fmod greater greater_equal heaviside hypot isclose
    less less_equal logaddexp logaddexp2 logical_and logical_or logical_xor maximum minimum mod multiply not_equal
    power subtract true_divide
"""
"""Operations on two images, element by element."""


def _whole(x: Any) -> Any:
    """Return an image of integers."""
    return ops.cast(ops.clip(8.0 * x, -100.0, 100.0), "int32")


ELEMENTWISE: list[Case] = [
    *(operation(name, getattr(ops, name), positive=True, exact=False) for name in UNARY.split()),
    *(
        operation(name, getattr(ops, name), positive=True, inputs=2, exact=False)
        for name in BINARY.split()
    ),
    operation("arccosh", lambda x: ops.arccosh(1.5 + x), positive=True, exact=False),
    operation("cast", lambda x: ops.cast(x, "float32"), "'float32'", exact=False),
    operation("convert_to_tensor", ops.convert_to_tensor),
    operation("exp2", ops.exp2, positive=True, exact=False, float64=False),
    operation("clip", lambda x: ops.clip(x, -0.5, 0.7), "-0.5, 0.7", exact=False),
    operation("saturate_cast", lambda x: ops.saturate_cast(x, "int32"), "'int32'"),
    operation("threshold", lambda x: ops.threshold(x, 0.2, -1.0), "0.2, -1.0", exact=False),
    operation("where", lambda x, y: ops.where(ops.greater(x, y), x, y), inputs=2),
    operation("select", lambda x, y: ops.select([x > y, x > 0.0], [x, y], 0.5), inputs=2),
    operation("full_like", lambda x: ops.full_like(x, 2.0), "2.0"),
    operation("ldexp", lambda x: ops.ldexp(x, ops.cast(ops.ones_like(x), "int32")), exact=False),
    *(
        operation(name, lambda x, y, n=name: getattr(ops, n)(_whole(x), _whole(y)), inputs=2)
        for name in ["bitwise_and", "bitwise_or", "bitwise_xor", "gcd", "lcm"]
    ),
    *(
        operation(name, lambda x, n=name: getattr(ops, n)(_whole(x)))
        for name in ("bitwise_invert", "bitwise_not")
    ),
    *(
        operation(name, lambda x, n=name: getattr(ops, n)(_whole(x), 2), "2")
        for name in ["bitwise_left_shift", "bitwise_right_shift", "left_shift", "right_shift"]
    ),
]
"""Cases of elementwise operations, which one rule computes."""


def _pad(widths: Sequence[tuple[int, int]], *mode: Any, **traits: Any) -> Case:
    note = ", ".join(map(repr, (tuple(widths), *mode)))
    return operation("pad", lambda x: ops.pad(x, ((0, 0), *widths), *mode), note, **traits)


SELECTION: list[Case] = [
    operation("get_item", lambda x: x[:, 1:-1, ::2], ":, 1:-1, ::2"),
    operation("get_item", lambda x: x[:, 2::3, :-2, ::-1], ":, 2::3, :-2, ::-1"),
    operation("get_item", lambda x: x[:, -7:9, 2:6, 1:3], ":, -7:9, 2:6, 1:3", size=(11, 9)),
    operation("get_item", lambda x: x[:, ::-1], ":, ::-1", skips=False),
    operation("get_item", lambda x: x[:, 3:, :], ":, 3:, :", spatial=1),
    operation("get_item", lambda x: x[:, 1:, :-1, ::2], ":, 1:, :-1, ::2", spatial=3),
    operation("flip", lambda x: ops.flip(x, 1), "1", skips=False),
    operation("flip", lambda x: ops.flip(x, (2, -1)), "(2, -1)", skips=False),
    operation("flip", lambda x: ops.flip(x, (1, 2, 3)), "(1, 2, 3)", spatial=3, skips=False),
    operation("fliplr", ops.fliplr, skips=False),
    operation("repeat", lambda x: ops.repeat(x, 2, 1), "2, 1"),
    operation("repeat", lambda x: ops.repeat(x, 3, -2), "3, -2"),
    operation("repeat", lambda x: ops.repeat(x, 2, -1), "2, -1"),
    operation("repeat", lambda x: ops.repeat(x, [1, 2, 0, 3], -1), "[1, 2, 0, 3], -1"),
    operation("repeat", lambda x: ops.repeat(x, 2, 3), "2, 3", spatial=3),
    operation("tile", lambda x: ops.tile(x, 2), "2"),
    operation("tile", lambda x: ops.tile(x, (1, 1, 1, 3)), "(1, 1, 1, 3)"),
    operation("roll", lambda x: ops.roll(x, 1, -1), "1, -1"),
    _pad(((1, 2), (0, 3), (0, 0))),
    _pad(((1, 2), (0, 3), (2, 1)), "constant", 2.0),
    _pad(((13, 0), (0, 12), (0, 0)), "constant", -1),
    _pad(((1, 2), (0, 3), (0, 0)), "reflect"),
    _pad(((10, 10), (3, 0), (1, 2)), "reflect"),
    _pad(((1, 2), (0, 3), (0, 0)), "symmetric"),
    _pad(((11, 11), (9, 4), (4, 1)), "symmetric"),
    _pad(((3, 2), (0, 0)), "reflect", spatial=1),
    _pad(((3, 2), (0, 1), (2, 0), (0, 0)), "reflect", spatial=3),
    operation("image.extract_patches", lambda x: ops.image.extract_patches(x, 2), "2"),
    operation(
        "image.extract_patches",
        lambda x: ops.image.extract_patches(x, (3, 2), (2, 1), padding="same"),
        "(3, 2), (2, 1), padding='same'",
    ),
    operation(
        "image.extract_patches",
        lambda x: ops.image.extract_patches(x, 2, 1, 2),
        "2, 1, 2",
    ),
    operation(
        "image.extract_patches",
        lambda x: ops.image.extract_patches(x, (2, 2, 1), padding="same"),
        "(2, 2, 1), padding='same'",
        spatial=3,
    ),
    operation("depth_to_space", lambda x: ops.depth_to_space(x, 2), "2"),
    operation("space_to_depth", lambda x: ops.space_to_depth(x, 2), "2", size=(48, 60)),
    operation("space_to_depth", lambda x: ops.space_to_depth(x, 3), "3", size=(60, 48)),
]
"""Cases of operations that copy pixels."""


def _kernel(*shape: int) -> np.ndarray:
    return np.random.default_rng(4).integers(-1, 2, shape).astype(keras.config.floatx())


def _standardised(x: Any) -> Any:
    """Return a convolution with a kernel computed from weights and the pooled image."""
    weights = layers.Dense(3 * 3 * 4 * 4)(layers.GlobalAveragePooling2D()(x))
    kernel = ops.reshape(ops.mean(weights, 0), (3, 3, 4, 4))
    kernel = (kernel - ops.mean(kernel, (0, 1, 2))) / (ops.std(kernel, (0, 1, 2)) + 0.1)
    return ops.conv(x, kernel, padding="same")


WINDOWED: list[Case] = [
    operation("conv", lambda x: ops.conv(x, _kernel(3, 3, 4, 5), padding="same"), "same"),
    operation("conv", lambda x: ops.conv(x, _kernel(3, 2, 4, 5), (2, 1)), "strides=(2, 1)"),
    operation(
        "conv",
        lambda x: ops.conv(x, _kernel(3, 3, 4, 5), padding="same", dilation_rate=2),
        "dilation_rate=2",
    ),
    operation("conv", lambda x: ops.conv(x, _kernel(3, 4, 5), 2), "strides=2", spatial=1),
    operation("conv", lambda x: ops.conv(x, _kernel(3, 2, 1, 4, 5)), spatial=3),
    operation("conv", _standardised, "kernel of the graph", exact=False),
    operation(
        "depthwise_conv", lambda x: ops.depthwise_conv(x, _kernel(3, 3, 4, 2), padding="same")
    ),
    operation(
        "separable_conv",
        lambda x: ops.separable_conv(x, _kernel(3, 3, 4, 2), _kernel(1, 1, 8, 3), strides=2),
    ),
    operation(
        "adaptive_average_pool",
        lambda x: ops.reshape(ops.adaptive_average_pool(x, (2, 3)), (-1, 24)),
        "(2, 3)",
        fixed=True,
        exact=False,
        skips=False,
        saves=False,  # Keras loads the output size as a list, which it cannot add to a tuple
    ),
    operation(
        "adaptive_max_pool",
        lambda x: ops.reshape(ops.adaptive_max_pool(x, (2, 3)), (-1, 24)),
        "(2, 3)",
        fixed=True,
        skips=False,
        saves=False,
    ),
    operation(
        "broadcast_to",
        lambda x: x * ops.broadcast_to(ops.max(x, (1, 2), keepdims=True), (2, 11, 9, CHANNELS)),
        "pooled image",
        divides=True,
        fixed=True,
        skips=False,
    ),
    operation("max_pool", lambda x: ops.max_pool(x, 2), "2"),
    operation("max_pool", lambda x: ops.max_pool(x, (3, 2), 1, "same"), "(3, 2), 1, 'same'"),
    operation("average_pool", lambda x: ops.average_pool(x, 2), "2", exact=False),
    operation(
        "average_pool", lambda x: ops.average_pool(x, 3, 2, "same"), "3, 2, 'same'", exact=False
    ),
]
"""Cases of operations with a window."""

MATRIX = np.random.default_rng(0).integers(-3, 4, (CHANNELS, 3)).astype("float32")

OPERATIONS: list[Case] = [
    operation("softmax", lambda x: ops.softmax(x), exact=False),
    operation("log_softmax", lambda x: ops.log_softmax(x), exact=False),
    operation("sparsemax", lambda x: ops.sparsemax(x), exact=False),
    operation("multiply", lambda x: x * np.array([0.5, 1.5, -2.0, 1.0]), "array per channel"),
    operation(
        "multiply",
        lambda x: x * ops.max(x, (1, 2), keepdims=True),
        "pooled image",
        divides=True,
    ),
    operation(
        "mean", lambda x: ops.mean(x, -1, keepdims=True), "axis=-1, keepdims=True", exact=False
    ),
    operation(
        "max", lambda x: ops.max(x, -1, keepdims=True), "axis=-1, keepdims=True", divides=True
    ),
    operation("mean", lambda x: ops.mean(x, (1, 2)), "axis=(1, 2)", exact=False),
    operation("max", lambda x: ops.max(x, (2, 1)), "axis=(2, 1)", divides=True),
    *(
        operation(
            name,
            lambda x, n=name, o=o: getattr(ops, n)(x, **o),
            _note(o),
            exact=name in ("sum", "max", "min", "amax", "amin"),
            divides=name in ("max", "min", "amax", "amin"),
        )
        for name in ("sum", "mean", "max", "min", "std", "var", "logsumexp", "amax", "amin")
        for o in (
            options(axis=-1),
            options(axis=(1, 2), keepdims=True),
            options(axis=(1, 2, 3)),
        )
    ),
    operation("std", lambda x: x - ops.std(x, (0, 1, 2), keepdims=True), "of a batch", exact=False),
    operation("min", lambda x: ops.min(x, (1, 2)), "axis=(1, 2)", divides=True),
    *(
        operation(
            "prod",
            lambda x, o=o: ops.prod(1 + 0.01 * ops.tanh(x), **o),  # whose product is a number
            _note(o),
            exact=False,
        )
        for o in (
            options(axis=-1),
            options(axis=(1, 2), keepdims=True),
            options(axis=(1, 2, 3)),
        )
    ),
    operation("prod", lambda x: ops.prod(ops.maximum(x, 0.0), (1, 2)), "with zeros", exact=False),
    operation("all", lambda x: ops.all(x > -1.0, (1, 2)), "axis=(1, 2)"),
    operation("all", lambda x: ops.all(x > -1.0, -1, keepdims=True), "axis=-1"),
    operation("any", lambda x: ops.any(x > 1.0, (1, 2), keepdims=True), "axis=(1, 2)"),
    operation("any", lambda x: ops.any(x > 1.0, -1), "axis=-1"),
    operation("count_nonzero", lambda x: ops.count_nonzero(x > 0.0, (1, 2)), "axis=(1, 2)"),
    operation("count_nonzero", lambda x: ops.count_nonzero(x > 0.0, -1), "axis=-1"),
    operation("moments", lambda x: ops.moments(x, [1, 2]), "axes=[1, 2]", exact=False),
    operation("moments", lambda x: ops.moments(x, [-1], keepdims=True), "axes=[-1]", exact=False),
    operation("norm", lambda x: ops.norm(x, axis=-1, keepdims=True), "axis=-1", exact=False),
    operation("norm", lambda x: ops.norm(x, ord=1, axis=-1), "ord=1, axis=-1", exact=False),
    operation("norm", lambda x: ops.norm(x, axis=(1, 2)), "axis=(1, 2)", exact=False),
    operation("logsumexp", lambda x: x - ops.logsumexp(x, -1, keepdims=True), exact=False),
    operation("argmax", lambda x: ops.argmax(x, -1), "axis=-1"),
    operation("argmin", lambda x: ops.argmin(x, -1, keepdims=True), "axis=-1, keepdims=True"),
    operation("argsort", lambda x: ops.argsort(x, -1), "axis=-1"),
    operation("sort", lambda x: ops.sort(x, -1), "axis=-1"),
    operation("top_k", lambda x: ops.top_k(x, 2), "2"),
    operation("one_hot", lambda x: ops.one_hot(ops.argmax(x, -1), 4), "of argmax"),
    operation("cumsum", lambda x: ops.cumsum(x, -1), "axis=-1"),
    operation("cumprod", lambda x: ops.cumprod(x, 3), "axis=3", exact=False),
    operation("diff", lambda x: ops.diff(x), "axis=-1"),
    operation("take", lambda x: ops.take(x, [0, 2, 2], axis=-1), "[0, 2, 2], axis=-1"),
    operation("take", lambda x: ops.take(x, 1, axis=-1), "1, axis=-1"),
    operation(
        "take_along_axis",
        lambda x: ops.take_along_axis(x, ops.argsort(x, -1), axis=-1),
        "of argsort",
    ),
    operation("glu", lambda x: ops.glu(x), exact=False),
    operation("median", lambda x: ops.median(x, -1, keepdims=True), "axis=-1", exact=False),
    operation("rms_normalization", lambda x: ops.rms_normalization(x), exact=False),
    operation("layer_normalization", lambda x: ops.layer_normalization(x), exact=False),
    operation(
        "batch_normalization",
        lambda x: ops.batch_normalization(x, np.arange(4.0), np.arange(4.0) + 1, -1),
        "constants",
        exact=False,
    ),
    operation("matmul", lambda x: ops.matmul(x, MATRIX), "matrix"),
    operation("matmul", lambda x: ops.matmul(x, MATRIX[:, 0]), "vector"),
    operation(
        "matmul",
        lambda x: ops.matmul(
            x, layers.Reshape((1, 4, 2))(layers.Dense(8)(layers.GlobalMaxPooling2D()(x)))
        ),
        "matrix per image",
        exact=False,
    ),
    operation("dot", lambda x: ops.dot(x, MATRIX), "matrix"),
    operation("tensordot", lambda x: ops.tensordot(x, MATRIX, 1), "matrix, 1"),
    operation(
        "tensordot", lambda x: ops.tensordot(x, MATRIX, axes=[[3], [0]]), "matrix, [[3], [0]]"
    ),
    operation("einsum", lambda x: ops.einsum("nhwc,cd->nhwd", x, MATRIX), "nhwc,cd->nhwd"),
    operation("einsum", lambda x: ops.einsum("...c,cd->...d", x, MATRIX), "...c,cd->...d"),
    operation("einsum", lambda x, y: ops.einsum("nhwc,nhwc->nhw", x, y), "two images", inputs=2),
    operation(
        "einsum",
        lambda x: ops.einsum("nhwc,nc->nhwc", x, layers.GlobalMaxPooling2D()(x)),
        "image, vector",
        divides=True,
    ),
    operation("stack", lambda x, y: ops.max(ops.stack([x, y], -1), -1), "axis=-1", inputs=2),
    operation("unstack", lambda x: ops.expand_dims(ops.unstack(x, axis=-1)[2], -1), "axis=-1"),
    operation(
        "expand_dims", lambda x: ops.expand_dims(ops.max(x, -1), -1), "axis=-1", divides=True
    ),
    operation(
        "squeeze",
        lambda x: ops.squeeze(ops.max(x, -1, keepdims=True), -1),
        "axis=-1",
        divides=True,
    ),
    operation(
        "reshape",
        lambda x: ops.reshape(
            ops.transpose(ops.reshape(x, (-1, 11, 9, 2, 2)), (0, 1, 2, 4, 3)), (-1, 11, 9, 4)
        ),
        "channel shuffle",
        fixed=True,
    ),
    operation(
        "swapaxes",
        lambda x: ops.sum(ops.swapaxes(ops.stack([x, 2 * x], -1), -1, -2), -2),
        "axes of channels",
    ),
    operation(
        "moveaxis",
        lambda x: ops.sum(ops.moveaxis(ops.stack([x, 2 * x], -1), 3, 4), -2),
        "axes of channels",
    ),
    operation("digitize", lambda x: ops.digitize(x, np.array([-1.0, 0.0, 1.0])), "three bins"),
    operation("concatenate", lambda x, y: ops.concatenate([x, y], -1), inputs=2),
    operation("normalize", ops.normalize, exact=False, float64=False),
    operation("split", lambda x: ops.split(x, 2, axis=-1), "2, axis=-1"),
    operation("get_item", lambda x: x[..., 1:3], "..., 1:3"),
    operation("get_item", lambda x: x[:, :, :, ::2], ":, :, :, ::2"),
    *SELECTION,
    *WINDOWED,
]
"""Cases of other operations."""

CASES: list[Case] = [*LAYERS, *OPERATIONS, *ELEMENTWISE]

_TEXT = "is for text, categories or sound"
_SEQUENCE = "carries a state from one element of a sequence to the next"
_AUGMENTS = "changes whole images at random: apply it to the data with dataset.map(...)"
_SUPPORTS = "is no computation of its own"
_OVER_PIXELS = "compares or orders the pixels of a whole image"
_LOSSES = "compares with labels: use the loss of keras.losses"
_MATRICES = "treats the last two axes of a tensor as matrices"
_MAKES = "makes a tensor from numbers, not from an image"
_BATCH = "joins axes of which one is N, or writes at positions"
_FOREIGN = "runs a model of another library"

NOT_ON_IMAGES: dict[str, str] = {}
"""Public layers and operations that no image needs, each with the reason."""


def _leave_out(reason: str, names: str) -> None:
    NOT_ON_IMAGES.update(dict.fromkeys(names.split(), reason))


_leave_out(
    _TEXT,
    """layers.CategoryEncoding layers.Discretization layers.Embedding layers.HashedCrossing layers.Hashing
    layers.IntegerLookup layers.MelSpectrogram layers.ReversibleEmbedding layers.STFTSpectrogram layers.StringLookup
    layers.TextVectorization""",
)
_leave_out(
    _SEQUENCE,
    """layers.Bidirectional layers.ConvLSTM1D layers.ConvLSTM2D layers.ConvLSTM3D layers.GRU layers.GRUCell
    layers.LSTM layers.LSTMCell layers.Masking layers.RNN layers.SimpleRNN layers.SimpleRNNCell
    layers.StackedRNNCells""",
)
_leave_out(
    _SUPPORTS, "layers.InputLayer layers.InputSpec layers.Layer layers.Wrapper layers.Pipeline"
)
_leave_out(_FOREIGN, "layers.FlaxLayer layers.JaxLayer layers.TFSMLayer layers.TorchModuleWrapper")
_leave_out(
    _AUGMENTS,
    """layers.AugMix layers.AutoContrast layers.ContrastLimitedAdaptiveHistogramEqualization layers.CutMix
    layers.Equalization layers.MaxNumBoundingBoxes layers.MixUp layers.RandAugment layers.RandomBrightness
    layers.RandomColorDegeneration layers.RandomColorJitter layers.RandomContrast layers.RandomCrop
    layers.RandomElasticTransform layers.RandomErasing layers.RandomFlip layers.RandomGaussianBlur
    layers.RandomGrayscale layers.RandomHue layers.RandomInvert layers.RandomPerspective layers.RandomPosterization
    layers.RandomRotation layers.RandomSaturation layers.RandomSharpness layers.RandomShear layers.RandomTranslation
    layers.RandomZoom layers.Solarization""",
)
_leave_out(
    _OVER_PIXELS,
    """layers.AdditiveAttention layers.Dot ops.cdist ops.cross ops.corrcoef ops.correlate ops.outer
    ops.inner ops.kron ops.vdot ops.nanargmax ops.nanargmin ops.nancumprod ops.nancumsum ops.nanmax ops.nanmean
    ops.nanmedian ops.nanmin ops.nanpercentile ops.nanprod ops.nanquantile ops.nanstd ops.nansum ops.nanvar
    ops.percentile ops.quantile ops.ptp ops.average ops.trapezoid ops.histogram ops.bincount ops.unique
    ops.searchsorted ops.nonzero ops.isin ops.rot90 ops.flipud ops.argpartition ops.psnr""",
)
_leave_out(
    _TEXT, "ops.ctc_decode ops.ctc_loss ops.extract_sequences ops.stft ops.istft ops.rfft ops.irfft"
)
_leave_out(
    _LOSSES,
    """ops.binary_crossentropy ops.categorical_crossentropy ops.sparse_categorical_crossentropy ops.in_top_k""",
)
_leave_out(
    _MATRICES,
    """ops.cholesky ops.cholesky_inverse ops.det ops.diag ops.diagflat ops.diagonal ops.eig ops.eigh ops.fft ops.fft2
    ops.ifft2 ops.inv ops.logdet ops.lstsq ops.lu_factor ops.matrix_rank ops.pinv ops.qr ops.slogdet ops.solve
    ops.solve_triangular ops.svd ops.trace ops.tril ops.triu ops.vander""",
)
_leave_out(
    _MAKES,
    """ops.arange ops.array ops.bartlett ops.blackman ops.empty ops.empty_like ops.eye ops.full ops.geomspace
    ops.hamming ops.hanning ops.identity ops.kaiser ops.linspace ops.logspace ops.meshgrid ops.ones ops.tri
    ops.zeros""",
)
_leave_out(
    _SUPPORTS,
    """ops.allclose ops.associative_scan ops.cond ops.convert_to_numpy ops.custom_gradient ops.dtype ops.fori_loop
    ops.is_tensor ops.jvp ops.map ops.ndim ops.scan ops.shape ops.size ops.switch ops.vectorize ops.vectorized_map
    ops.while_loop""",
)
_leave_out(
    _BATCH,
    """layers.RepeatVector ops.append ops.transpose
    ops.array_split ops.dsplit ops.dstack ops.hsplit ops.hstack ops.multi_hot ops.polar
    ops.ravel ops.rearrange ops.scatter ops.scatter_update ops.segment_max ops.segment_min ops.segment_prod
    ops.segment_sum ops.slice_update ops.unravel_index ops.view ops.view_as_complex ops.view_as_real ops.vsplit
    ops.vstack ops.fold ops.unfold""",
)
_leave_out(
    "sums over the whole output for the loss: regularise weights", "layers.ActivityRegularization"
)
_leave_out(
    "fails in functional models of Keras 3.15: tests/network/rules/test_windowed_operations.py compares the rule with "
    "the operation itself",
    "ops.conv_transpose",
)
_leave_out("has no gradient in TensorFlow", "ops.nextafter")
_leave_out("selects by start and shape, N included: use x[:, a:b]", "ops.slice")

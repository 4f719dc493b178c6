"""Operations of `keras.ops` in a functional model: `x * 0.5`, `ops.relu(x)`, `ops.mean(x, (1, 2))`, `x[..., :3]`."""

from __future__ import annotations

from typing import Any

import keras
from keras.src.ops import core, math, nn, numpy

from tfbig.network.rules.call import Call, Slot
from tfbig.network.rules.nodes import check_broadcast, last_axis, per_pixel
from tfbig.network.rules.pooling import maximum_of_image, mean_of_image, read_whole, sum_of_image
from tfbig.network.rules.registry import rule

NUMBERWISE = """
    Absolute Add Arccos Arccosh Arcsin Arcsinh Arctan Arctan2 Arctanh Cast Cbrt Ceil Celu Clip Copy Cos Cosh Deg2rad
    Divide DivideNoNan Elu Equal Erf Erfc Exp Exp2 Expm1 Floor FloorDivide Fmax Fmin Gelu Greater GreaterEqual
    HardShrink HardSigmoid HardSilu HardTanh Heaviside Hypot Isfinite Isinf Isnan LeakyRelu Less LessEqual Log Log10
    Log1p Log2 LogSigmoid Logaddexp LogicalAnd LogicalNot LogicalOr LogicalXor Maximum Minimum Mod Multiply NanToNum
    Negative NotEqual OnesLike Power Rad2deg Reciprocal Relu Relu6 Round Rsqrt SaturateCast Selu Sigmoid Sign Silu Sin
    Sinc Sinh SoftShrink Softplus Softsign SparsePlus SparseSigmoid Sqrt Square Squareplus StopGradient Subtract Tan
    Tanh TanhShrink Threshold TrueDivide Trunc Where ZerosLike
"""
"""Every number of the result comes from the numbers at its own place."""

STOPS = "Ceil Floor OnesLike Round StopGradient Trunc ZerosLike"
"""No gradient flows through these."""

CHANNELWISE = "LogSoftmax Normalize RMSNorm Softmax Sparsemax"
"""The same for every pixel, where `axis` is that of the channels."""


def operations(names: str) -> list[type]:
    """Classes of `keras.ops`, by name."""
    modules = (core, math, nn, numpy)
    return [vars(m)[name] for name in names.split() for m in modules if name in vars(m)]


@rule(*operations(NUMBERWISE))
def numberwise(call: Call) -> int:
    check_broadcast(call)
    others = [a for a in keras.tree.flatten(call.arguments) if not isinstance(a, Slot)]
    scalars = all(isinstance(a, (int, float, str, type(None))) for a in others)
    stops = type(call.layer).__name__ in STOPS.split()
    return per_pixel(call, pixelwise=scalars and len(call.inputs) == 1, stops=stops)


@rule(*operations(CHANNELWISE))
def channelwise(call: Call) -> int:
    axis = getattr(call.layer, "axis", -1)
    if not last_axis(call, axis):
        call.refuse(f"over axis={axis} needs the whole image; use axis=-1.")
    check_broadcast(call)
    return per_pixel(call)


@rule(*operations("Amax Amin Max Mean Min Std Sum Var"))
def reduction(call: Call) -> int:
    """Over the channels, or over all pixels of an image."""
    kind, axis = type(call.layer).__name__, call.layer.axis
    given = range(call.rank) if axis is None else [axis] if isinstance(axis, int) else axis
    axes = sorted(a % call.rank for a in given)
    if getattr(call.layer, "initial", None) is not None:
        call.refuse("has an initial value; use keras.ops.maximum on the result.")
    if axes == [call.rank - 1] and call.layer.keepdims:
        return per_pixel(call)
    over_image = {"Mean": mean_of_image, "Sum": sum_of_image}
    over_image |= {"Max": maximum_of_image, "Amax": maximum_of_image}
    if axes != list(range(1, call.rank - 1)) or kind not in over_image:
        call.refuse(
            f"over axis={axis}, keepdims={call.layer.keepdims} has no strip form; use axis=-1 with keepdims=True, or "
            f"for mean, sum and max axis={tuple(range(1, call.rank - 1))}."
        )
    return over_image[kind](call, call.layer.keepdims)


@rule(*operations("Concatenate Split"))
def along_channels(call: Call) -> list[int]:
    if not last_axis(call, call.layer.axis):
        call.refuse(
            f"runs strip by strip over the channels, axis=-1; received axis={call.layer.axis}."
        )
    if len(call.images) < len(call.inputs):
        call.refuse("joins images and vectors; it needs images [N, rows, ..., C] alone.")
    return _each(call)


@rule(*operations("GetItem"))
def channels_of(call: Call) -> list[int]:
    """`x[..., a:b]`."""
    key = keras.tree.flatten(call.arguments)[1:]
    *places, last = key or [None]
    everything = [Ellipsis, slice(None)]
    whole = all(p in everything for p in places) and (Ellipsis in places or len(key) == call.rank)
    if not whole or not isinstance(last, slice):
        call.refuse("takes a part of the image; strips can take channels alone, as in x[..., :3].")
    return _each(call)


rule(*operations("Reshape Transpose"))(read_whole)


def _each(call: Call) -> list[int]:
    """One node for every output."""
    return [
        call.local(
            _part(call, i),
            channels=int(output.shape[-1]),
            name=f"part_{i}" if len(call.outputs) > 1 else "",
        )
        for i, output in enumerate(call.outputs)
    ]


def _part(call: Call, position: int) -> Any:
    return lambda x, w, strip: keras.tree.flatten(call.run(x)[0])[position]

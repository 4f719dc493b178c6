"""Rules for `keras.ops` in functional models: `x * 0.5`, `ops.relu(x)`, `ops.mean(x, (1, 2))`, `x[..., :3]`."""

from __future__ import annotations

from typing import Any

import keras

from tfbig.network.rules.call import Call, Slot
from tfbig.network.rules.nodes import check_broadcast, last_axis, per_pixel
from tfbig.network.rules.pooling import maximum_of_image, mean_of_image, read_whole, sum_of_image
from tfbig.network.rules.registry import rule
from tfbig.system.keras_internals import operations

ELEMENTWISE = """
    Absolute Add Arccos Arccosh Arcsin Arcsinh Arctan Arctan2 Arctanh Cast Cbrt Ceil Celu Clip ConvertToTensor Copy Cos Cosh
    Deg2rad
    Divide DivideNoNan Elu Equal Erf Erfc Exp Exp2 Expm1 Floor FloorDivide Fmax Fmin Gelu Greater GreaterEqual
    HardShrink HardSigmoid HardSilu HardTanh Heaviside Hypot Isfinite Isinf Isnan LeakyRelu Less LessEqual Log Log10
    Log1p Log2 LogSigmoid Logaddexp LogicalAnd LogicalNot LogicalOr LogicalXor Maximum Minimum Mod Multiply NanToNum
    Negative NotEqual OnesLike Power Rad2deg Reciprocal Relu Relu6 Round Rsqrt SaturateCast Selu Sigmoid Sign Silu Sin
    Sinc Sinh SoftShrink Softplus Softsign SparsePlus SparseSigmoid Sqrt Square Squareplus StopGradient Subtract Tan
    Tanh TanhShrink Threshold TrueDivide Trunc Where ZerosLike
"""
"""Operations that compute each element from the elements at the same position."""

STOPS = "Ceil Floor OnesLike Round StopGradient Trunc ZerosLike"
"""Operations without a gradient."""

CHANNELWISE = "LogSoftmax Normalize RMSNorm Softmax Sparsemax"
"""Operations that are per pixel if `axis` is the channel axis."""


@rule(*operations(ELEMENTWISE))
def elementwise(call: Call) -> int:
    """Add an elementwise operation."""
    check_broadcast(call)
    constants = [a for a in keras.tree.flatten(call.arguments) if not isinstance(a, Slot)]
    scalars = all(isinstance(a, (int, float, str, type(None))) for a in constants)
    pixelwise = scalars and len(call.inputs) == 1
    stops = type(call.layer).__name__ in STOPS.split()
    return per_pixel(call, pixelwise=pixelwise, stops_gradient=stops, any_channels=scalars)


@rule(*operations(CHANNELWISE))
def channelwise(call: Call) -> int:
    """Add an operation over the channels of each pixel."""
    axis = getattr(call.layer, "axis", -1)
    if not last_axis(call, axis):
        call.refuse(f"over axis={axis} needs the whole image; use axis=-1.")
    check_broadcast(call)
    return per_pixel(call)


@rule(*operations("Amax Amin Max Mean Min Std Sum Var"))
def reduction(call: Call) -> int:
    """Add a reduction over the channels, or over all pixels of an image."""
    kind, axis = type(call.layer).__name__, call.layer.axis
    requested = range(call.rank) if axis is None else [axis] if isinstance(axis, int) else axis
    axes = sorted(a % call.rank for a in requested)
    if getattr(call.layer, "initial", None) is not None:
        call.refuse("has an initial value; use keras.ops.maximum on the result.")
    if axes == [call.rank - 1] and call.layer.keepdims:
        return per_pixel(call)
    over_image = {"Mean": mean_of_image, "Sum": sum_of_image}
    over_image |= {"Max": maximum_of_image, "Amax": maximum_of_image}
    if axes != list(range(1, call.rank - 1)) or kind not in over_image:
        call.refuse(
            f"over axis={axis}, keepdims={call.layer.keepdims} cannot run strip by strip; use axis=-1 with "
            f"keepdims=True, or for mean, sum and max axis={tuple(range(1, call.rank - 1))}."
        )
    return over_image[kind](call, call.layer.keepdims)


@rule(*operations("Concatenate Split"))
def along_channels(call: Call) -> list[int]:
    """Add a concatenation or split of channels."""
    if not last_axis(call, call.layer.axis):
        call.refuse(
            f"only runs strip by strip over the channels, axis=-1; received axis={call.layer.axis}."
        )
    if len(call.images) < len(call.inputs):
        call.refuse("joins images and vectors; expected only images [N, rows, ..., C].")
    return _node_per_output(call)


rule(*operations("Reshape Transpose"))(read_whole)


def _node_per_output(call: Call) -> list[int]:
    """Add one node for every output."""
    return [
        call.local(
            _output(call, i),
            channels=int(output.shape[-1]),
            name=f"part_{i}" if len(call.outputs) > 1 else "",
        )
        for i, output in enumerate(call.outputs)
    ]


def _output(call: Call, position: int) -> Any:
    return lambda x, w, strip: keras.tree.flatten(call.run(x)[0])[position]

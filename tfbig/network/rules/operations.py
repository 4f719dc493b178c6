"""Rules for `keras.ops` in functional models: `x * 0.5`, `ops.relu(x)`, `ops.mean(x, (1, 2))`, `x[..., :3]`."""

from __future__ import annotations

import keras

from tfbig.network.rules.call import Call, Slot
from tfbig.network.rules.channel_shapes import any_channel_shape
from tfbig.network.rules.nodes import check_broadcast, last_axis, per_pixel
from tfbig.network.rules.registry import rule
from tfbig.system.keras_internals import operations

ELEMENTWISE = """
    Abs Absolute Add Angle Arccos Arccosh Arcsin Arcsinh Arctan Arctan2 Arctanh BitwiseAnd BitwiseInvert
    BitwiseLeftShift BitwiseNot BitwiseOr BitwiseRightShift BitwiseXor Cast Cbrt Ceil Celu Clip Conj Conjugate
    ConvertToTensor Copy Cos Cosh Deg2rad Divide DivideNoNan Elu Equal Erf Erfc Erfinv Exp Exp2 Expm1 Fabs Floor
    FloorDivide Fmax Fmin Fmod FullLike Gcd Gelu Greater GreaterEqual HardShrink HardSigmoid HardSilu HardTanh
    Heaviside Hypot I0 Imag Isclose Isfinite Isinf Isnan Isneginf Isposinf Isreal Lcm Ldexp LeakyRelu LeftShift Less
    LessEqual Log Log10 Log1p Log2 LogSigmoid Logaddexp Logaddexp2 LogicalAnd LogicalNot LogicalOr LogicalXor
    Maximum Minimum Mod Multiply NanToNum Negative Nextafter NotEqual OnesLike Power Rad2deg Real Reciprocal Relu
    Relu6 RightShift Round Rsqrt SaturateCast Select Selu Sigmoid Sign Signbit Silu Sin Sinc Sinh SoftShrink
    Softplus Softsign SparsePlus SparseSigmoid Sqrt Square Squareplus StopGradient Subtract Tan Tanh TanhShrink
    Threshold TrueDivide Trunc Where ZerosLike
"""
"""Operations that compute each element from the elements at the same position."""

STOPS = "Ceil Floor OnesLike Round StopGradient Trunc ZerosLike"
"""Operations without a gradient."""

CHANNELWISE = "LogSoftmax Normalize RMSNorm Softmax Sparsemax"
"""Operations that are per pixel if `axis` is the channel axis."""


@rule(*operations(ELEMENTWISE))
@any_channel_shape
def elementwise(call: Call) -> int:
    """Add an elementwise operation."""
    check_broadcast(call)
    constants = [a for a in keras.tree.flatten(call.arguments) if not isinstance(a, Slot)]
    scalars = all(isinstance(a, (int, float, str, type(None))) for a in constants)
    pixelwise = scalars and len(call.inputs) == 1
    stops = type(call.layer).__name__ in STOPS.split()
    return per_pixel(call, pixelwise=pixelwise, stops_gradient=stops, any_channels=scalars)


@rule(*operations(CHANNELWISE))
@any_channel_shape
def channelwise(call: Call) -> int:
    """Add an operation over the channels of each pixel."""
    axis = getattr(call.layer, "axis", -1)
    if not last_axis(call, axis):
        call.refuse(f"over axis={axis} needs the whole image; use axis=-1.")
    check_broadcast(call)
    return per_pixel(call)

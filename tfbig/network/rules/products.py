"""Rules for products of each pixel with a matrix: `ops.matmul`, `dot`, `tensordot`, `einsum`, and EinsumDense."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import keras
import tensorflow as tf

from tfbig.network.rules import channel_shapes
from tfbig.network.rules.call import Call, Slot
from tfbig.network.rules.channel_shapes import any_channel_shape
from tfbig.network.rules.convolutions import with_lora
from tfbig.network.rules.nodes import per_pixel
from tfbig.network.rules.registry import rule
from tfbig.system import keras_internals
from tfbig.system.keras_internals import operations

HIDDEN = 0x3000
"""First of the characters that stand for the axes of an ellipsis."""


class _Operand:
    """An operand of a product: its shape, and whether it is an image."""

    def __init__(self, call: Call, argument: Any) -> None:
        if isinstance(argument, Slot):
            self.shape = tuple(call.specs[argument.position].shape)
            self.image = call.graph.values[call.inputs[argument.position]].image
        else:
            self.shape, self.image = tuple(argument.shape), False


def _operands(call: Call) -> list[_Operand]:
    arguments, options = call.arguments
    flat = keras.tree.flatten((arguments, options))
    return [_Operand(call, a) for a in flat if isinstance(a, Slot) or hasattr(a, "shape")]


def _product(call: Call, terms: int) -> int:
    """Add the product as a node; each number of the result is a sum of some terms."""
    results = prod(n or 1 for n in call.outputs[0].shape[call.graph.spatial + 1 :])
    return per_pixel(call, operations=2 * terms * results, cheap=False)


@rule(*operations("Matmul"))
@any_channel_shape
def matmul(call: Call) -> int:
    """Add a matrix product over the last axis, or the last two if both are axes of the channels."""
    operands, leading = _operands(call), call.graph.spatial + 1
    first, second = operands
    rank = len(call.outputs[0].shape)
    for position, each in enumerate(operands):
        other = operands[1 - position]
        if not each.image:
            continue
        both = len(each.shape) - leading >= 2  # rows and columns are channels
        if not both and (position == 1 or other.image or len(each.shape) == leading):
            call.refuse(
                f"multiplies shapes {first.shape} and {second.shape} over more than the pixel; expected an image times "
                "a matrix [C, D], or several axes of channels in both."
            )
        if other.image and len(other.shape) != len(each.shape):
            call.refuse(
                f"multiplies images of shapes {first.shape} and {second.shape}; expected equal numbers of axes."
            )
        _check_batch_axes(call, other, len(each.shape))
    if rank < leading:
        call.refuse(f"returns shape {call.outputs[0].shape}, which is no image.")
    return _product(call, first.shape[-1])


def _check_batch_axes(call: Call, operand: _Operand, rank: int) -> None:
    """Raise if a matrix, aligned with an image at the last axis, differs between pixels."""
    if operand.image:
        return
    aligned = (1,) * (rank - len(operand.shape)) + operand.shape
    between = aligned[1 : min(call.graph.spatial + 1, rank - 2)]
    if len(aligned) > rank or any(n != 1 for n in between):
        call.refuse(
            f"multiplies an image by a tensor of shape {operand.shape}, which differs between pixels; expected a "
            "matrix [C, D]."
        )


@rule(*operations("Dot"))
@any_channel_shape
def dot(call: Call) -> int:
    """Add a product over the last axis, with a vector or matrix."""
    return _product(call, _summed(call, [-1]))


@rule(*operations("Tensordot"))
@any_channel_shape
def tensordot(call: Call) -> int:
    """Add a product over axes of the channels."""
    axes = call.layer.axes
    if isinstance(axes, int):
        return _product(call, _summed(call, range(-axes, 0)))
    first = axes[0]
    return _product(call, _summed(call, [first] if isinstance(first, int) else first))


def _summed(call: Call, axes: Sequence[int]) -> int:
    """Return the number of terms of a sum over axes of the channels of an image, times a matrix.

    Raises:
        UnsupportedLayerError: The first operand is no image, the second is one, or `axes` are others.
    """
    first, second = _operands(call)
    if not first.image or second.image or None in second.shape:
        call.refuse(
            f"multiplies shapes {first.shape} and {second.shape}; expected an image times a matrix of known shape. "
            "Use keras.ops.einsum for other products."
        )
    if any(axis % len(first.shape) <= call.graph.spatial for axis in axes):
        call.refuse(f"sums over axes {list(axes)} of the image; strips can only sum over channels.")
    return prod(first.shape[axis] for axis in axes)


@rule(*operations("Einsum"))
@any_channel_shape
def einsum(call: Call) -> int:
    """Add a product that sums over or transposes axes of the channels only."""
    return _product(call, terms_of(call, call.layer.subscripts, _operands(call)))


@rule(keras.layers.EinsumDense)
@any_channel_shape
def einsum_dense(call: Call) -> int:
    """Add an EinsumDense layer that sums over or changes axes of the channels only, with LoRA if it is enabled."""
    layer = call.layer
    if getattr(layer, "quantization_mode", None):
        call.refuse("has quantised weights, which cannot run strip by strip. Use the plain model.")
    image = _Operand(call, Slot(0))
    matrix = _Operand(call, keras_internals.kernel_and_lora(layer)[0])
    terms = terms_of(call, layer.equation, [image, matrix])
    if layer.bias is not None:
        aligned = (1,) * (len(call.outputs[0].shape) - len(layer.bias.shape)) + tuple(
            layer.bias.shape
        )
        if any(n != 1 for n in aligned[: call.graph.spatial + 1]):
            call.refuse(
                f"has bias_axes={layer.bias_axes!r} with one bias for each row or column; use axes of the channels."
            )
    if getattr(layer, "lora_enabled", False):
        return _product_with_lora(call)
    return _product(call, terms)


def _product_with_lora(call: Call) -> int:
    """Add an EinsumDense layer whose kernel LoRA changes, once for all strips."""
    layer, (spec,) = call.layer, call.outputs

    def run(x: list[tf.Tensor], w: Sequence[tf.Tensor], strip: Any) -> tf.Tensor:
        kernel, *bias = w
        y = keras.ops.einsum(layer.equation, channel_shapes.split(call, x)[0], kernel)
        y = y + tf.cast(bias[0], y.dtype) if bias else y
        y = y if layer.activation is None else layer.activation(y)
        return channel_shapes.joined(call, y, spec)

    bias = [] if layer.bias is None else [layer.bias]
    value = call.local(
        run,
        weights=[*keras_internals.kernel_and_lora(layer), *bias],
        channels=prod(channel_shapes.of_spec(call, spec)),
        cheap=False,
        operations=2 * prod(layer.lora_kernel_a.shape[:-1]) * layer.lora_kernel_b.shape[-1],
        prepare=lambda x, w: with_lora(layer, *w),
    )
    return channel_shapes.record(call, value, spec)


def terms_of(call: Call, equation: str, operands: Sequence[_Operand]) -> int:
    """Return the number of terms of each sum of an equation that computes each pixel from the same pixel of the images.

    Args:
        call: The call.
        equation: As of `keras.ops.einsum`, with "->".
        operands: The operands.

    Raises:
        UnsupportedLayerError: It sums over, transposes or repeats spatial axes, or an operand differs between pixels.
    """
    terms, arrow, result = equation.replace(" ", "").partition("->")
    inputs = terms.split(",")
    leading = call.graph.spatial + 1
    if not arrow or len(inputs) != len(operands):
        call.refuse(f"has the equation '{equation}'; expected one term for each operand, and '->'.")
    expanded = [
        _expanded(term, len(each.shape)) for term, each in zip(inputs, operands, strict=True)
    ]
    longest = max(
        (
            len(each.shape) - len(t.replace("...", ""))
            for t, each in zip(inputs, operands, strict=True)
            if "..." in t
        ),
        default=0,
    )
    output = _expanded(
        result, len(result.replace("...", "")) + longest if "..." in result else len(result)
    )
    images = [t for t, each in zip(expanded, operands, strict=True) if each.image]
    pixel = images[0][:leading]
    others = [
        n
        for t, each in zip(expanded, operands, strict=True)
        if not each.image
        for letter, n in zip(t, each.shape, strict=True)
        if letter in pixel[1:] and n != 1
    ]
    separate = all(t[:leading] == pixel and not set(t[leading:]) & set(pixel) for t in images)
    if not separate or others or output[:leading] != pixel or set(output[leading:]) & set(pixel):
        call.refuse(
            f"has the equation '{equation}', which does more than multiply the channels of each pixel; the first "
            f"{leading} axes of images and result must have the same letters, and no matrix the spatial ones."
        )
    sizes = {
        letter: n
        for t, each in zip(expanded, operands, strict=True)
        for letter, n in zip(t, each.shape, strict=True)
        if letter not in output
    }
    return prod(sizes.values())


def _expanded(term: str, rank: int) -> str:
    """Return a term of an equation with one character in place of each axis of the ellipsis, numbered from the last."""
    hidden = rank - len(term.replace("...", ""))
    return term.replace("...", "".join(chr(HIDDEN + n) for n in range(hidden, 0, -1)))

"""Attention that a model writes out, `softmax(scale q k^T) v`, found among its operations by their structure.

Its scores have a number for each pair of tokens, and its heads come before its tokens, so that no operation of it alone
runs on strips. Together they are one attention, which does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from tfbig.system.keras_internals import operations

layers = keras.layers

MATMUL, MULTIPLY, TRANSPOSE, SWAPAXES, SOFTMAX = operations(
    "Matmul Multiply Transpose Swapaxes Softmax"
)
DIVIDE = operations("Divide TrueDivide")
SOFTMAXES = SOFTMAX, layers.Softmax, layers.Activation


class WrittenAttention(keras.Operation):
    """The operations of an attention as one.

    Args:
        scale: Factor of the scores.
        dropout: Dropout layer of the softmax; None without one.
    """

    def __init__(self, scale: float, dropout: Any = None) -> None:
        super().__init__()
        self.scale = scale
        self.dropout = dropout

    def compute_output_spec(self, query: Any, key: Any, value: Any) -> keras.KerasTensor:
        """Return the shape of the queries with the numbers of the values."""
        dtype = keras.backend.result_type(query.dtype, key.dtype, value.dtype)
        return keras.KerasTensor((*query.shape[:-1], value.shape[-1]), dtype)


@dataclass(frozen=True)
class Found:
    """An attention among the calls of a model.

    Args:
        operation: What it computes.
        inputs: Keras tensors of queries, keys and values, `[N, tokens, size]` or `[N, tokens, heads, size]`.
        output: Keras tensor of the result, in the same order of axes.
        calls: The calls that it stands for, in their order.
    """

    operation: WrittenAttention
    inputs: tuple[Any, ...]
    output: Any
    calls: tuple[Any, ...]


def find(calls: Sequence[Any], outputs: Sequence[Any]) -> list[Found]:
    """Return the attentions among calls, as `keras_internals.nodes` gives them, of a model with some outputs."""
    tensors = _Tensors.of(calls, outputs)
    found = (_attention(call, tensors) for call in calls if isinstance(call.operation, MATMUL))
    return [each for each in found if each is not None]


@dataclass
class _Tensors:
    """The calls that make and use each Keras tensor, by its `id`; an output has a further use, None."""

    maker: dict[int, Any] = field(default_factory=dict)
    users: dict[int, list[Any]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, calls: Sequence[Any], outputs: Sequence[Any]) -> _Tensors:
        tensors = cls()
        for call in calls:
            tensors.maker |= {id(t): call for t in call.output_tensors}
            for t in call.arguments.keras_tensors:
                tensors.users[id(t)].append(call)
        for t in outputs:
            tensors.users[id(t)].append(None)
        return tensors

    def made_by(self, tensor: Any, *kinds: Any) -> Any:
        """Return the call of an operation of some kinds that makes a tensor with one use; None if it is another."""
        call = self.maker.get(id(tensor))
        if call is None or len(self.users[id(tensor)]) != 1:
            return None
        return call if type(call.operation) in kinds else None


def _attention(last: Any, tensors: _Tensors) -> Found | None:
    """Return the attention whose product with the values is a call."""
    weights, values = _operands(last)
    if weights is None:
        return None
    dropout = tensors.made_by(weights, layers.Dropout)
    softmax = tensors.made_by(_source(dropout) if dropout else weights, *SOFTMAXES)
    if softmax is None or not _is_over_keys(softmax):
        return None
    if dropout is not None and dropout.operation.noise_shape is not None:
        return None
    scores, scale, scaling = _unscaled(_source(softmax), tensors)
    product = tensors.made_by(scores, MATMUL)
    queries, keys = _operands(product) if product else (None, None)
    if queries is None:
        return None
    parts = [_unscaled(t, tensors) for t in (queries, keys)]
    (queries, by_queries, first), (keys, by_keys, second) = parts
    between = [*first, *second, product, *scaling, softmax, *([dropout] if dropout else []), last]
    operation = WrittenAttention(
        scale * by_queries * by_keys, dropout.operation if dropout else None
    )
    return _in_order_of_tokens(operation, (queries, keys, values), between, tensors)


def _in_order_of_tokens(
    operation: WrittenAttention, inputs: tuple[Any, ...], calls: list[Any], tensors: _Tensors
) -> Found | None:
    """Return an attention with its inputs as they are before their axes are transposed; None if they are others."""
    (output,) = calls[-1].output_tensors
    rank = len(output.shape)
    if rank not in (3, 4):
        return None
    orders = [(0, 1, 2), (0, 2, 1)] if rank == 3 else [(0, 2, 1, 3), (0, 2, 3, 1)]
    sources = []
    for tensor, order in zip(inputs, (orders[0], orders[1], orders[0]), strict=True):
        source, transposing = _untransposed(tensor, order, tensors)
        if source is None:
            return None
        sources.append(source)
        calls = [*transposing, *calls]
    if rank == 4:
        users = tensors.users[id(output)]
        if len(users) != 1 or users[0] is None or _order(users[0]) != (0, 2, 1, 3):
            return None
        calls = [*calls, users[0]]
        (output,) = users[0].output_tensors
    return Found(operation, tuple(sources), output, tuple(calls))


def _is_over_keys(softmax: Any) -> bool:
    """Return whether a call is a softmax over the last axis, without a mask."""
    operation: Any = softmax.operation
    given = [*softmax.arguments.args, *softmax.arguments.kwargs.values()]
    if sum(a is not None for a in given) > 1:
        return False
    if isinstance(operation, layers.Activation):
        return operation.activation is keras.activations.softmax
    return operation.axis in (-1, len(_source(softmax).shape) - 1)


def _operands(product: Any) -> tuple[Any, Any]:
    """Return the operands of a product of two Keras tensors; None for both if one is a constant."""
    found = product.arguments.keras_tensors
    return (found[0], found[1]) if len(found) == 2 else (None, None)


def _source(call: Any) -> Any:
    return call.arguments.keras_tensors[0]


def _unscaled(tensor: Any, tensors: _Tensors) -> tuple[Any, float, list[Any]]:
    """Return a tensor before it is multiplied by numbers, their product, and the calls."""
    factor, calls = 1.0, list[Any]()
    while (call := tensors.made_by(tensor, MULTIPLY, *DIVIDE)) is not None:
        args = [*call.arguments.args, *call.arguments.kwargs.values()]
        numbers = [a for a in args if not isinstance(a, keras.KerasTensor)]
        divides = isinstance(call.operation, tuple(DIVIDE))
        if len(args) != 2 or len(numbers) != 1 or not _is_number(numbers[0]):
            break
        if divides and args[1] is not numbers[0]:
            break
        factor = factor / float(numbers[0]) if divides else factor * float(numbers[0])
        calls, tensor = [call, *calls], _source(call)
    return tensor, factor, calls


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.floating)) and not isinstance(value, bool)


def _untransposed(tensor: Any, order: tuple[int, ...], tensors: _Tensors) -> tuple[Any, list[Any]]:
    """Return the tensor that transposes give another order of axes, and these calls; None if they give others."""
    calls, found = list[Any](), tuple(range(len(order)))
    while found != order:
        call = tensors.made_by(tensor, TRANSPOSE, SWAPAXES, layers.Permute)
        axes = None if call is None else _order(call)
        if axes is None or len(calls) == 2:
            return None, []
        found = tuple(axes[axis] for axis in found)
        calls, tensor = [call, *calls], _source(call)
    return tensor, calls


def _order(call: Any) -> tuple[int, ...] | None:
    """Return the axes of the input of a transpose in the order of its output; None of other calls."""
    operation: Any = call.operation
    rank = len(_source(call).shape)
    if isinstance(operation, layers.Permute):
        return (0, *operation.dims)
    if hasattr(operation, "axis1"):
        axes = list(range(rank))
        a, b = operation.axis1 % rank, operation.axis2 % rank
        axes[a], axes[b] = b, a
        return tuple(axes)
    if type(operation) is not TRANSPOSE:
        return None
    given = getattr(operation, "axes", None)
    return tuple(a % rank for a in given) if given is not None else tuple(range(rank))[::-1]

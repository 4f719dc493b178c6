"""Checks that targets and sample weights have the size of the outputs that they belong to, before a step runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfbig.engine import read_ahead
from tfbig.network.graph import Graph

Labelled = tuple[int, Any, Any]
"""Position of an output, its targets, and its sample weights or None."""


def check(graph: Graph, name: str, inputs: Sequence[Any], labelled: Iterable[Labelled]) -> None:
    """Check the sizes of targets and sample weights, as far as they are known.

    Args:
        graph: Graph of the model, before losses were added.
        name: Name of the model, for messages.
        inputs: Inputs of the model.
        labelled: Outputs with what belongs to them.

    Raises:
        ValueError: One differs from its output in images, rows, columns, ...
    """
    sizes = _sizes(graph, inputs)
    for output, target, weight in labelled if sizes else ():
        where = f"'{name}': output '{graph.values[graph.outputs[output]].name}'"
        _check(f"{where}: targets", target, sizes[output])
        if weight is not None:
            _check(f"{where}: sample weights", weight, sizes[output], by_image=True)


def _sizes(graph: Graph, inputs: Sequence[Any]) -> list[tuple[int, ...]]:
    """Return the sizes `(N, rows, ...)` of outputs, `(N,)` of those that are no images; none if they are not known."""
    images = [i for i in graph.inputs if graph.values[i].image]
    shapes = [_shape(t) for t, i in zip(inputs, graph.inputs, strict=False) if i in images]
    if graph.instance_shapes or not shapes or any(None in shape for shape in shapes):
        return []
    known = {i: graph.to_graph_order(shape[1:-1]) for i, shape in zip(images, shapes, strict=True)}
    try:
        extents = graph.extents(known)
    except ValueError:  # of an image too small for the model, which the plan reports
        return []
    batch = shapes[0][0]
    return [
        (batch, *graph.to_model_order(extents[v])) if graph.values[v].image else (batch,)
        for v in graph.outputs
    ]


def _shape(tensor: Any) -> tuple[Any, ...]:
    """The shape of a tensor or of images behind handles; `(None,)` if it is not known."""
    if tensor.dtype == tf.string:
        return read_ahead.shape_of(tensor) if hasattr(tensor, "numpy") else (None,)
    return (None,) if tensor.shape.rank is None else tuple(tensor.shape.as_list())


def _check(what: str, tensor: Any, size: tuple[int, ...], by_image: bool = False) -> None:
    """Check the first axes of a tensor; `by_image` allows one number for each image."""
    found = _shape(tensor)
    expected = size[:1] if by_image and len(found) == 1 else size
    begins = found[: len(expected)]
    if None in begins or begins == expected:
        return
    last = "1" if by_image else "C"
    or_by_image = f", or [{size[0]}], one for each image" if by_image and len(size) > 1 else ""
    raise ValueError(
        f"{what} have shape {found}; expected [{', '.join(map(str, (*size, last)))}]{or_by_image}, the size of the "
        "output. Scale or crop them to it."
    )

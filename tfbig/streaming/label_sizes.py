"""Checks that targets and sample weights have the size of the outputs that they belong to, before a step runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfbig.engine import read_ahead
from tfbig.network.front_and_rest import Split
from tfbig.network.graph import Graph

Labelled = tuple[int, Any, Any]
"""Position of an output, its targets, and its sample weights or None."""
Lengths = tuple[int | None, ...]
"""First lengths of an output, `(N, rows, ...)` of an image, else `(N,)`; None for those that are not known."""


class Output(NamedTuple):
    """Name and size of an output."""

    name: str
    size: Lengths


def check(name: str, outputs: Sequence[Output], labelled: Iterable[Labelled]) -> None:
    """Check the sizes of targets and sample weights, as far as they are known.

    Args:
        name: Name of the model, for messages.
        outputs: Its outputs.
        labelled: Positions of outputs with what belongs to them.

    Raises:
        ValueError: One differs from its output in images, rows, columns, ...
    """
    for position, target, weight in labelled if outputs else ():
        output = outputs[position]
        where = f"'{name}': output '{output.name}'"
        _check(f"{where}: targets", target, output.size)
        if weight is not None:
            _check(f"{where}: sample weights", weight, output.size, by_image=True)


def outputs_of_graph(graph: Graph, inputs: Sequence[Any]) -> list[Output]:
    """Return the outputs of a model that streams, or none if nothing is known of them.

    Args:
        graph: Graph of the model, before losses were added.
        inputs: Inputs of the model.
    """
    images = [i for i in graph.inputs if graph.values[i].image]
    shapes = [shape_of(t) for t, i in zip(inputs, graph.inputs, strict=False) if i in images]
    if not shapes or len(shapes[0]) < 2:
        return []
    (batch, *axes), extents = (
        shapes[0][:-1],
        _extents(graph, dict(zip(images, shapes, strict=True))),
    )
    unknown = [None] * len(axes)
    sizes = (
        (batch, *(graph.to_model_order(extents[v]) if v in extents else unknown))
        if graph.values[v].image
        else (batch,)
        for v in graph.outputs
    )
    return [Output(graph.values[v].name, n) for v, n in zip(graph.outputs, sizes, strict=True)]


def _extents(graph: Graph, shapes: Mapping[int, Lengths]) -> dict[int, Any]:
    """Return the size of each image of a graph from the shapes of its inputs; none of bags, or if one is not known."""
    if graph.instance_shapes or any(None in shape for shape in shapes.values()):
        return {}
    try:
        return graph.extents({i: graph.to_graph_order(s[1:-1]) for i, s in shapes.items()})
    except ValueError:  # of an image too small for the model, which the plan reports
        return {}


def outputs_of_split(split: Split, inputs: Sequence[Any], rank: int, bags: bool) -> list[Output]:
    """Return the outputs of a model whose last layers run on whole tensors, or none if nothing is known of them.

    Args:
        split: The model.
        inputs: Its inputs.
        rank: Number of axes of its images, `[N, rows, ..., C]`.
        bags: Whether it reads bags, whose outputs are no images.
    """
    shapes = [shape_of(t) for t in inputs]
    specs = split.model.inputs
    if any(len(shape) != len(spec.shape) for shape, spec in zip(shapes, specs, strict=True)):
        return []
    found = split.output_shapes(shapes)
    names = split.model.output_names
    lengths = (n[:-1] if len(n) == rank and not bags else n[:1] for n in found)
    return [Output(name, n) for name, n in zip(names, lengths, strict=True)]


def shape_of(tensor: Any) -> Lengths:
    """The shape of a tensor or of images behind handles; `(None,)` if it is not known."""
    if tensor.dtype == tf.string:
        return read_ahead.shape_of(tensor) if hasattr(tensor, "numpy") else (None,)
    return (None,) if tensor.shape.rank is None else tuple(tensor.shape.as_list())


def _check(what: str, tensor: Any, size: Lengths, by_image: bool = False) -> None:
    """Check the first axes of a tensor; `by_image` allows one number for each image."""
    found = shape_of(tensor)
    expected = size[:1] if by_image and len(found) == 1 else size
    begins = found[: len(expected)]
    pairs = zip(begins, expected, strict=False)
    fits = len(begins) == len(expected) and all(
        None in pair or pair[0] == pair[1] for pair in pairs
    )
    if fits or found == (None,):
        return
    axes = ["?" if n is None else str(n) for n in size]
    expected_axes = ", ".join([*axes, "1" if by_image else "C"])
    or_by_image = f", or [{axes[0]}], one for each image" if by_image and len(size) > 1 else ""
    raise ValueError(
        f"{what} have shape {found}; expected [{expected_axes}]{or_by_image}, the size of the "
        "output. Scale or crop them to it."
    )

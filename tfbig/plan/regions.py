"""Rectangles of an image that are predicted alone, with the same pixels as in a prediction of the whole image.

Arithmetic only: it is proved for each rectangle, not assumed, that every layer sees the same pixels and padding.
"""

from __future__ import annotations

from fractions import Fraction
from math import lcm
from typing import cast

import numpy as np

from tfbig.geometry.windows import Interval, Resize, Size, Transposed, Window
from tfbig.network.graph import Graph, axes_of
from tfbig.plan.sweeps import Sweep, schedule
from tfbig.units import ceil_div

Rectangle = tuple[Interval, ...]
"""Rows, columns, ..."""


def step(graph: Graph) -> tuple[int, ...] | None:
    """Return the least common multiple of the strides of all images of a graph, along each axis.

    Args:
        graph: Graph with one image as input.

    Returns:
        A number for each axis; None if a layer depends on the whole image, or on the place in it.
    """
    strides = _strides(graph)
    if strides is None or _sweep(graph) is None:
        return None
    axes = range(graph.spatial)
    return tuple(lcm(*(each[axis].numerator for each in strides.values())) for axis in axes)


def read_for(graph: Graph, size: Size, owned: Rectangle) -> Rectangle | None:
    """Return the rectangle of an image that a rectangle of its prediction is computed from.

    Args:
        graph: Graph with one image as input and one as output.
        size: Rows, columns, ... of the image.
        owned: Rectangle of the output.

    Returns:
        The smallest rectangle of the image, with sides at multiples of `step`, whose own prediction holds the same
        pixels; None if there is none, as for statistics of the whole image.
    """
    strides, steps, sweep = _strides(graph), step(graph), _sweep(graph)
    if strides is None or steps is None or sweep is None:
        return None
    (image,), (output,) = graph.inputs, graph.outputs
    extents = graph.extents({image: size})
    found = []
    for axis, (part, multiple) in enumerate(zip(owned, steps, strict=True)):
        sizes = {value: extents[value][axis] for value in sweep.images}
        need = sweep.needs(sizes, {output: _array(part)}, axis)[image].clip(size[axis])
        first = int(np.min(need.start)) // multiple * multiple
        after = min(ceil_div(int(np.max(need.stop)), multiple) * multiple, size[axis])
        found.append(Interval(first, after))
    rectangle = tuple(found)
    return rectangle if _is_same(graph, sweep, size, owned, rectangle, strides) else None


def _is_same(
    graph: Graph,
    sweep: Sweep,
    size: Size,
    owned: Rectangle,
    read: Rectangle,
    strides: dict[int, tuple[Fraction, ...]],
) -> bool:
    """Return whether every layer reads the same rows and padding in a rectangle as in the whole image."""
    (image,), (output,) = graph.inputs, graph.outputs
    firsts = {
        value: [part.start / stride for part, stride in zip(read, each, strict=True)]
        for value, each in strides.items()
    }
    if any(first.denominator != 1 for each in firsts.values() for first in map(Fraction, each)):
        return False
    moved = tuple(
        Interval(part.start - int(first), part.stop - int(first))
        for part, first in zip(owned, firsts[output], strict=True)
    )
    sizes = tuple(part.stop - part.start for part in read)
    whole = sweep.line(graph.extents({image: size}), {output: owned})[0]
    alone = sweep.line(graph.extents({image: sizes}), {output: moved})[0]
    inputs = {node.output: node.inputs for node in sweep.locals}
    for axis in range(len(owned)):
        for key, column in sweep.columns.items():
            name, image_of, *position = cast("tuple[str, int, *tuple[int, ...]]", key)
            value = inputs[image_of][position[0]] if position else image_of
            is_place = name in ("start", "stop", "own start", "own stop")
            shift = int(firsts[value][axis]) if is_place else 0
            place = axis * len(sweep.columns) + column
            if whole[place] != alone[place] + shift:
                return False
    return True


def _sweep(graph: Graph) -> Sweep | None:
    """Return the sweep of a graph that has only one, without statistics; else None."""
    if len(graph.inputs) != 1 or len(graph.outputs) != 1:
        return None
    sweeps = schedule(graph)
    only = sweeps[0]
    is_local = len(sweeps) == 1 and not only.reductions and not graph.sizes
    return only if is_local and only.reads == (graph.inputs[0],) else None


def _strides(graph: Graph) -> dict[int, tuple[Fraction, ...]] | None:
    """Return the rows of the input between consecutive rows of each image, along each axis; None if one has none."""
    strides = {graph.inputs[0]: (Fraction(1),) * graph.spatial}
    for node in graph.nodes:
        for position in node.image_positions:
            before = strides.get(node.inputs[position])
            axes = axes_of(node, position)
            if before is None or len(axes) != graph.spatial:
                return None
            each = [_stride(axis, n) for axis, n in zip(axes, before, strict=True)]
            if None in each:
                return None
            found: tuple[Fraction, ...] = tuple(n for n in each if n is not None)
            if strides.setdefault(node.output, found) != found:
                return None
    return strides


def _stride(axis: object, before: Fraction) -> Fraction | None:
    """Return the stride behind an axis of a layer; None if the axis depends on the length of the image."""
    match getattr(axis, "window", axis):
        case Window() as window:
            return before * window.stride
        case Transposed() as transposed:
            return before / transposed.stride
        case Resize() as resize:
            return before / resize.factor
    return None


def _array(part: Interval) -> Interval:
    return Interval(np.array([part.start]), np.array([part.stop]))

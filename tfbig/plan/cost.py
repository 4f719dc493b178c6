"""Cost of one sweep over images of one size: rows, bytes and operations. Arithmetic only."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tfbig.geometry.windows import Size
from tfbig.network.graph import Graph, Local, Node, Whole, pairs_of
from tfbig.plan.sweeps import Sweep
from tfbig.units import WORD, ceil_div, itemsize


def sweep_limit(
    sweep: Sweep,
    extents: Mapping[int, Size],
    steps: Mapping[int, Size] | None = None,
    axis: int = 0,
) -> int:
    """Return the largest possible number of strips: each strip owns a row of every image of the sweep.

    Args:
        sweep: The sweep.
        extents: Size of every image.
        steps: For each observed image, the rows and columns that its parts begin at multiples of. Default: 1.
        axis: Axis that is cut into parts, 0 for the rows.
    """
    least = {v: steps[v][axis] if steps else 1 for v in sweep.observed}
    return min((ceil_div(extents[v][axis], step) for v, step in least.items()), default=1)


def bytes_of(
    graph: Graph, value: int, batch: int, extents: Mapping[int, Size], dtype: str | None = None
) -> int:
    """Return the bytes of a whole image.

    Args:
        graph: The graph of the image.
        value: The image.
        batch: Number of images in a batch.
        extents: Size of every image.
        dtype: Element type. Default: the image's own.

    Returns:
        Bytes of the batch.
    """
    image = graph.values[value]
    return batch * prod(extents[value]) * image.channels * itemsize(dtype or image.dtype)


def kept_bytes(graph: Graph, value: int, batch: int, extents: Mapping[int, Size]) -> int:
    """Return the bytes of a whole image on an accelerator, whose rows are padded (`tfbig.stores.device_store`).

    Args:
        graph: The graph of the image.
        value: The image.
        batch: Number of images in a batch.
        extents: Size of every image.
    """
    image, (rows, *rest) = graph.values[value], extents[value]
    row_bytes = batch * prod(rest) * image.channels * itemsize(image.dtype)
    return rows * ceil_div(row_bytes, WORD) * WORD


def pixel_operations(node: Node, extents: Mapping[int, Size]) -> int:
    """Return the floating-point operations of a node for a pixel of one image.

    Args:
        node: A `Local` or `Reduce` node.
        extents: Size of every image.
    """
    operations = int(node.op.operations)
    if isinstance(node.op, Local) and node.op.pair_operations:
        operations += node.op.pair_operations * pairs_of(node, extents)
    return operations


def operations_of(
    sweep: Sweep, batch: int, extents: Mapping[int, Size], pixels: Mapping[int, int]
) -> tuple[int, int, int]:
    """Count the floating-point operations of the forward pass of a sweep.

    The backward pass does not need an output that is only stored, so the last layers of a sweep are not recomputed.

    Args:
        sweep: The sweep.
        batch: Number of images in a batch.
        extents: Size of every image.
        pixels: Pixels of every image in all strips together.

    Returns:
        Operations with the halo, operations without it, and those of the first that the backward pass recomputes.
    """
    used = {i for n in sweep.locals for i in n.inputs}
    used |= {i for n in sweep.reductions for i in n.inputs if i not in sweep.writes}
    total = exact = recomputed = 0
    for node in sweep.nodes:
        if isinstance(node.op, Whole):
            continue
        value = node.output if isinstance(node.op, Local) else node.inputs[0]
        each = batch * pixel_operations(node, extents)
        operations = each * pixels[value]
        total += operations
        exact += each * prod(extents[value])
        recomputed += operations if isinstance(node.op, Local) and value in used else 0
    return total, exact, recomputed

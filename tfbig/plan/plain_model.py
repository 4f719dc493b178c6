"""The plan of an image that the plain model can process: one sweep with one strip, and no stores. Arithmetic only."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tfbig.geometry.windows import Size
from tfbig.network.graph import Graph, Local, Whole
from tfbig.plan.cost import bytes_of, operations_of
from tfbig.plan.lifetimes import Moment, Timeline
from tfbig.plan.limits import Projected
from tfbig.plan.plan import Plan, SweepCost
from tfbig.plan.prepared_graph import PreparedGraph
from tfbig.plan.pricing import Problem
from tfbig.plan.sweeps import Layout, Sweep

BASE_BYTES = 64 * 2**20
"""Bytes of a step of any plain model, for traces and buffers."""

GRADIENTS = 3
"""Number of images of the largest size whose gradients, or copies in another layout, exist at the same time."""


def layout_of(prepared: PreparedGraph) -> Layout:
    """Return the layout of the plain model: one sweep with all layers.

    Args:
        prepared: The graph.
    """
    graph = prepared.graph
    nodes = tuple(n for n in graph.nodes if not isinstance(n.op, Whole))
    wholes = tuple(n for n in graph.nodes if isinstance(n.op, Whole))
    reads = tuple(i for i in graph.inputs if graph.values[i].image)
    return Layout((Sweep(0, nodes, reads, (), (), wholes),), plain=True)


def plan_of(problem: Problem) -> Plan | None:
    """Return the plan of the plain model; None if it needs more than `Limits.plain`.

    Args:
        problem: The problem.
    """
    prepared, limits = problem.prepared, problem.limits
    if not limits.plain:
        return None
    graph, options, batch = prepared.graph, prepared.options, problem.batch
    used = peak_bytes(graph, batch, problem.extents, options.training) + limits.workspace
    if used > limits.plain:
        return None
    layout = layout_of(prepared)
    (sweep,) = layout.sweeps
    images = {v: bytes_of(graph, v, batch, problem.extents) for v in sweep.images}
    pixels = {v: prod(problem.extents[v]) for v in sweep.images}
    operations, *_ = operations_of(sweep, batch, problem.extents, pixels)
    cost = SweepCost(
        strips=1,
        rows=problem.extents[prepared.first_image][0],
        halo=0,
        strip_bytes=used,
        operations=operations,
        exact_operations=operations,
        recomputed_operations=0,
        made_bytes=sum(images[n.output] for n in sweep.locals),
        starts=len(sweep.nodes),
    )
    what = "both" if options.training else "forward"
    gradients = (
        options.model_bytes if options.training else 0
    )  # of the weights, and what the optimizer adds
    return Plan(
        shape=problem.shape,
        layout=layout,
        costs=(cost,),
        replay_costs=(),
        timeline=Timeline((Moment(what, 0, (), sweep.reads),), {}),
        image_bytes=images,
        places={},
        allowed=limits,
        projected=Projected(used, 0, 0, BASE_BYTES + gradients, options.model_bytes),
        repeated_operations=0,
        training=options.training,
        rates=prepared.rates,
        replicas=options.replicas,
    )


def peak_bytes(graph: Graph, batch: int, extents: Mapping[int, Size], training: bool) -> int:
    """Return an upper bound of the bytes of all tensors that the plain model has at any time.

    In training every output of a layer waits for the backward pass, and the gradients of a few exist with it; in
    inference an output waits for the last layer that reads it.

    Args:
        graph: The graph.
        batch: Number of images in a batch.
        extents: Size of every image.
        training: Whether a backward pass follows.
    """
    sizes = {v: bytes_of(graph, v, batch, extents) for v in extents}
    largest = max(sizes.values())
    if training:
        return sum(sizes.values()) + GRADIENTS * largest
    last = {i: at for at, node in enumerate(graph.nodes) for i in node.inputs}
    live = sum(sizes[i] for i in graph.inputs if i in sizes)
    most = live
    for at, node in enumerate(graph.nodes):
        if isinstance(node.op, Local):
            live += sizes[node.output]
            most = max(most, live)
        done = (
            set() if isinstance(node.op, Whole) else {node.inputs[p] for p in node.image_positions}
        )
        live -= sum(sizes[v] for v in done if last[v] == at and v not in graph.outputs)
    return most + largest  # a padded copy, or a buffer of a convolution

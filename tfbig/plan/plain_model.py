"""The plan of an image that the plain model can process: one sweep with one strip, and no stores. Arithmetic only."""

from __future__ import annotations

from math import inf, prod

from tfbig.network.graph import Local, Whole
from tfbig.plan.cost import bytes_of, operations_of
from tfbig.plan.fixed_bytes import TraceBytes, TraceSize, gradient_bytes
from tfbig.plan.lifetimes import Moment, Timeline
from tfbig.plan.limits import KERNEL_ELEMENTS, Projected
from tfbig.plan.passes import Kind
from tfbig.plan.plan import Plan, SweepCost
from tfbig.plan.prepared_graph import PreparedGraph
from tfbig.plan.pricing import Problem
from tfbig.plan.sweeps import Layout, Sweep

TRAINING = TraceBytes(runtime=32 * 2**20, sweep=0, node=27 * 2**15, whole=27 * 2**15)
"""Bytes of the TensorFlow graph of a training step in plain Keras.

A node of BatchNormalization alone is a dozen operations, with as many for its gradient, and each trainable weight has
two dozen of the optimizer. About the least that exceeds what eleven networks of `keras.applications` take on images of
96 x 96 (`benchmarks/plan_holds.py`).
"""

INFERENCE = TraceBytes(runtime=18 * 2**20, sweep=0, node=9 * 2**14, whole=9 * 2**14)
"""Bytes of the graph of a prediction in plain Keras, found in the same way, of sixteen networks.

ResNet101 takes the largest share of them, 0.95.
"""

COMPILED = 18 * 2**20, 5 * 2**19
"""Bytes with which Keras has XLA compile a convolution in groups, also on a CPU: with its gradients, and without.

ConvNeXtTiny has 18 of them; on images of 96 x 96 a training step takes 320 MB more than what else is counted, and a
prediction at 256 x 320 takes 24 MB more.
"""

MATRIX_BYTES = 4
"""Bytes of an element of the matrices that gradients of convolutions fill, in float32."""

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
    """Return the plan of the plain model; None if it exceeds a limit, or has tensors of too many elements.

    Its images are limited by `Limits.plain`, and all of its bytes by `Limits.host` where the device is the host.

    Args:
        problem: The problem.
    """
    prepared, limits = problem.prepared, problem.limits
    if not limits.plain or most_elements(problem) > KERNEL_ELEMENTS:
        return None
    graph, options, batch = prepared.graph, prepared.options, problem.batch
    used = peak_bytes(problem) + limits.workspace
    layout = layout_of(prepared)
    (sweep,) = layout.sweeps
    fixed = _fixed_bytes(problem, sweep)
    host = limits.host if limits.shared and limits.host is not None else inf
    if used > limits.plain or used + fixed + options.model_bytes > host:
        return None
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
        computed_bytes=sum(images[n.output] for n in sweep.locals),
        starts=len(sweep.nodes),
    )
    kind = Kind.BOTH if options.training else Kind.FORWARD
    return Plan(
        shape=problem.shape,
        layout=layout,
        costs=(cost,),
        replay_costs=(),
        timeline=Timeline((Moment(kind, 0, (), sweep.reads),), {}),
        image_bytes=images,
        addresses={},
        allowed=limits,
        projected=Projected(used, 0, 0, fixed, options.model_bytes),
        repeated_operations=0,
        training=options.training,
        rates=prepared.rates,
        replicas=options.replicas,
    )


def _fixed_bytes(problem: Problem, sweep: Sweep) -> int:
    """Return the bytes of a step that do not depend on the size of its images."""
    graph, training = problem.prepared.graph, problem.prepared.options.training
    compiled, traced = sum(n.op.compiled for n in sweep.locals), [TraceSize.of(graph, sweep)]
    if not training:
        return INFERENCE.of(traced) + compiled * COMPILED[1]
    return TRAINING.of(traced) + compiled * COMPILED[0] + gradient_bytes(graph)


def most_elements(problem: Problem) -> int:
    """Return the elements of the largest tensor of the plain model.

    Args:
        problem: The problem.
    """
    graph, extents = problem.prepared.graph, problem.extents
    images = (problem.batch * prod(n) * graph.values[v].channels for v, n in extents.items())
    return max(max(images), _matrix_elements(problem))


def _matrix_elements(problem: Problem) -> int:
    """Return the elements of the largest matrices that the gradients of one convolution fill at the same time."""
    graph, extents, learned = problem.prepared.graph, problem.extents, problem.learned
    if not problem.prepared.options.im2col:
        return 0
    trained = [n for n in graph.nodes if isinstance(n.op, Local) and n.output in learned]
    gradients = {n.output: 1 + (n.inputs[0] in learned) for n in trained}
    matrices = (prod(extents[n.output]) * n.op.im2col * gradients[n.output] for n in trained)
    return max(matrices, default=0)


def peak_bytes(problem: Problem) -> int:
    """Return an upper bound of the bytes of all images that the plain model has at any time.

    An output waits for the last layer that reads it. Where a gradient is needed, every output of a layer waits for the
    backward pass, and the gradients of a few exist with it, and the matrices of a convolution that is not oneDNN's.

    Args:
        problem: The problem.
    """
    graph, learned = problem.prepared.graph, problem.learned
    sizes = {v: bytes_of(graph, v, problem.batch, problem.extents) for v in problem.extents}
    trained = [n for n in graph.nodes if n.output in learned]
    waiting = {i for n in trained for i in (*n.inputs, n.output)}
    inside = sum(sizes[n.output] * n.op.waiting for n in trained if isinstance(n.op, Local))
    last = {i: at for at, node in enumerate(graph.nodes) for i in node.inputs}
    live = sum(sizes[i] for i in graph.inputs if i in sizes)
    most = live
    for at, node in enumerate(graph.nodes):
        if isinstance(node.op, Local):
            live += sizes[node.output]
            most = max(most, live)
        if not isinstance(node.op, Whole):
            done = {node.inputs[p] for p in node.image_positions}.difference(waiting, graph.outputs)
            live -= sum(sizes[v] for v in done if last[v] == at)
    forward = most + max(sizes.values())  # a padded copy, or a buffer of a convolution
    kept = [size for v, size in sizes.items() if v in waiting]
    backward = sum(kept) + inside + GRADIENTS * max(kept, default=0)
    return max(forward, backward + MATRIX_BYTES * _matrix_elements(problem))

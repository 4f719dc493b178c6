"""What all plans of one graph have in common: sweeps, gradients, element types of stores. Arithmetic only."""

from __future__ import annotations

from collections.abc import Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from math import prod
from typing import Any

from tfbig.geometry.windows import Size
from tfbig.network.graph import Graph, Local, Node
from tfbig.plan.cost import bytes_of, pixel_operations
from tfbig.plan.cut_search import TWO_CORES
from tfbig.plan.cut_search import choose as choose_cuts
from tfbig.plan.fixed_bytes import TraceSize, fixed_bytes
from tfbig.plan.plan import Rates
from tfbig.plan.sweeps import Layout, Sweep, schedule
from tfbig.system import progress
from tfbig.units import itemsize

TRAITS = (
    *(f.name for f in fields(Local) if f.name not in ("function", "axes", "phase", "prepare")),
    "fusible",
)
"""Attributes of `Local` and `Reduce` that are no functions; those of one that the other lacks are None."""


@dataclass(frozen=True)
class Options:
    """Options of a plan, in addition to the graph, the limits and the sizes of the images.

    Args:
        strip_rows: Height of a strip, in rows of the first input. Default: chosen by the budget.
        training: Whether a backward pass follows.
        name: Name of the model, for messages.
        max_elements: Most input elements of a strip; replaces the limit of the device (max_N in the papers).
        store: Element type of stored images whose own type is wider, such as "bfloat16". Default: their own.
        model_bytes: Bytes of the model between steps: weights and optimizer state.
        keeps: Whether images may be kept on the device.
        im2col: Whether kernels of the gradients of convolutions fill matrices, see `tfbig.network.graph.Local`.
        rates: Speed of one device.
        devices: Number of devices that share the strips of a sweep; each is allowed the bytes of the device.
        replicas: Number of replicas of the model on this machine; each has such a plan.
    """

    strip_rows: int | None = None
    training: bool = True
    name: str = "model"
    max_elements: int | None = None
    store: str | None = None
    model_bytes: int = 0
    keeps: bool = False
    im2col: bool = False
    rates: Rates = TWO_CORES
    devices: int = 1
    replicas: int = 1


Cuts = dict[Hashable, frozenset[int]]
"""Cut points by all that they depend on."""


def shape_of(graph: Graph) -> Hashable:
    """Return all of a graph but what its functions compute; plans depend on nothing else.

    Args:
        graph: The graph.
    """
    nodes = (
        (f"{type(n.op)}", n.inputs, n.output, n.weights, _axes_of(n), *_traits_of(n))
        for n in graph.nodes
    )
    return (
        (graph.spatial, graph.order, graph.at_once, graph.even, graph.compiles, graph.norm_slice),
        tuple((v.image, v.channels, v.dtype) for v in graph.values),
        tuple(nodes),
        (*graph.inputs, None, *graph.outputs),
        tuple(value for _, value, _ in graph.updates),
        tuple(value for value, _ in graph.seeds),
        tuple(sorted(graph.sizes.items())),
        tuple(sorted(graph.instance_shapes.items())),
        tuple(tuple(w.shape) for w in graph.weights),
    )


def _traits_of(node: Node) -> tuple[Hashable, ...]:
    return tuple(getattr(node.op, trait, None) for trait in TRAITS)


def _axes_of(node: Node) -> Hashable:
    """Return the axes of the inputs; one that a user's rule defines may have no hash, and then equals no other."""
    if not isinstance(node.op, Local):
        return None
    of_inputs: list[list[Any]] = [[*(axes or [None])] for axes in node.op.axes]
    return tuple(
        tuple(axis if isinstance(axis, Hashable) else object() for axis in axes)
        for axes in of_inputs
    )


class PreparedGraph:
    """A graph with its cut points and sweeps, found when they are first needed.

    Args:
        graph: The graph to run.
        options: What plans depend on.
        device_bytes: Bytes of strips that the cut points are chosen for.
        found: Cut points that were found for other graphs of the same shape, to which those of this graph are added.

    Attributes:
        rates: Joint speed of the devices.
    """

    def __init__(
        self, graph: Graph, options: Options, device_bytes: int, found: Cuts | None = None
    ) -> None:
        self.graph = graph
        self.options = options
        self.rates = options.rates.times(options.devices)
        self._device_bytes = device_bytes
        self._found: Cuts = {} if found is None else found
        self._trace_sizes: dict[Hashable, TraceSize] = {}  # by what layouts change of a sweep

    @cached_property
    def cuts(self) -> frozenset[int]:
        """Cut points, see `tfbig.plan.sweeps.schedule`."""
        # If the user sets the size of the slices of a bag, only one slice may be in memory: nothing is cut.
        slices = self.options.strip_rows is not None and bool(self.graph.instance_shapes)
        return frozenset[int]() if slices else self._cuts(self._device_bytes)

    @cached_property
    def sweeps(self) -> list[Sweep]:
        """The sweeps with every cut point."""
        return schedule(self.graph, self.cuts)

    @cached_property
    def fused(self) -> bool:
        """Return whether the last sweep, with a loss, can run forward and backward together."""
        return self.options.training and _is_fusible(self.graph, self.sweeps[-1])

    def _cuts(self, device_bytes: int) -> frozenset[int]:
        """Return the cut points for strips of these bytes."""
        key = shape_of(self.graph), self.rates, device_bytes, self.options.training
        if key not in self._found:
            with progress.reporting(f"planning {self.options.name}", "sweep") as report:
                self._found[key] = choose_cuts(
                    self.graph, self.rates, device_bytes, self.options.training, report=report
                )
        return self._found[key]

    @property
    def straight(self) -> Layout:
        """Layout that stores every image in host memory: the fastest one that keeps none on the device."""
        return Layout(tuple(self.sweeps))

    @property
    def first_image(self) -> int:
        """First input that is an image."""
        return next(i for i in self.graph.inputs if self.graph.values[i].image)

    def stored_dtype(self, value: int) -> str:
        """Return the element type of an image in its store.

        Args:
            value: Id of the image.

        Returns:
            Name of the type, such as "bfloat16": that of `store` if it is narrower than the image's own.
        """
        dtype, store = self.graph.values[value].dtype or "float32", self.options.store
        inner = value not in self.graph.inputs  # the gradient of an input is a result
        if store and inner and dtype.startswith("float") and itemsize(dtype) > itemsize(store):
            return store
        return dtype

    def image_bytes(self, batch: int, extents: Mapping[int, Size]) -> dict[int, int]:
        """Return the bytes of every image in its store.

        Args:
            batch: Number of images in a batch.
            extents: Size of every image.

        Returns:
            `{image: bytes}`.
        """
        return {v: bytes_of(self.graph, v, batch, extents, self.stored_dtype(v)) for v in extents}

    def runs_backward(self, sweep: Sweep, learned: Container[int]) -> bool:
        """Return whether a backward pass of a sweep follows.

        Args:
            sweep: A sweep or a replay, which has none.
            learned: Values that need a gradient.
        """
        if sweep.is_replay or not self.options.training:
            return False
        is_fused = self.fused and [n.output for n in sweep.reductions] == self.graph.outputs
        return is_fused or any(n.output in learned for n in sweep.nodes)

    def fixed_bytes(self, sweeps: Sequence[Sweep], learned: Container[int]) -> int:
        """Return the bytes of a step for any image size, without freed strips and replays.

        Args:
            sweeps: Its sweeps, with the axes that they are cut along.
            learned: Values that need a gradient.
        """
        training = self.options.training
        others: list[TraceSize] = []
        frozen: list[TraceSize] = []
        for sweep in sweeps:
            is_frozen = training and not self.runs_backward(sweep, learned)
            (frozen if is_frozen else others).append(self._trace_size(sweep))
        return fixed_bytes(self.graph, others, training, frozen)

    def _trace_size(self, sweep: Sweep) -> TraceSize:
        key = sweep.index, sweep.axes, sweep.reads, sweep.writes, len(sweep.nodes)
        if key not in self._trace_sizes:
            self._trace_sizes[key] = TraceSize.of(self.graph, sweep)
        return self._trace_sizes[key]

    def repeated_operations(self, layout: Layout, batch: int, extents: Mapping[int, Size]) -> int:
        """Return the operations of nodes that an earlier sweep has run already, except cheap nodes.

        Args:
            layout: The layout.
            batch: Number of images in a batch.
            extents: Size of every image.

        Returns:
            Operations on whole images.
        """
        nodes = [n for sweep in layout.sweeps for n in sweep.locals if not n.op.cheap]
        distinct = list({id(n): n for n in nodes}.values())
        return _operations(nodes, batch, extents) - _operations(distinct, batch, extents)


def _is_fusible(graph: Graph, last: Sweep) -> bool:
    """Return whether a last sweep can run forward and backward together: it computes a sum over pixels only."""
    return (
        [n.output for n in last.reductions] == graph.outputs
        and last.reductions[0].op.fusible
        and not last.wholes
    )


def _operations(nodes: Sequence[Node], batch: int, extents: Mapping[int, Size]) -> int:
    return sum(operations_of_node(node, batch, extents) for node in nodes)


def operations_of_node(node: Node, batch: int, extents: Mapping[int, Size]) -> int:
    """Return the operations of a local node on whole images.

    Args:
        node: The node.
        batch: Number of images in a batch.
        extents: Size of every image.

    Returns:
        Floating-point operations.
    """
    return batch * prod(extents[node.output]) * pixel_operations(node, extents)

"""A network as nodes that the engine can run strip by strip.

A value is an *image* (`[N, rows, ..., C]` with one, two or three spatial axes, visited by strips of rows) or
*whole* (statistics, vectors, scalars: small enough to exist complete). A node makes one value from others and is
one of three kinds:

    Local    image -> image; an output row depends on a bounded window of input rows
    Reduce   image -> whole; a sum over all rows, a barrier
    Whole    whole -> whole; anything small
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from tfbig.geometry.windows import SAME, Axis

AT_ONCE = 2
"""Strips of images that are worked on at the same time."""

Size = TypeVar("Size", bound=tuple[int, ...])
"""Rows, columns, ... of an image."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class Value:
    """What a node makes.

    Args:
        id: position in `Graph.values`.
        name: for messages and tables.
        image: True for `[N, rows, ..., C]`, False for a whole value.
        channels: C of an image.
        dtype: name of the element type, or None for a whole value of several tensors.
    """

    id: int
    name: str
    image: bool
    channels: int = 0
    dtype: str | None = None


@dataclass(frozen=True)
class Local:
    """How an output strip is made from input strips.

    Args:
        function: `(inputs, weights, strip) -> tensor`; `inputs` holds the rows that the axes ask for
            (clipped to the image) or whole values; `strip` is a `tfbig.ops.kernels.Strip`.
        axes: per input one axis for each spatial dimension, rows first, or None where the input is whole.
        pixelwise: every output number depends on the input number at its own place alone, whatever the
            place and channel; such nodes commute with folding.
        cheap: recomputing costs less than storing.
        stops: no gradient flows through it.
        operations: multiply-adds times two per output pixel, all channels.
        phase: the same operation in phase layout (`tfbig.network.phase_layout.Phase`), where that is faster.
    """

    function: Callable[..., Any]
    axes: tuple[tuple[Axis, ...] | None, ...]
    pixelwise: bool = False
    cheap: bool = False
    stops: bool = False
    operations: int = 0
    phase: Any = None


@dataclass(frozen=True)
class Reduce:
    """A sum over strips, in four steps.

    Args:
        init: `(batch) -> partial`, a tuple of tensors; `batch` is N.
        partial: `(inputs, weights, strip) -> partial` of the rows that the strip owns.
        merge: `(partial, partial) -> partial`.
        finalize: `(partial, pixels) -> tensor or tuple`; `pixels` is the number of pixels of an image, int64.
        pullback: `(inputs, weights, strip, result, cotangent) -> list`, gradients for the inputs (None
            where there is none), given the gradient of the result.
        together: `(inputs, weights, strip, cotangent) -> (partial, gradients)`, for a result whose
            gradient does not depend on the result itself, as the mean of a loss over pixels: forward and
            backward can then share one sweep. None otherwise.
        operations: as in `Local`, per input pixel.
        pixelwise: every number counts alone, so that folded inputs give the same result.
    """

    init: Callable[..., Any]
    partial: Callable[..., Any]
    merge: Callable[..., Any]
    finalize: Callable[..., Any]
    pullback: Callable[..., Any]
    together: Callable[..., Any] | None = None
    operations: int = 0
    pixelwise: bool = False


@dataclass(frozen=True)
class Whole:
    """`function(inputs, weights) -> tensor or tuple` on whole values."""

    function: Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Node:
    """One operation.

    Args:
        name: layer name and step.
        op: `Local`, `Reduce` or `Whole`.
        inputs: value ids.
        output: value id.
        weights: positions in `Graph.weights`.
        layer: name of the Keras layer it comes from.
        kind: equal for nodes whose functions do the same with their inputs and weights; None: like no other.
    """

    name: str
    op: Any  # Local, Reduce or Whole
    inputs: tuple[int, ...]
    output: int
    weights: tuple[int, ...] = ()
    layer: str = ""
    kind: Any = None


@dataclass(eq=False)
class Graph:
    """Nodes in topological order, and the values between them.

    Args:
        spatial: number of spatial axes of every image; rows, the axis that is cut, are the first.
        order: spatial axes of the model in the order of the graph, `(1, 0, 2)` where its second one is cut; by
            default as they come. Images that go in and come out are turned, see `turned`.
        values, nodes, inputs, outputs: ids are positions in `values`.
        weights: variables.
        updates: `(variable, value id, function)`: after a step the variable is `function(old, value)`.
        seeds: `(value id, generator)`: before a step the value is what `generator.next()` gives.
        sizes: `{value id: image}`: whole values with the extent of an image.
        instance_shapes: `{value id: shape}`: of images whose rows are the instances of a bag, the shape of one as the
            layers have it, `[..., C]`.
        at_once: strips that are worked on at the same time; a slice of a bag fills the cores alone.
        xla: whether losses may be compiled.
        norm_slice: how many instances at a time BatchNormalization has the statistics of; None: of all.
    """

    spatial: int = 2
    order: tuple[int, ...] | None = None
    values: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    updates: list[tuple[Any, int, Callable[..., Any]]] = field(default_factory=list)
    seeds: list[tuple[int, Any]] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)
    instance_shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    at_once: int = AT_ONCE
    norm_slice: int | None = None
    xla: bool = True

    def turned(self, items: Sequence[Item]) -> tuple[Item, ...]:
        """One item per spatial axis, from the order of the model to that of the graph."""
        return tuple(items if self.order is None else (items[i] for i in self.order))

    @property
    def turning(self) -> tuple[int, ...]:
        """Dimensions of an image of the model, `[N, ..., C]`, in the order of the graph."""
        axes = self.turned(range(1, self.spatial + 1))
        return (0, *axes, self.spatial + 1)

    @property
    def turning_back(self) -> tuple[int, ...]:
        """Dimensions of an image of the graph in the order of the model."""
        turning = self.turning
        return tuple(turning.index(i) for i in range(len(turning)))

    def value(self, name: str, image: bool, channels: int = 0, dtype: str | None = None) -> int:
        self.values.append(Value(len(self.values), name, image, channels, dtype))
        return len(self.values) - 1

    def input(self, name: str, image: bool, channels: int = 0, dtype: str | None = None) -> int:
        """A value that comes from outside: an image, a label image, a seed."""
        self.inputs.append(self.value(name, image, channels, dtype))
        return self.inputs[-1]

    def size(self, image: int) -> int:
        """A whole value with the rows, columns, ... of an image, `[spatial]` int32."""
        value = self.value(f"{self.values[image].name}/size", False)
        self.sizes[value] = image
        return value

    def local(
        self,
        name: str,
        function: Callable[..., Any],
        inputs: Sequence[int],
        channels: int,
        dtype: str,
        axes: Sequence[tuple[Axis, ...] | None] | None = None,
        weights: Sequence[Any] = (),
        **traits: Any,
    ) -> int:
        """Adds a `Local` node; without `axes` it is pixel by pixel. Gives its output value."""
        if axes is None:
            alone = (SAME,) * self.spatial
            axes = [alone if self.values[i].image else None for i in inputs]
        op = Local(function, tuple(axes), **traits)
        return self._node(name, op, inputs, weights, self.value(name, True, channels, dtype))

    def reduce(
        self, name: str, op: Reduce, inputs: Sequence[int], weights: Sequence[Any] = ()
    ) -> int:
        return self._node(name, op, inputs, weights, self.value(name, False))

    def whole(
        self,
        name: str,
        function: Callable[..., Any],
        inputs: Sequence[int],
        weights: Sequence[Any] = (),
    ) -> int:
        return self._node(name, Whole(function), inputs, weights, self.value(name, False))

    def _node(
        self,
        name: str,
        op: Local | Reduce | Whole,
        inputs: Sequence[int],
        weights: Sequence[Any],
        output: int,
    ) -> int:
        slots = tuple(self._slot(w) for w in weights)
        self.nodes.append(Node(name, op, tuple(inputs), output, slots, name.split("/")[0]))
        return output

    def _slot(self, weight: Any) -> int:
        for slot, known in enumerate(self.weights):
            if known is weight:
                return slot
        self.weights.append(weight)
        return len(self.weights) - 1

    def producer(self, value: int) -> Node | None:
        """The node that makes a value; None for an input."""
        return next((n for n in self.nodes if n.output == value), None)

    def consumers(self, value: int) -> list[Node]:
        return [n for n in self.nodes if value in n.inputs]

    def extents(self, sizes: dict[int, Size]) -> dict[int, Size]:
        """Rows, columns, ... of every image, from those of the input images.

        Args:
            sizes: `{input value id: (rows, columns, ...)}`.

        Raises:
            ValueError: images that meet in one node have different sizes, or one has no rows left.
        """
        extents = dict(sizes)
        for node in self.nodes:
            found = [
                output_extent(node, position, extents[node.inputs[position]])
                for position in image_positions(node)
            ]
            if isinstance(node.op, Local):
                extents[node.output] = _agree(node.name, found)
            elif isinstance(node.op, Reduce):
                _agree(node.name, found)
        return extents


def learned(graph: Graph, trained: Container[int], wanted: Iterable[int]) -> frozenset[int]:
    """Values whose gradient is needed: those that depend on weights that are trained, or on inputs that want one.

    Args:
        graph: all nodes.
        trained: positions of weights.
        wanted: inputs.
    """
    found = set(wanted)
    for node in graph.nodes:
        stops = isinstance(node.op, Local) and node.op.stops
        sources = (*(w in trained for w in node.weights), *(i in found for i in node.inputs))
        if not stops and any(sources):
            found.add(node.output)
    return frozenset(found)


def image_positions(node: Node) -> list[int]:
    """Positions of the inputs of a node that are images."""
    if isinstance(node.op, Whole):
        return []
    if isinstance(node.op, Reduce):
        return list(range(len(node.inputs)))
    return [p for p, axes in enumerate(node.op.axes) if axes is not None]


def axes_of(node: Node, position: int) -> tuple[Axis, ...]:
    """Axes of one image input, rows first; those of a reduction all read the rows that they give."""
    axes = node.op.axes[position] if isinstance(node.op, Local) else None
    return axes or (SAME,)


def output_extent(node: Node, position: int, size: Size) -> Size:
    """Size of the output of a node for the size of one of its image inputs."""
    if not isinstance(node.op, Local):
        return size
    axes = zip(axes_of(node, position), size, strict=True)
    return cast(Size, tuple(axis.extent(n) for axis, n in axes))


def _agree(name: str, found: list[Size]) -> Size:
    if any(size != found[0] for size in found):
        raise ValueError(f"'{name}': its inputs have different sizes {found}; they must be equal.")
    if min(found[0]) < 1:
        raise ValueError(
            f"'{name}': the image is too small, its output would be {' x '.join(map(str, found[0]))}. "
            "Use a larger image or smaller kernels and strides."
        )
    return found[0]

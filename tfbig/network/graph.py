"""A network as nodes that the engine can run strip by strip.

A value is an *image* (`[N, rows, ..., C]` with one, two or three spatial axes, processed by strips of rows) or
*whole* (statistics, vectors, scalars: small enough never to be cut). A node computes one value from others and is
one of three kinds:

    Local    image -> image; an output row depends on a bounded window of input rows
    Reduce   image -> whole; a sum over all rows, a barrier
    Whole    whole -> whole; anything small
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, NamedTuple, TypeVar, cast

from tfbig.geometry.windows import SAME, Axis, Everything
from tfbig.units import ceil_div

AT_ONCE = 2
"""Number of image strips that are processed at the same time."""

IN_FLIGHT = 4
"""The same on an accelerator, which computes one of them.

Tiles of the others are on their way to it, or results on their way to the host.
"""

BLOCK_SCORES = 2**21
"""Scores of pairs of pixels that an attention computes at a time, of all heads and images.

Of 4 heads at 4096 tokens, a forward and backward pass in blocks of 256, 512 and 1024 tokens takes 1.5, 1.3 and 1.0
times as long as in one (two CPU cores).
"""

Size = TypeVar("Size", bound=tuple[int, ...])
"""Rows, columns, ... of an image."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class Value:
    """An image or a whole value of the graph.

    Args:
        id: Position in `Graph.values`.
        name: Name for messages and tables.
        image: True for an image `[N, rows, ..., C]`, False for a whole value.
        channels: Channels C of an image.
        dtype: Name of the element type, or None for a whole value of several tensors.
    """

    id: int
    name: str
    image: bool
    channels: int = 0
    dtype: str | None = None


@dataclass(frozen=True)
class Local:
    """An operation whose output rows depend on a bounded window of input rows.

    Args:
        function: `(inputs, weights, strip) -> tensor`; `inputs` holds the rows that the axes request
            (clipped to the image) or whole values; `strip` is a `tfbig.ops.kernels.Strip`.
        axes: For each input, one axis per spatial dimension, rows first, or None if the input is whole.
        pixelwise: Whether the function is elementwise and the same for every position and channel; such
            nodes commute with space-to-depth.
        cheap: Whether recomputing costs less than storing.
        stops_gradient: Whether no gradient flows through it.
        operations: Multiply-adds times two per output pixel, all channels.
        pair_operations: The same per pair of an output pixel and a pixel of an input that it reads in full.
        heads: Of an attention, whose first three inputs are queries, keys and values, the number of scores of a pair.
        im2col: For a convolution, inputs of an output pixel, all channels: columns of the matrix that TensorFlow's
            kernels of its gradients fill without oneDNN.
        waiting: In plain Keras, images of the size of the output, besides it and the inputs, that wait inside the
            operation for its gradient.
        compiled: Whether plain Keras compiles it with XLA even on a CPU: a convolution in groups.
        tiles: Whether the function computes tiles too, cut along the columns and further axes.
        uniform: Whether equal pixels give equal results wherever they are, so that background is computed once.
        draws: Whether the function draws random numbers by operations of Keras: where XLA compiles these, they return
            other numbers.
        phase: The same operation in space-to-depth layout (`tfbig.network.phase_layout.Phase`) where that is
            faster, else None.
        around: Whether the inputs may have further rows around those that the axes request; `InputRows` names those
            that are given.
        any_channels: Whether the function takes the numbers of channels from its tensors while it runs, so that layers
            that differ in nothing else share a trace.
        prepare: What is the same for all strips, computed once a sweep: `prepare(wholes, weights) -> tensors`, given
            the inputs that are no images. The function then gets these tensors instead of the weights.
    """

    function: Callable[..., Any]
    axes: tuple[tuple[Axis, ...] | None, ...]
    pixelwise: bool = False
    cheap: bool = False
    stops_gradient: bool = False
    operations: int = 0
    pair_operations: int = 0
    heads: int = 0
    im2col: int = 0
    waiting: int = 0
    compiled: bool = False
    tiles: bool = True
    uniform: bool = True
    draws: bool = False
    phase: Any = None
    around: bool = False
    any_channels: bool = False
    prepare: Callable[..., Any] | None = None


class Reduce(ABC):
    """A reduction over strips: a commutative monoid of partial results, and its pullback.

        result = finalize(merge(partial(strip 1), merge(partial(strip 2), ...)), pixels)

    A partial result is a tuple of tensors. By default partial results add up and are the result.

    Attributes:
        operations: As in `Local`, per input pixel.
        pixelwise: Whether the result is a sum over elements of any position and channel, so that inputs in
            space-to-depth layout give the same result.
        fusible: Whether the gradient does not depend on the result itself, as for the mean of a loss over pixels:
            one sweep can then run forward and backward, see `fused`.
        compiled: Whether XLA compiles the gradient.
        any_channels: As in `Local`.
    """

    operations: int = 0
    pixelwise: bool = False
    fusible: bool = False
    compiled: bool = False
    any_channels: bool = False

    @abstractmethod
    def init(self, batch: Any, channels: Sequence[Any]) -> tuple[Any, ...]:
        """Return the neutral element of `merge`.

        Args:
            batch: N, int32 scalar.
            channels: Number of channels of each input: an integer, or an int32 scalar in a trace for any numbers.
        """

    @abstractmethod
    def partial(self, inputs: list[Any], strip: Any) -> tuple[Any, ...]:
        """Return the partial result of a strip.

        Args:
            inputs: The rows of each input image that the strip owns.
            strip: A `tfbig.ops.kernels.Strip`.
        """

    def merge(self, first: tuple[Any, ...], second: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the partial result of two sets of strips."""
        return tuple(a + b for a, b in zip(first, second, strict=True))

    def times(self, partial: tuple[Any, ...], copies: Any) -> tuple[Any, ...]:
        """Return the partial result of many strips with the same pixels.

        Args:
            partial: The partial result of one of them.
            copies: Their number, a `tfbig.ops.kernels.Copies`; may be 0.
        """
        return tuple(copies.of(t) for t in partial)

    def finalize(self, partial: tuple[Any, ...], pixels: Any) -> Any:
        """Return the result, a tensor or a tuple.

        Args:
            partial: The partial result of all strips.
            pixels: Number of pixels of an image, int64 scalar.
        """
        return partial

    @abstractmethod
    def pullback(self, inputs: list[Any], strip: Any, result: Any, cotangent: Any) -> list[Any]:
        """Return the gradient of each input; None for an input without one.

        Args:
            inputs: As in `partial`.
            strip: As in `partial`.
            result: The result.
            cotangent: Gradient of the result.
        """

    def fused(
        self, inputs: list[Any], strip: Any, cotangent: Any
    ) -> tuple[tuple[Any, ...], list[Any]]:
        """Return the partial result of a strip and the gradients of its inputs, if the reduction is `fusible`.

        Args:
            inputs: As in `partial`.
            strip: As in `partial`.
            cotangent: Gradient of the result.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Whole:
    """An operation on whole values: `function(inputs, weights) -> tensor or tuple`."""

    function: Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Node:
    """One operation with its inputs and output.

    Args:
        name: Layer name and step.
        op: `Local`, `Reduce` or `Whole`.
        inputs: Value ids.
        output: Value id.
        weights: Positions in `Graph.weights`.
        layer: Name of the Keras layer it comes from.
        kind: Equal for nodes whose functions compute the same from inputs and weights, so that they can share
            a trace; None for a node that shares none.
    """

    name: str
    op: Any  # Local, Reduce or Whole
    inputs: tuple[int, ...]
    output: int
    weights: tuple[int, ...] = ()
    layer: str = ""
    kind: Any = None

    @cached_property
    def image_positions(self) -> tuple[int, ...]:
        """Positions of the inputs that are images."""
        if isinstance(self.op, Whole):
            return ()
        if isinstance(self.op, Reduce):
            return tuple(range(len(self.inputs)))
        return tuple(p for p, axes in enumerate(self.op.axes) if axes is not None)


class Tokens(NamedTuple):
    """Tokens of the model, `[N, prefix + rows * columns, C]`, that an image stands for.

    Args:
        prefix: Number of tokens before those of the pixels, such as a class token; rows of their own before the pixels
            hold them, then zeros up to a whole row.
        size: Rows, columns, ... of the pixels in the model; empty if they are known only when the network runs.
    """

    prefix: int = 0
    size: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """Number of rows before those of the pixels."""
        return ceil_div(self.prefix, prod(self.size[1:])) if self.size else min(self.prefix, 1)


PIXELS = Tokens()
"""The tokens of the pixels of an image of unknown size alone."""


@dataclass(eq=False)
class Graph:
    """Nodes in topological order, and the values between them.

    Args:
        spatial: Number of spatial axes of every image; the first, the rows, is cut into strips.
        order: Spatial axes of the model in the order of the graph, for example `(1, 0, 2)` to cut the second axis;
            None for the order of the model. The inputs and outputs are transposed, see `permutation`.
        values: All values; the id of a value is its position here.
        nodes: Nodes in topological order.
        inputs: Ids of the values that come from outside.
        outputs: Ids of the results.
        weights: Variables.
        updates: `(variable, value id, function)`: after a step the variable is `function(old, value)`.
        seeds: `(value id, generator)`: before a step the value is `generator.next()`.
        sizes: `{value id: image}`: whole values that hold the extent of an image.
        batches: Whole values that hold the number of images N.
        channel_shapes: `{value id: shape}`: for images whose channels have several axes in the model, or none, their
            lengths; `[N, rows, ..., g, c]` is stored as `[N, rows, ..., g * c]`, and `[N, rows, ...]` with C = 1.
        constant_sizes: `{value id: size}`: for whole values `[N, 1, ..., C]` that stand for an image of equal pixels,
            its rows, columns, ... in the model; empty if they are known only when the network runs.
        instance_shapes: `{value id: shape}`: for images whose rows are the instances of a bag, the shape of one
            instance in the layers, `[..., C]`.
        tokens: `{value id: tokens}`: for images whose pixels are tokens in the model, see `tfbig.network.tokens`.
        at_once: Strips that are processed at the same time; a slice of a bag keeps all cores busy alone.
        even: Whether all strips of a sweep have as many rows as the largest one, see `tfbig.plan.sweeps.Sweep`: for an
            accelerator, which chooses kernels for each size anew.
        compiles: Whether XLA compiles what computes a strip, where it can, see `tfbig.plan.cutouts`.
        norm_slice: Instances per slice that BatchNormalization computes statistics of; None for all of them.
        xla: Whether losses may be compiled.
        any_channels: Whether a trace of this graph must accept any numbers of channels.
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
    batches: list[int] = field(default_factory=list)
    channel_shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    constant_sizes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    instance_shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    tokens: dict[int, Tokens] = field(default_factory=dict)
    at_once: int = AT_ONCE
    even: bool = False
    compiles: bool = False
    norm_slice: int | None = None
    xla: bool = True
    any_channels: bool = False

    @property
    def images(self) -> Graph:
        """The graph itself; of a view of it as tokens, the graph of the images."""
        return self

    def in_flight(self, accelerator: bool) -> int:
        """Return the number of strips that are read, computed or written at the same time.

        Args:
            accelerator: Whether one accelerator computes them.
        """
        return IN_FLIGHT if accelerator and self.at_once > 1 else self.at_once

    def to_graph_order(self, items: Sequence[Item]) -> tuple[Item, ...]:
        """Reorder items, one per spatial axis, from the order of the model to that of the graph."""
        return tuple(items if self.order is None else (items[i] for i in self.order))

    def to_model_order(self, items: Sequence[Item]) -> tuple[Item, ...]:
        """Reorder items, one per spatial axis, from the order of the graph to that of the model."""
        if self.order is None:
            return tuple(items)
        return tuple(items[self.order.index(axis)] for axis in range(len(self.order)))

    @property
    def permutation(self) -> tuple[int, ...]:
        """Permutation that transposes an image of the model, `[N, ..., C]`, to the order of the graph."""
        axes = self.to_graph_order(range(1, self.spatial + 1))
        return (0, *axes, self.spatial + 1)

    @property
    def inverse_permutation(self) -> tuple[int, ...]:
        """Permutation that transposes an image of the graph to the order of the model."""
        permutation = self.permutation
        return tuple(permutation.index(i) for i in range(len(permutation)))

    def value(self, name: str, image: bool, channels: int = 0, dtype: str | None = None) -> int:
        """Add a value without a producer and return its id. Args: as in `Value`."""
        self.values.append(Value(len(self.values), name, image, channels, dtype))
        return len(self.values) - 1

    def input(self, name: str, image: bool, channels: int = 0, dtype: str | None = None) -> int:
        """Add a value that comes from outside (an image, labels, a seed) and return its id."""
        self.inputs.append(self.value(name, image, channels, dtype))
        return self.inputs[-1]

    def size(self, image: int) -> int:
        """Add a whole value with the rows, columns, ... of an image, `[spatial]` int32, and return its id."""
        value = self.value(f"{self.values[image].name}/size", False)
        self.sizes[value] = image
        return value

    def batch(self) -> int:
        """Add a whole value with the number of images N, an int32 scalar, and return its id."""
        self.batches.append(self.value("batch", False))
        return self.batches[-1]

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
        """Add a `Local` node and return its output value; without `axes` it maps pixel to pixel."""
        if axes is None:
            same_pixel = (SAME,) * self.spatial
            axes = [same_pixel if self.values[i].image else None for i in inputs]
        op = Local(function, tuple(axes), **traits)
        return self._node(name, op, inputs, weights, self.value(name, True, channels, dtype))

    def reduce(self, name: str, op: Reduce, inputs: Sequence[int]) -> int:
        """Add a `Reduce` node and return its output value."""
        return self._node(name, op, inputs, (), self.value(name, False))

    def whole(
        self,
        name: str,
        function: Callable[..., Any],
        inputs: Sequence[int],
        weights: Sequence[Any] = (),
    ) -> int:
        """Add a `Whole` node and return its output value."""
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
        for slot, existing in enumerate(self.weights):
            if existing is weight:
                return slot
        self.weights.append(weight)
        return len(self.weights) - 1

    def traced_channels(self, value: int) -> int | None:
        """Return the channels of an image that a trace of this graph may rely on; None if it must accept any number."""
        return None if self.any_channels else self.values[value].channels

    @property
    def trained(self) -> frozenset[int]:
        """Positions of the weights that are trainable now and that a node uses; the others have no gradient."""
        used = {w for node in self.nodes for w in node.weights}
        return frozenset(w for w in used if self.weights[w].trainable)

    def producer(self, value: int) -> Node | None:
        """Return the node that computes a value, or None for an input."""
        return next((n for n in self.nodes if n.output == value), None)

    def consumers(self, value: int) -> list[Node]:
        """Return the nodes that read a value."""
        return [n for n in self.nodes if value in n.inputs]

    def extents(self, sizes: dict[int, Size]) -> dict[int, Size]:
        """Return the size of every image, computed from those of the input images.

        Args:
            sizes: `{input value id: (rows, columns, ...)}`.

        Returns:
            `{value id: (rows, columns, ...)}` of all images.

        Raises:
            ValueError: The images that one node reads have different sizes, or an image has no rows left.
        """
        extents = dict(sizes)
        for node in self.nodes:
            sizes_of_output = [
                output_extent(node, position, extents[node.inputs[position]])
                for position in node.image_positions
                if not reads_all(node, position)
            ]
            if isinstance(node.op, Local):
                extents[node.output] = _common_size(node.name, sizes_of_output)
            elif isinstance(node.op, Reduce):
                _common_size(node.name, sizes_of_output)
        return extents


def values_with_gradient(
    graph: Graph, trainable: Container[int], inputs: Iterable[int] = ()
) -> frozenset[int]:
    """Return the values that need a gradient: those that depend on trainable weights or on `inputs`.

    Plans and the engine both use this, so that a plan counts the gradients that a step computes.

    Args:
        graph: Graph of the model.
        trainable: Positions of the trainable weights.
        inputs: Input values whose gradient is requested.
    """
    values = set(inputs)
    for node in graph.nodes:
        stops = isinstance(node.op, Local) and node.op.stops_gradient
        sources = (*(w in trainable for w in node.weights), *(i in values for i in node.inputs))
        if not stops and any(sources):
            values.add(node.output)
    return frozenset(values)


def axes_of(node: Node, position: int) -> tuple[Axis, ...]:
    """Return the axes of one image input, rows first; a reduction reads every row once."""
    axes = node.op.axes[position] if isinstance(node.op, Local) else None
    return axes or (SAME,)


def reads_all(node: Node, position: int) -> bool:
    """Return whether every output pixel of a node reads an image input in full along one of its axes."""
    return any(isinstance(axis, Everything) for axis in axes_of(node, position))


def pairs_of(node: Node, extents: Mapping[int, Size]) -> int:
    """Return the pixels of an input that every output pixel of a node reads because it reads the axes in full, or 0."""
    for p in node.image_positions:
        if reads_all(node, p):
            along = zip(axes_of(node, p), extents[node.inputs[p]], strict=True)
            return prod(n for axis, n in along if isinstance(axis, Everything))
    return 0


def output_extent(node: Node, position: int, size: Size) -> Size:
    """Return the size of the output of a node, computed from the size of one of its image inputs."""
    if not isinstance(node.op, Local):
        return size
    axes = zip(axes_of(node, position), size, strict=True)
    return cast(Size, tuple(axis.extent(n) for axis, n in axes))


def _common_size(name: str, sizes: list[Size]) -> Size:
    first = sizes[0]
    if any(size != first for size in sizes):
        raise ValueError(
            f"'{name}': its inputs have different sizes {sizes}; they must be equal. Networks with strides and "
            "upsampling need images whose sizes are multiples of the total stride: pad or crop the image."
        )
    if min(first) < 1:
        raise ValueError(
            f"'{name}': the image is too small, its output would be {' x '.join(map(str, first))}. "
            "Use a larger image or smaller kernels and strides."
        )
    return first

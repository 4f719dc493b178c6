"""Images whose pixels are tokens in the model, `[N, n + rows * columns, C]`, as vision transformers have them.

A model makes tokens by reshaping an image to one axis of pixels. The graph keeps the image `[N, rows, columns, C]`,
which strips can cut, and says so in `Graph.tokens`.

To the rules of layers, tokens are a series: `TokenGraph` is the graph with one spatial axis, and turns each function on
tokens `[N, tokens, C]` that a rule adds into one on strips of the image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from typing import Any

import tensorflow as tf

from tfbig.errors import UnsupportedLayerError
from tfbig.geometry.windows import SAME, Axis, Everything
from tfbig.network.graph import PIXELS, Graph, Reduce, Tokens
from tfbig.ops.kernels import InputRows, Strip


@dataclass(eq=False)
class TokenGraph(Graph):
    """A graph as the rules of layers on tokens see it: images are series of tokens.

    It shares the values, nodes and weights of the graph of the images.

    Args:
        of: The graph of the images.
        kind: The tokens of all images of the call.
    """

    of: Graph = None  # type: ignore[assignment]
    kind: Tokens = PIXELS

    @property
    def images(self) -> Graph:
        """The graph of the images."""
        return self.of

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
        """Add a node that runs a function of tokens on a strip, and return its output value. Args: as of `Graph`."""
        is_image = [self.values[i].image for i in inputs]
        if axes is not None:
            axes = [a if a is None else _along_all(name, a, self.of.spatial) for a in axes]

        def run(x: list[Any], w: Any, strip: Strip) -> tf.Tensor:
            first = next(t for t, image in zip(x, is_image, strict=True) if image)
            flat = [flattened(t) if image else t for t, image in zip(x, is_image, strict=True)]
            return unflattened(function(flat, w, tokens_of(strip, first)), first)

        traits |= {"phase": None, "tiles": False, "pixelwise": False}
        value = self.of.local(name, run, inputs, channels, dtype, axes, weights, **traits)
        self.tokens[value] = self.kind
        return value

    def in_rows(self, tokens: tf.Tensor) -> tf.Tensor:
        """Return tokens `[N, n, C]` of known number with zeros after those before the pixels, as rows hold them."""
        before, after = tokens[:, : self.kind.prefix], tokens[:, self.kind.prefix :]
        gap = self.kind.rows * prod(self.kind.size[1:]) - self.kind.prefix
        return tf.concat([tf.pad(before, [[0, 0], [0, gap], [0, 0]]), after], 1) if gap else tokens

    def reduce(self, name: str, op: Reduce, inputs: Sequence[int]) -> int:
        """Add a reduction over tokens, and return its output value.

        Raises:
            UnsupportedLayerError: There are tokens before those of the pixels.
        """
        if self.kind.prefix:
            raise UnsupportedLayerError(
                f"'{name}': pools {self.kind.prefix} tokens, such as a class token, together with those of an image; "
                "pool the latter alone, as x[:, n:] selects them."
            )
        return self.of.reduce(name, OfTokens(op), inputs)


def of_call(graph: Graph, values: Sequence[int]) -> Graph:
    """Return the graph as a call with some inputs sees it: with tokens if one of its images holds tokens.

    Raises:
        UnsupportedLayerError: It combines tokens with images, or images with different tokens before the pixels.
    """
    graph = graph.images
    images = [v for v in values if graph.values[v].image]
    kinds = {graph.tokens.get(v) for v in images}
    if kinds <= {None}:
        return graph
    kind = next(filter(None, kinds))
    if len(kinds) > 1:
        names = ", ".join(f"'{graph.values[v].name}'" for v in images)
        raise UnsupportedLayerError(
            f"{names}: tokens are combined with others that are not made alike; expected images, or tokens of images "
            "with the same tokens before those of the pixels."
        )
    shared = {f.name: getattr(graph, f.name) for f in fields(Graph)}
    return TokenGraph(**shared | {"spatial": 1, "order": None}, of=graph, kind=kind)


def _along_all(name: str, axes: tuple[Axis, ...], spatial: int) -> tuple[Axis, ...]:
    """Return the axes of an image for the axis of its tokens.

    Raises:
        UnsupportedLayerError: A token depends on its neighbours.
    """
    (axis,) = axes
    if axis == SAME or axis == Everything():
        return (axis,) * spatial
    raise UnsupportedLayerError(
        f"'{name}': combines neighbours in a series of tokens, which are pixels of an image in another order; reshape "
        "the tokens to an image [N, rows, columns, C] first."
    )


def flattened(x: tf.Tensor) -> tf.Tensor:
    """Return an image `[N, rows, ..., C]` as tokens `[N, pixels, C]`."""
    shape = tf.shape(x)
    return tf.ensure_shape(
        tf.reshape(x, tf.stack([shape[0], tf.reduce_prod(shape[1:-1]), shape[-1]])),
        [x.shape[0], None, x.shape[-1]],
    )


def unflattened(tokens: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Return tokens `[N, pixels, C]` as an image with the pixels of another."""
    shape = tf.concat([tf.shape(like)[:-1], tf.shape(tokens)[-1:]], 0)
    return tf.ensure_shape(tf.reshape(tokens, shape), [*like.shape[:-1], tokens.shape[-1]])


def tokens_of(strip: Strip, x: tf.Tensor) -> Strip:
    """Return the position of a strip of whole rows of an image, counted in pixels.

    Args:
        strip: The position in rows.
        x: A strip of the image.
    """
    width = tf.reduce_prod(tf.shape(x)[2:-1])
    inputs = tuple(
        None
        if rows is None
        else InputRows(rows.start * width, rows.stop * width, 0, 0, rows.extent * width)
        for rows in strip.inputs
    )
    return replace(
        strip,
        start=strip.start * width,
        stop=strip.stop * width,
        extent=strip.extent * width,
        inputs=inputs,
    )


class OfTokens(Reduce):
    """A reduction over tokens, on strips of images.

    Args:
        op: The reduction.
    """

    def __init__(self, op: Reduce) -> None:
        self.op = op
        self.operations = op.operations
        self.fusible = op.fusible
        self.compiled = op.compiled
        self.any_channels = op.any_channels

    def init(self, batch: Any, channels: Sequence[Any]) -> tuple[Any, ...]:
        """Return the neutral element."""
        return self.op.init(batch, channels)

    def partial(self, inputs: list[Any], strip: Any) -> tuple[Any, ...]:
        """Return the partial result of a strip."""
        return self.op.partial([flattened(x) for x in inputs], tokens_of(strip, inputs[0]))

    def merge(self, first: tuple[Any, ...], second: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the partial result of both."""
        return self.op.merge(first, second)

    def times(self, partial: tuple[Any, ...], copies: Any) -> tuple[Any, ...]:
        """Return the partial result of many equal strips."""
        return self.op.times(partial, copies)

    def finalize(self, partial: tuple[Any, ...], pixels: Any) -> Any:
        """Return the result."""
        return self.op.finalize(partial, pixels)

    def pullback(self, inputs: list[Any], strip: Any, result: Any, cotangent: Any) -> list[Any]:
        """Return the gradients of the inputs."""
        flat, along = [flattened(x) for x in inputs], tokens_of(strip, inputs[0])
        return _as_images(self.op.pullback(flat, along, result, cotangent), inputs)

    def fused(
        self, inputs: list[Any], strip: Any, cotangent: Any
    ) -> tuple[tuple[Any, ...], list[Any]]:
        """Return the partial result of a strip and the gradients of its inputs."""
        flat, along = [flattened(x) for x in inputs], tokens_of(strip, inputs[0])
        partial, gradients = self.op.fused(flat, along, cotangent)
        return partial, _as_images(gradients, inputs)


def _as_images(gradients: Sequence[Any], inputs: Sequence[tf.Tensor]) -> list[Any]:
    pairs = zip(gradients, inputs, strict=True)
    return [None if g is None else unflattened(g, x) for g, x in pairs]

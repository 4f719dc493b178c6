"""Normalisation by streamed statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfbig import kernels, moments
from tfbig.errors import UnsupportedLayerError
from tfbig.graph import Graph, Reduce
from tfbig.rules.nodes import cast, images_only, per_pixel
from tfbig.rules.registry import rule

layers = keras.layers


def _moments(shape: Callable[[Any], Any], axes: list[int], dtype: str, fold: Any) -> Reduce:
    """Moments over `axes` of `fold(x)`; `shape(batch)` is the shape of the result."""

    def partial(x: list[tf.Tensor], w: Any, strip: Any) -> moments.Moments:
        return moments.of(fold(x[0]), axes)

    def pullback(x: list[tf.Tensor], w: Any, strip: Any, result: Any, cotangent: Any) -> list[Any]:
        folded = fold(x[0])
        mean, d_mean, d_variance = (
            _expand(t, axes, folded) for t in (result[0], cotangent[0], cotangent[1])
        )
        dx = moments.pullback(folded, mean, d_mean, d_variance, result[2])
        return [tf.reshape(dx, tf.shape(x[0]))]

    def finalize(partial: moments.Moments, pixels: Any) -> tuple[Any, ...]:
        return (*moments.finalize(moments.Moments(*partial)), partial[0])

    return Reduce(
        lambda batch: moments.init(shape(batch), tf.as_dtype(dtype)),
        partial,
        lambda a, b: moments.merge(moments.Moments(*a), moments.Moments(*b)),
        finalize,
        pullback,
        operations=4,
    )


def _expand(t: tf.Tensor, axes: list[int], like: tf.Tensor) -> tf.Tensor:
    for axis in sorted(axes):
        t = tf.expand_dims(t, axis)
    return t


@rule(layers.BatchNormalization)
def batch_normalization(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    images_only(layer, graph, inputs)
    value = cast(graph, inputs[0], layer.compute_dtype)
    known = graph.values[value]
    if layer.axis not in (-1, 3) or getattr(layer, "renorm", False):
        raise UnsupportedLayerError(
            f"layer '{layer.name}': BatchNormalization runs strip by strip over axis=-1 without renorm; "
            f"received axis={layer.axis}, renorm={getattr(layer, 'renorm', False)}."
        )
    streamed = training and layer.trainable
    if streamed:
        op = _moments(
            lambda batch: [known.channels], [0, 1, 2], known.dtype or "float32", lambda x: x
        )
        statistics = graph.reduce(f"{layer.name}/moments", op, [value])
        _moving(layer, graph, statistics)
    else:
        statistics = graph.whole(
            f"{layer.name}/moving",
            lambda x, w: tuple(w),
            [],
            [layer.moving_mean, layer.moving_variance],
        )
    affine = ([layer.gamma] if layer.scale else []) + ([layer.beta] if layer.center else [])

    def run(x: list[Any], w: list[tf.Tensor], strip: kernels.Strip) -> tf.Tensor:
        mean, variance = x[1][:2]
        w = list(w)
        return normalise(
            x[0],
            mean,
            variance,
            w.pop(0) if layer.scale else None,
            w.pop(0) if layer.center else None,
            layer.epsilon,
        )

    return graph.local(
        f"{layer.name}/normalise",
        run,
        [value, statistics],
        known.channels,
        layer.compute_dtype,
        weights=affine,
        cheap=True,
        operations=2 * known.channels,
    )


def _moving(layer: Any, graph: Graph, statistics: int) -> None:
    for variable, item in ((layer.moving_mean, 0), (layer.moving_variance, 1)):

        def update(old: tf.Tensor, new: Any, item: int = item) -> tf.Tensor:
            return old * layer.momentum + tf.cast(new[item], old.dtype) * (1.0 - layer.momentum)

        graph.updates.append((variable, statistics, update))


def normalise(
    x: tf.Tensor, mean: Any, variance: Any, gamma: Any, beta: Any, epsilon: float
) -> tf.Tensor:
    """`x * inv + (beta - mean * inv)` with `inv = rsqrt(variance + epsilon) * gamma`, in float32 or wider."""
    wide = moments.wide(x.dtype)
    mean, variance = tf.cast(mean, wide), tf.cast(variance, wide)
    inv = tf.math.rsqrt(variance + tf.constant(epsilon, wide))
    inv = inv if gamma is None else inv * tf.cast(gamma, wide)
    shift = -mean * inv if beta is None else tf.cast(beta, wide) - mean * inv
    return tf.cast(tf.cast(x, wide) * inv + shift, x.dtype)


@rule(layers.GroupNormalization)
def group_normalization(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    images_only(layer, graph, inputs)
    if layer.axis not in (-1, 3):
        raise UnsupportedLayerError(
            f"layer '{layer.name}': GroupNormalization needs axis=-1, received axis={layer.axis}."
        )
    value = cast(graph, inputs[0], layer.compute_dtype)
    known, groups = graph.values[value], layer.groups

    def fold(x: tf.Tensor) -> tf.Tensor:
        split = tf.concat([tf.shape(x)[:3], [groups, known.channels // groups]], 0)
        return tf.reshape(x, split)  # [N, r, W, groups, C / groups]

    op = _moments(lambda batch: [batch, groups], [1, 2, 4], known.dtype or "float32", fold)
    statistics = graph.reduce(f"{layer.name}/moments", op, [value])
    affine = ([layer.gamma] if layer.scale else []) + ([layer.beta] if layer.center else [])

    def run(x: list[Any], w: list[tf.Tensor], strip: kernels.Strip) -> tf.Tensor:
        w = list(w)
        shape = [groups, known.channels // groups]
        gamma = tf.reshape(w.pop(0), shape) if layer.scale else None
        beta = tf.reshape(w.pop(0), shape) if layer.center else None
        mean, variance = (t[:, None, None, :, None] for t in x[1][:2])
        y = normalise(fold(x[0]), mean, variance, gamma, beta, layer.epsilon)
        return tf.reshape(y, tf.shape(x[0]))

    return graph.local(
        f"{layer.name}/normalise",
        run,
        [value, statistics],
        known.channels,
        layer.compute_dtype,
        weights=affine,
        cheap=True,
        operations=2 * known.channels,
    )


@rule(layers.LayerNormalization)
def layer_normalization(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    axes = [layer.axis] if isinstance(layer.axis, int) else list(layer.axis)
    if axes not in ([-1], [3]):
        raise UnsupportedLayerError(
            f"layer '{layer.name}': LayerNormalization runs strip by strip over the channels, axis=-1; "
            f"received axis={layer.axis}. For statistics over the image use GroupNormalization(groups=1)."
        )
    return per_pixel(layer, graph, inputs)

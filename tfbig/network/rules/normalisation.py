"""Rules for normalisation by statistics of the image, of a pixel, and by constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfbig.network.graph import Reduce
from tfbig.network.rules.call import Call
from tfbig.network.rules.nodes import last_axis, per_pixel
from tfbig.network.rules.registry import rule
from tfbig.ops import affine, moments

layers = keras.layers


class MomentsOf(Reduce):
    """Moments of groups of pixels.

    Args:
        shape: Function from N and C to the shape of the moments.
        axes: Axes of `grouped(x)` that the moments are computed over.
        grouped: Function from a strip `[N, r, ..., C]` to its groups.
        any_channels: Whether `grouped` accepts any number of channels.
    """

    operations = 4

    def __init__(
        self,
        shape: Callable[[Any, Any], Any],
        axes: list[int],
        grouped: Callable[[Any], Any],
        any_channels: bool = False,
    ) -> None:
        self.shape = shape
        self.axes = axes
        self.grouped = grouped
        self.any_channels = any_channels

    def init(self, batch: Any, channels: Sequence[Any]) -> moments.Moments:
        """Return the moments of no pixels."""
        return moments.init(self.shape(batch, channels[0]))

    def partial(self, inputs: list[tf.Tensor], strip: Any) -> moments.Moments:
        """Return the moments of a strip."""
        return moments.of(self.grouped(inputs[0]), self.axes)

    def merge(self, first: Any, second: Any) -> moments.Moments:
        """Return the moments of both."""
        return moments.merge(moments.Moments(*first), moments.Moments(*second))

    def times(self, partial: Any, copies: Any) -> moments.Moments:
        """Return the moments of many strips with the same pixels."""
        count, mean, m2 = partial
        return moments.Moments(copies.of(count), mean, copies.of(m2))

    def finalize(self, partial: Any, pixels: Any) -> tuple[Any, ...]:
        """Return mean, variance, number of elements, and number of elements of a pixel."""
        items = tf.cast(partial[0] // pixels, tf.float64)
        return (*moments.finalize(moments.Moments(*partial)), partial[0], items)

    def pullback(
        self, inputs: list[tf.Tensor], strip: Any, result: Any, cotangent: Any
    ) -> list[Any]:
        """Return the gradient of the image."""
        groups = self.grouped(inputs[0])
        mean, d_mean, d_variance = (
            _expand(t, self.axes) for t in (result[0], cotangent[0], cotangent[1])
        )
        dx = moments.pullback(groups, mean, d_mean, d_variance, result[2])
        return [tf.reshape(dx, tf.shape(inputs[0]))]


def _expand(t: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
    for axis in sorted(axes):
        t = tf.expand_dims(t, axis)
    return t


@rule(layers.BatchNormalization)
def batch_normalization(call: Call) -> int:
    """Add BatchNormalization and return its output value.

    The statistics are those of the whole image if the layer is trained and trainable, else the moving ones.
    """
    layer, graph = call.layer, call.graph
    if not last_axis(call, layer.axis) or getattr(layer, "renorm", False):
        call.refuse(
            "only runs strip by strip over axis=-1 without renorm; "
            f"received axis={layer.axis}, renorm={getattr(layer, 'renorm', False)}."
        )
    if call.training and layer.trainable:
        axes = list(range(call.rank - 1))
        op = MomentsOf(lambda n, c: [c], axes, lambda x: x, any_channels=True)
        statistics = graph.reduce(f"{layer.name}/moments", op, call.inputs)
        if layer.synchronized:
            statistics = call.whole(
                lambda x, w: moments.of_replicas(*x[0]), [statistics], [], "of replicas"
            )
        _update_moving(call, statistics)
    else:
        moving = [layer.moving_mean, layer.moving_variance]
        statistics = call.whole(lambda x, w: tuple(w), [], moving, "moving")
    layer = call.layer

    def prepare(x: list[Any], w: list[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        gamma, beta = w[0] if layer.scale else None, w[-1] if layer.center else None
        mean, variance = x[0][:2]
        return factors_of(mean, variance, gamma, beta, layer.epsilon)

    return call.local(
        lambda x, factors, strip: affine.scaled(x[0], *factors),
        weights=_affine_weights(layer),
        inputs=[*call.inputs, statistics],
        name="normalise",
        operations=2 * call.channels,
        any_channels=True,
        prepare=prepare,
    )


def _affine_weights(layer: Any) -> list[Any]:
    """Return gamma and beta of a layer, those that it has."""
    return ([layer.gamma] if layer.scale else []) + ([layer.beta] if layer.center else [])


def _update_moving(call: Call, statistics: int) -> None:
    layer = call.layer
    for variable, item in ((layer.moving_mean, 0), (layer.moving_variance, 1)):

        def update(old: tf.Tensor, new: Any, item: int = item) -> tf.Tensor:
            return old * layer.momentum + tf.cast(new[item], old.dtype) * (1.0 - layer.momentum)

        call.graph.updates.append((variable, statistics, update))


def _affine(call: Call, statistics: int, expand: Any, grouped: Any) -> int:
    """Add `(x - mean) / sqrt(variance + epsilon) * gamma + beta`, on `grouped(x)` with `expand(mean)`."""
    layer = call.layer

    def run(x: list[Any], w: list[tf.Tensor], strip: Any) -> tf.Tensor:
        groups = grouped(x[0])
        if groups is not x[0]:
            w = [tf.reshape(t, groups.shape[call.rank - 1 :]) for t in w]
        gamma = w[0] if layer.scale else None
        beta = w[-1] if layer.center else None
        mean, variance = (expand(t) for t in x[1][:2])
        y = normalise(groups, mean, variance, gamma, beta, layer.epsilon)
        return y if groups is x[0] else tf.reshape(y, tf.shape(x[0]))

    return call.local(
        run,
        weights=_affine_weights(layer),
        inputs=[*call.inputs, statistics],
        name="normalise",
        operations=2 * call.channels,
    )


def normalise(
    x: tf.Tensor, mean: Any, variance: Any, gamma: Any, beta: Any, epsilon: float
) -> tf.Tensor:
    """Return `x * inv + shift`, see `factors_of`; pixels are computed in float32 or wider.

    Args:
        x: Image.
        mean: Mean, of a shape that broadcasts to that of `x`.
        variance: Variance, of the shape of `mean`.
        gamma: Scale, or None.
        beta: Shift, or None.
        epsilon: Constant that is added to the variance.
    """
    return affine.scaled(x, *factors_of(mean, variance, gamma, beta, epsilon))


def factors_of(
    mean: Any, variance: Any, gamma: Any, beta: Any, epsilon: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return `inv = rsqrt(variance + epsilon) * gamma` and `shift = beta - mean * inv`, in float64.

    The arguments are those of `normalise`.
    """
    mean, variance = tf.cast(mean, tf.float64), tf.cast(variance, tf.float64)
    inv = tf.math.rsqrt(variance + epsilon)
    inv = inv if gamma is None else inv * tf.cast(gamma, tf.float64)
    shift = -mean * inv if beta is None else tf.cast(beta, tf.float64) - mean * inv
    return inv, shift


@rule(layers.GroupNormalization)
def group_normalization(call: Call) -> int:
    """Add GroupNormalization, by the statistics of groups of channels of each image."""
    layer, spatial = call.layer, call.graph.spatial
    if not last_axis(call, layer.axis):
        call.refuse(f"only runs strip by strip over axis=-1; received axis={layer.axis}.")
    groups = call.channels if layer.groups == -1 else layer.groups
    each = call.channels // groups

    def grouped(
        x: tf.Tensor,
    ) -> tf.Tensor:  # [N, r, ..., groups, C / groups]; as it is, if each channel is a group
        if each == 1:
            return x
        split = tf.reshape(x, tf.concat([tf.shape(x)[:-1], [groups, each]], 0))
        return tf.ensure_shape(split, [*x.shape[:-1], groups, each])

    axes = [*range(1, spatial + 1), *([spatial + 2] if each > 1 else [])]
    op = MomentsOf(lambda n, c: [n, groups], axes, grouped)
    statistics = call.graph.reduce(f"{layer.name}/moments", op, call.inputs)
    return _affine(call, statistics, lambda t: _expand(t, axes), grouped)


@rule(layers.LayerNormalization, layers.RMSNormalization, layers.UnitNormalization)
def layer_normalization(call: Call) -> int:
    """Add a normalisation over the channels of each pixel, or without parameters over each image."""
    layer, axis = call.layer, call.layer.axis
    if last_axis(call, axis):
        return per_pixel(call)
    requested = axis if isinstance(axis, (list, tuple)) else [axis]
    axes = sorted(int(a) % call.rank for a in requested)
    of_image = axes[: call.graph.spatial] == [*range(1, call.graph.spatial + 1)]
    if not of_image or not isinstance(layer, layers.LayerNormalization) or layer.rms_scaling:
        call.refuse(
            f"only runs strip by strip over the channels, axis=-1; received axis={axis}. "
            "For statistics over the image use GroupNormalization(groups=1)."
        )
    if layer.scale or layer.center:
        call.refuse(
            f"has a scale or shift for every pixel; received axis={axis}. Use scale=False and center=False, or "
            "GroupNormalization(groups=1), which has one for each channel."
        )
    return _by_image(call, axes)


def _by_image(call: Call, axes: list[int]) -> int:
    """Add a LayerNormalization by the statistics of each image, or of each of its channels."""
    each_channel = call.rank - 1 not in axes
    op = MomentsOf(
        lambda n, c: [n, c] if each_channel else [n], axes, lambda x: x, any_channels=True
    )
    statistics = call.graph.reduce(f"{call.layer.name}/moments", op, call.inputs)
    return _affine(call, statistics, lambda t: _expand(t, axes), lambda x: x)


@rule(layers.Normalization)
def normalization(call: Call) -> int:
    """Add a normalisation by constants per channel."""
    if any(n != 1 for n in call.layer.mean.shape[:-1]):
        call.refuse(
            f"normalises each pixel by other constants; received axis={call.layer.axis}, expected axis=-1."
        )
    return per_pixel(call)

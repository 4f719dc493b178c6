"""The `Instances` layer, which applies a model to every instance of a bag, and its streaming by slices of the bag.

A bag `[N, n, ...]` holds n instances, for example the tiles `[H, W, 3]` of a slide. Layers process each instance
separately, whatever they do inside it, so an instance plays the part of a row with a window of one, and slices of the
bag are strips. A layer that combines all instances is a barrier: BatchNormalization in training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import keras
import tensorflow as tf

from tfbig.errors import UnsupportedLayerError
from tfbig.geometry.windows import SAME, Axis, Interval, partition
from tfbig.network.graph import Graph, Reduce
from tfbig.network.rules import registry
from tfbig.network.rules.call import Call, Slot
from tfbig.network.rules.noise import SPATIAL, GlobalGenerator
from tfbig.network.rules.normalisation import normalise
from tfbig.network.rules.whole_values import add_seed
from tfbig.ops import counter_random, moments, slices
from tfbig.system.keras_internals import StochasticDepth
from tfbig.system.parts import WithParts
from tfbig.units import ceil_div

layers = keras.layers
NOISE = (layers.GaussianNoise, layers.GaussianDropout)
DROPS = (layers.Dropout, *SPATIAL, StochasticDepth)


@keras.saving.register_keras_serializable(package="tfbig")
class Instances(WithParts, keras.layers.Layer):
    """Layer that applies a model to every instance of a bag: `[N, n, ...]` to `[N, n, d]`.

    All instances of all N bags are one batch of the model, so in training its BatchNormalization uses the statistics of
    all of them.

    Args:
        model: Model of a batch of instances, `[batch, ...]` to `[batch, d]`.
        norm_slice: Instances per slice of the bag that BatchNormalization normalises by its own statistics in training,
            as published methods do that process a bag slice by slice to save memory (ABMIL-ACC). The slices are those
            of `tfbig.geometry.windows.partition`: as few as possible, and their sizes differ by at most one. A
            streamed model needs `strip_rows` equal to it. None normalises all instances together.
        **options: Arguments of `keras.layers.Layer`, such as `name`.

    Raises:
        ValueError: `norm_slice` is below 1.

    Example:
        >>> encoder = keras.Sequential(
        ...     [keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3), keras.layers.GlobalAveragePooling2D()]
        ... )
        >>> bag = np.zeros((2, 5, 8, 8, 3), "float32")  # 2 bags of 5 tiles
        >>> tfbig.layers.Instances(encoder)(bag).shape
        TensorShape([2, 5, 4])
    """

    PARTS = ("model",)

    def __init__(self, model: keras.Model, norm_slice: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        if norm_slice is not None and norm_slice < 1:
            raise ValueError(
                f"'{self.name}': norm_slice={norm_slice}; expected 1 or more, or None."
            )
        self.model = model
        self.norm_slice = norm_slice
        self.autocast = False  # every layer of the model casts to its own dtype

    def build(self, shape: Any) -> None:
        """Mark the layer as built; the inner model builds itself."""
        self.built = True

    def call(self, bags: Any, training: bool | None = None) -> Any:
        """Apply the model to every instance."""
        if training and self.norm_slice and not isinstance(bags, keras.KerasTensor):
            return self._by_slices(bags, self.norm_slice)
        return self._at_once(bags, training)

    def _by_slices(self, bags: Any, size: int) -> Any:
        """Apply the model to one slice of the bag after the other, in training."""
        count = tf.shape(bags)[1]
        num_slices = ceil_div(count, size)

        def of_slice(index: Any, state: Any) -> Any:
            start, stop = partition(count, num_slices, index)
            return self._at_once(bags[:, start:stop], True), state

        dtype = self.model.compute_output_spec(self._instance_spec(bags), training=True).dtype
        features, _ = slices.joined(of_slice, num_slices, dtype)
        return tf.ensure_shape(features, self.compute_output_shape(bags.shape))

    def _at_once(self, bags: Any, training: bool | None) -> Any:
        bag = keras.ops.shape(bags)
        features = self.model(keras.ops.reshape(bags, (-1, *bag[2:])), training=training)
        return keras.ops.reshape(features, (*bag[:2], *keras.ops.shape(features)[1:]))

    def compute_output_shape(self, shape: Any) -> Any:
        """Return the shape `[N, n, d]` of the features."""
        return (*shape[:2], *self.model.compute_output_shape((None, *shape[2:]))[1:])

    def compute_output_spec(self, bags: Any, training: bool | None = None) -> Any:
        """Return the spec of the features."""
        spec = self.model.compute_output_spec(self._instance_spec(bags), training=training)
        return keras.KerasTensor((*bags.shape[:2], *spec.shape[1:]), spec.dtype)

    @staticmethod
    def _instance_spec(bags: Any) -> Any:
        """Return the spec of a batch of instances."""
        return keras.KerasTensor(
            (None, *bags.shape[2:]), keras.backend.standardize_dtype(bags.dtype)
        )

    def get_config(self) -> dict[str, Any]:
        """Return the config, with the serialised model."""
        return super().get_config() | {"norm_slice": self.norm_slice} | self.parts_config()


@dataclass(frozen=True)
class FixedExtent:
    """Axis inside an instance, which is never cut.

    Args:
        size: Extent of the axis in the output of the layer.
    """

    size: int

    def extent(self, size: int) -> int:
        """Return the extent of the output."""
        return self.size

    def needs(self, rows: Interval, size: int) -> Interval:
        """Raise an error: strips only cut the axis of the instances."""
        raise NotImplementedError("only the axis of the instances is cut.")


def apply(call: Call) -> list[int]:
    """Add the nodes of a layer that runs on instances and return the values of its outputs.

    Raises:
        UnsupportedLayerError: The layer mixes instances, draws random numbers in a way that slices cannot repeat, or
            changes variables.
    """
    shapes = _shapes(call)
    layer = call.layer
    if call.training and isinstance(layer, DROPS):
        values = [_dropout(call)]
    elif isinstance(layer, layers.BatchNormalization):
        sliced = call.training and layer.trainable and call.graph.norm_slice
        values = [_batch_norm_of_slices(call, sliced)] if sliced else registry.apply(call)
    elif call.training and isinstance(layer, NOISE):
        values = registry.apply(call)
    else:
        values = [_per_instance(call, shapes, position) for position in range(len(shapes))]
    call.graph.instance_shapes |= dict(zip(values, shapes, strict=True))
    return values


def _shapes(call: Call) -> list[tuple[int, ...]]:
    """Return, for each output, the shape of one instance."""
    static = [tuple(t.shape[1:]) for t in call.outputs]
    if all(None not in shape for shape in static):
        return static
    inputs = [
        keras.KerasTensor((None, *call.graph.instance_shapes[value]), spec.dtype)
        for value, spec in zip(call.inputs, call.specs, strict=True)
    ]
    arguments, options = keras.tree.map_structure(
        lambda a: inputs[a.position] if isinstance(a, Slot) else a, call.arguments
    )
    outputs = call.layer.compute_output_spec(*arguments, **options)
    return [tuple(t.shape[1:]) for t in keras.tree.flatten(outputs)]


def sizes(graph: Graph, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the axes of an instance `[..., C]` in the graph, whose images have the rank of the input bag."""
    inside, most = tuple(shape[:-1]), graph.spatial - 1
    if len(inside) <= most:
        return (*inside, *[1] * (most - len(inside)))
    if not most:
        raise UnsupportedLayerError(
            f"an instance has shape {tuple(shape)} here, but the instances of the bag [N, n, d] are vectors."
        )
    merged = len(inside) - most + 1
    return (prod(inside[:merged]), *inside[merged:])


def _per_instance(call: Call, shapes: list[tuple[int, ...]], position: int) -> int:
    """Add a node that calls the layer itself on the instances of a slice, for one of its outputs."""
    graph, variables = call.graph, call.variables
    if call.training and call.generators:
        call.refuse("draws random numbers, which slices of a bag cannot repeat.")
    inputs = [graph.instance_shapes[value] for value in call.inputs]
    inside = sizes(graph, shapes[position])
    axes: tuple[Axis, ...] = (SAME, *map(FixedExtent, inside))
    channels = shapes[position][-1]

    def run(x: list[tf.Tensor], w: list[tf.Tensor], strip: Any) -> tf.Tensor:
        flat = [tf.reshape(t, [-1, *shape]) for t, shape in zip(x, inputs, strict=True)]
        state = list(zip(variables, w, strict=True))
        results, scope = call.run(flat, state)
        before = {id(v): tensor for v, tensor in state}
        after = [(id(v), scope.get_current_value(v)) for v in getattr(call.layer, "variables", [])]
        if any(now is not None and now is not before.get(key) for key, now in after):
            call.refuse(
                "changes its variables, which slices of a bag cannot do one after the other."
            )
        result = keras.tree.flatten(results)[position]
        return tf.reshape(result, tf.concat([tf.shape(x[0])[:2], [*inside, channels]], 0))

    operations = 2 * sum(prod(v.shape) for v in variables if len(v.shape) > 1)
    return graph.local(
        call.layer.name + (f"/{position}" if len(shapes) > 1 else ""),
        run,
        call.inputs,
        channels,
        call.dtype,
        [axes] * len(call.inputs),
        variables,
        operations=operations,
        cheap=not operations,
    )


def _batch_norm_of_slices(call: Call, size: int) -> int:
    """Add a BatchNormalization by the statistics of each slice; moving statistics are updated slice by slice.

    After slices 1 to k a moving statistic is `m**k * old + (1 - m) * sum_i m**(k - i) * new_i`, so the reduction
    keeps the factor of `old` and the sum.
    """
    layer, axes = call.layer, list(range(call.rank - 1))
    momentum = layer.momentum
    affine = ([layer.gamma] if layer.scale else []) + ([layer.beta] if layer.center else [])

    def statistics(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return moments.finalize(moments.of(x, axes))

    def run(x: list[Any], w: list[tf.Tensor], strip: Any) -> tf.Tensor:
        first, last, count = (tf.cast(t, tf.int64) for t in (strip.start, strip.stop, strip.extent))
        num_slices = ceil_div(count, size)
        expected = partition(count, num_slices, ceil_div(first * num_slices, count))
        is_slice = tf.reduce_all([first == expected.start, last == expected.stop])
        message = f"'{layer.name}': norm_slice={size} needs strips of that size; pass strip_rows={size} to stream."
        with tf.control_dependencies([tf.debugging.Assert(is_slice, [message])]):
            mean, variance = statistics(tf.identity(x[0]))
        gamma, beta = w[0] if layer.scale else None, w[-1] if layer.center else None
        return normalise(x[0], mean, variance, gamma, beta, layer.epsilon)

    op = MovingStatistics(statistics, momentum, call.channels)
    changes = call.graph.reduce(f"{layer.name}/moving", op, call.inputs)
    for position, variable in enumerate((layer.moving_mean, layer.moving_variance), start=1):

        def update(old: tf.Tensor, new: Any, position: int = position) -> tf.Tensor:
            return old * tf.cast(new[0], old.dtype) + tf.cast(new[position], old.dtype)

        call.graph.updates.append((variable, changes, update))
    return call.local(
        run, weights=affine, name="normalise", operations=6 * call.channels, uniform=False
    )


class MovingStatistics(Reduce):
    """Moving mean and variance after the updates by one slice after the other.

    Args:
        statistics: Function from a slice to its mean and variance, `[C]`.
        momentum: Factor of the old statistics in each update.
        channels: C.
    """

    operations = 4

    def __init__(
        self, statistics: Callable[[tf.Tensor], Any], momentum: float, channels: int
    ) -> None:
        self.statistics = statistics
        self.momentum = momentum
        self.channels = channels

    def init(self, batch: Any, channels: Sequence[Any]) -> tuple[tf.Tensor, ...]:
        """Return the update by no slice."""
        zeros = tf.zeros([self.channels], tf.float64)
        return tf.ones([], tf.float64), zeros, zeros

    def partial(self, inputs: list[tf.Tensor], strip: Any) -> tuple[tf.Tensor, ...]:
        """Return the update by one slice: factor of the old statistics, then terms to add."""
        new = [(1 - self.momentum) * t for t in self.statistics(inputs[0])]
        return tf.constant(self.momentum, tf.float64), *new

    def merge(self, first: Any, second: Any) -> tuple[tf.Tensor, ...]:
        """Return the update by the first slices, then by the second ones."""
        factor = second[0]
        return first[0] * factor, *(first[i] * factor + second[i] for i in (1, 2))

    def pullback(
        self, inputs: list[tf.Tensor], strip: Any, result: Any, cotangent: Any
    ) -> list[tf.Tensor]:
        """Return zeros: the statistics are not trained through."""
        return [tf.zeros_like(inputs[0])]


def _dropout(call: Call) -> int:
    """Add dropout whose mask depends on seed and position in the bag; axes with `noise_shape` 1 share their mask."""
    layer = call.layer
    rate: float = getattr(layer, "rate", 0.0)
    generator = getattr(layer, "seed_generator", None)
    noise = getattr(layer, "noise_shape", None) or (None,) * len(call.specs[0].shape)
    if isinstance(layer, SPATIAL):
        noise = (None, *[1] * (len(noise) - 2), None)
    elif isinstance(layer, StochasticDepth):
        rate, generator, noise = (
            layer.drop_path_rate,
            GlobalGenerator(),
            (None, *[1] * (len(noise) - 1)),
        )
    if rate == 0:
        return call.inputs[0]
    if noise[0] is not None or any(n not in (None, 1) for n in noise):
        call.refuse(
            f"has noise_shape={noise}; for instances expected None first, then None or 1 for each axis."
        )
    shared = [n == 1 for n in noise[1:-1]]
    shared += [True] * (call.graph.spatial - 1 - len(shared))

    def run(x: list[Any], w: Any, strip: Any) -> tf.Tensor:
        shape = tf.unstack(tf.shape(x[0]), num=call.rank)
        inside = [1 if same else n for n, same in zip(shape[2:-1], shared, strict=True)]
        last = 1 if noise[-1] == 1 else call.channels
        ones = tf.ones([*shape[:2], *inside, last], x[0].dtype)
        return x[0] * counter_random.dropout(ones, rate, x[1], strip.start)

    return call.local(run, inputs=[*call.inputs, add_seed(call, generator)], uniform=False)

"""A model applied to every instance of a bag, and how it is read when the axis that is cut is the bag.

A bag `[N, n, ...]` holds n instances, for example the tiles `[H, W, 3]` of a slide. Layers treat each instance alone,
whatever they do inside it, so an instance is what a row is elsewhere, with a window of one; and slices of the bag are
strips. What looks at all instances at once is a barrier: BatchNormalization in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import keras
import tensorflow as tf
from keras.src.applications.convnext import StochasticDepth

from tfbig.errors import UnsupportedLayerError
from tfbig.geometry.windows import SAME, Axis, Interval, partition
from tfbig.network.graph import Graph, Reduce
from tfbig.network.rules import registry
from tfbig.network.rules.call import Call, Slot
from tfbig.network.rules.noise import SPATIAL, Global
from tfbig.network.rules.normalisation import normalise
from tfbig.network.rules.small import seed
from tfbig.ops import counter_random, moments

layers = keras.layers
NOISE = (layers.GaussianNoise, layers.GaussianDropout)
DROPS = (layers.Dropout, *SPATIAL, StochasticDepth)


@keras.saving.register_keras_serializable(package="tfbig")
class Instances(keras.layers.Layer):
    """Applies a model to every instance of a bag: `[N, n, ...]` to `[N, n, d]`.

    All instances of all N bags are one batch of the model, so in training its BatchNormalization has the statistics of
    all of them.

    Args:
        model: takes one instance, `[batch, ...]`.
        norm_slice: in training, BatchNormalization has the statistics of so many instances at a time, slice after slice
            of the bag, as where memory holds no more (ABMIL-ACC). The slices are `geometry.partition`: the fewest of
            at most so many, whose sizes differ by one at most. Streamed, `strip_rows` must be the same number.
    """

    def __init__(self, model: keras.Model, norm_slice: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        if norm_slice is not None and norm_slice < 1:
            raise ValueError(
                f"'{self.name}': norm_slice={norm_slice}; expected 1 or more, or None."
            )
        self.model = model
        self.norm_slice = norm_slice
        self.autocast = False  # every layer of the model has its own element type

    def build(self, shape: Any) -> None:
        self.built = True

    def call(self, bags: Any, training: bool | None = None) -> Any:
        if training and self.norm_slice and not isinstance(bags, keras.KerasTensor):
            return self._by_slices(bags, self.norm_slice)
        return self._at_once(bags, training)

    def _by_slices(self, bags: Any, size: int) -> Any:
        """One slice of the bag after the other, in training."""

        count = tf.shape(bags)[1]
        num_slices = -(-count // size)

        def one(index: Any, found: Any) -> Any:
            start, stop = partition(count, num_slices, index)
            part = self._at_once(bags[:, start:stop], True)
            return index + 1, found.write(index, tf.einsum("ab...->ba...", part))

        dtype = self.model.compute_output_spec(self._one(bags), training=True).dtype
        found = tf.TensorArray(dtype, num_slices, infer_shape=False)
        _, found = tf.while_loop(
            lambda index, _: index < num_slices, one, (0, found), parallel_iterations=1
        )
        features = tf.einsum("ab...->ba...", found.concat())
        return tf.ensure_shape(features, self.compute_output_shape(bags.shape))

    def _at_once(self, bags: Any, training: bool | None) -> Any:
        bag = keras.ops.shape(bags)
        found = self.model(keras.ops.reshape(bags, (-1, *bag[2:])), training=training)
        return keras.ops.reshape(found, (*bag[:2], *keras.ops.shape(found)[1:]))

    def compute_output_shape(self, shape: Any) -> Any:
        return (*shape[:2], *self.model.compute_output_shape((None, *shape[2:]))[1:])

    def compute_output_spec(self, bags: Any, training: bool | None = None) -> Any:
        found = self.model.compute_output_spec(self._one(bags), training=training)
        return keras.KerasTensor((*bags.shape[:2], *found.shape[1:]), found.dtype)

    @staticmethod
    def _one(bags: Any) -> Any:
        """What stands for a batch of instances."""
        return keras.KerasTensor(
            (None, *bags.shape[2:]), keras.backend.standardize_dtype(bags.dtype)
        )

    def get_config(self) -> dict[str, Any]:
        model = keras.saving.serialize_keras_object(self.model)
        return super().get_config() | {"model": model, "norm_slice": self.norm_slice}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Instances:
        config = dict(config)
        model = keras.saving.deserialize_keras_object(config.pop("model"), custom_objects)
        return cls(model, **config)


@dataclass(frozen=True)
class To:
    """An axis inside an instance, which is never cut: as long as the layer makes it."""

    size: int

    def extent(self, size: int) -> int:
        return self.size

    def needs(self, rows: Interval, size: int) -> Interval:
        raise NotImplementedError("the axis of the instances alone is cut.")


def apply(call: Call) -> list[int]:
    """Adds the nodes of a layer that works on instances; gives the values of its outputs.

    Raises:
        UnsupportedLayerError: the layer mixes instances, draws numbers in a way that slices cannot repeat, or changes
            variables.
    """
    shapes = _shapes(call)
    layer = call.layer
    if call.training and isinstance(layer, DROPS):
        found = [_dropout(call)]
    elif isinstance(layer, layers.BatchNormalization):
        sliced = call.training and layer.trainable and call.graph.norm_slice
        found = [_norm_of_slices(call, sliced)] if sliced else registry.apply(call)
    elif call.training and isinstance(layer, NOISE):
        found = registry.apply(call)
    else:
        found = [_each(call, shapes, position) for position in range(len(shapes))]
    call.graph.instance_shapes |= dict(zip(found, shapes, strict=True))
    return found


def _shapes(call: Call) -> list[tuple[int, ...]]:
    """Shapes of one instance of each output, from those of the inputs."""
    known = [tuple(t.shape[1:]) for t in call.outputs]
    if all(None not in shape for shape in known):
        return known
    inputs = [
        keras.KerasTensor((None, *call.graph.instance_shapes[value]), spec.dtype)
        for value, spec in zip(call.inputs, call.specs, strict=True)
    ]
    arguments, options = keras.tree.map_structure(
        lambda a: inputs[a.position] if isinstance(a, Slot) else a, call.arguments
    )
    made = call.layer.compute_output_spec(*arguments, **options)
    return [tuple(t.shape[1:]) for t in keras.tree.flatten(made)]


def sizes(graph: Graph, shape: Sequence[int]) -> tuple[int, ...]:
    """Axes of an instance `[..., C]` in the graph, whose images have as many as the bag that goes in."""
    inside, most = tuple(shape[:-1]), graph.spatial - 1
    if len(inside) <= most:
        return (*inside, *[1] * (most - len(inside)))
    if not most:
        raise UnsupportedLayerError(
            f"an instance has shape {tuple(shape)} here, but the bag [N, n, d] holds vectors."
        )
    merged = len(inside) - most + 1
    return (prod(inside[:merged]), *inside[merged:])


def _each(call: Call, shapes: list[tuple[int, ...]], position: int) -> int:
    """The layer itself on the instances of a slice; one of its outputs."""
    graph, variables = call.graph, call.variables
    if call.training and call.generators:
        call.refuse("draws random numbers, which slices of a bag cannot draw again.")
    inputs = [graph.instance_shapes[value] for value in call.inputs]
    inside = sizes(graph, shapes[position])
    axes: tuple[Axis, ...] = (SAME, *map(To, inside))
    channels = shapes[position][-1]

    def run(x: list[tf.Tensor], w: list[tf.Tensor], strip: Any) -> tf.Tensor:
        flat = [tf.reshape(t, [-1, *shape]) for t, shape in zip(x, inputs, strict=True)]
        given = list(zip(variables, w, strict=True))
        found, scope = call.run(flat, given)
        before = {id(v): tensor for v, tensor in given}
        changed = [
            (id(v), scope.get_current_value(v)) for v in getattr(call.layer, "variables", [])
        ]
        if any(now is not None and now is not before.get(key) for key, now in changed):
            call.refuse("changes its variables, which slices of a bag cannot do in turn.")
        found = keras.tree.flatten(found)[position]
        return tf.reshape(found, tf.concat([tf.shape(x[0])[:2], [*inside, channels]], 0))

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


def _norm_of_slices(call: Call, size: int) -> int:
    """BatchNormalization by the statistics of the slice that is worked on; the moving ones change slice by slice.

    After slices 1 to k a moving statistic is `m**k * old + (1 - m) * sum_i m**(k - i) * new_i`, so what a reduction
    keeps is the pair (factor of old, what is added).
    """
    layer, axes = call.layer, list(range(call.rank - 1))
    momentum = layer.momentum
    affine = ([layer.gamma] if layer.scale else []) + ([layer.beta] if layer.center else [])

    def statistics(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return moments.finalize(moments.of(x, axes))

    def run(x: list[Any], w: list[tf.Tensor], strip: Any) -> tf.Tensor:
        first, last, count = (tf.cast(t, tf.int64) for t in (strip.start, strip.stop, strip.extent))
        num_slices = -(-count // size)
        wanted = partition(count, num_slices, -(-first * num_slices // count))
        whole = tf.reduce_all([first == wanted.start, last == wanted.stop])
        message = f"'{layer.name}': norm_slice={size} needs strips of as many; pass strip_rows={size} to tfbig.stream."
        with tf.control_dependencies([tf.debugging.Assert(whole, [message])]):
            mean, variance = statistics(tf.identity(x[0]))
        gamma, beta = w[0] if layer.scale else None, w[-1] if layer.center else None
        return normalise(x[0], mean, variance, gamma, beta, layer.epsilon)

    def partial(x: list[tf.Tensor], w: Any, strip: Any) -> tuple[tf.Tensor, ...]:
        mean, variance = statistics(x[0])
        return tf.constant(momentum, tf.float64), (1 - momentum) * mean, (1 - momentum) * variance

    def merge(a: Any, b: Any) -> tuple[tf.Tensor, ...]:
        return a[0] * b[0], a[1] * b[0] + b[1], a[2] * b[0] + b[2]

    zeros = tf.zeros([call.channels], tf.float64)
    op = Reduce(
        lambda batch: (tf.ones([], tf.float64), zeros, zeros),
        partial,
        merge,
        lambda total, pixels: total,
        lambda x, *_: [tf.zeros_like(x[0])],
        operations=4,
    )
    changes = call.graph.reduce(f"{layer.name}/moving", op, call.inputs)
    for position, variable in enumerate((layer.moving_mean, layer.moving_variance), start=1):

        def update(old: tf.Tensor, new: Any, position: int = position) -> tf.Tensor:
            return old * tf.cast(new[0], old.dtype) + tf.cast(new[position], old.dtype)

        call.graph.updates.append((variable, changes, update))
    return call.local(run, weights=affine, name="normalise", operations=6 * call.channels)


def _dropout(call: Call) -> int:
    """A mask by seed and place in the bag; one number for all places of an instance where `noise_shape` has 1."""
    layer = call.layer
    rate: float = getattr(layer, "rate", 0.0)
    generator = getattr(layer, "seed_generator", None)
    noise = getattr(layer, "noise_shape", None) or (None,) * len(call.specs[0].shape)
    if isinstance(layer, SPATIAL):
        noise = (None, *[1] * (len(noise) - 2), None)
    elif isinstance(layer, StochasticDepth):
        rate, generator, noise = layer.drop_path_rate, Global(), (None, *[1] * (len(noise) - 1))
    if rate == 0:
        return call.inputs[0]
    if noise[0] is not None or any(n not in (None, 1) for n in noise):
        call.refuse(f"has noise_shape={noise}; for instances it is (None, ...) of None and 1.")
    alike = [n == 1 for n in noise[1:-1]]
    alike += [True] * (call.graph.spatial - 1 - len(alike))

    def run(x: list[Any], w: Any, strip: Any) -> tf.Tensor:
        shape = tf.unstack(tf.shape(x[0]), num=call.rank)
        inside = [1 if same else n for n, same in zip(shape[2:-1], alike, strict=True)]
        last = 1 if noise[-1] == 1 else call.channels
        ones = tf.ones([*shape[:2], *inside, last], x[0].dtype)
        return x[0] * counter_random.dropout(ones, rate, x[1], strip.start)

    return call.local(run, inputs=[*call.inputs, seed(call, generator)])

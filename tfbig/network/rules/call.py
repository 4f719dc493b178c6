"""One call of a layer, as its rule sees it: what comes in, what goes out, and how nodes are added."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NoReturn

import keras
import tensorflow as tf
from keras.src.backend import AutocastScope
from keras.src.backend.common.global_state import get_global_attribute
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR

from tfbig.errors import UnsupportedLayerError
from tfbig.geometry.windows import Axis
from tfbig.network.graph import Graph, Reduce, Value
from tfbig.ops import kernels, moments


@dataclass(frozen=True)
class Slot:
    """Where a tensor stands among the arguments of a call: the one of `Call.inputs[position]`."""

    position: int


@dataclass(frozen=True)
class Call:
    """A call of a Keras layer or operation while a model is read; a rule turns it into nodes.

    Args:
        layer: the layer, or operation.
        graph: what it is read into.
        inputs: value ids, in the order of the arguments; images in the element type that the layer computes in.
        specs: the Keras tensor that each input stands for: static shape and element type.
        outputs: the Keras tensors that the layer makes.
        training: whether it trains.
        arguments: `(args, kwargs)` of the call with a `Slot` for every tensor.
        kind: class that the layer runs as, where it is not its own: the twin of a Big layer.
    """

    layer: Any
    graph: Graph
    inputs: tuple[int, ...]
    specs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    training: bool
    arguments: Any
    kind: type | None = None

    # ------------------------------------------------------------------------------ nodes

    def local(
        self,
        function: Callable[..., Any],
        windows: Sequence[Axis] | None = None,
        weights: Sequence[Any] = (),
        *,
        inputs: Sequence[int] | None = None,
        outside: float | None = 0.0,
        channels: int | None = None,
        name: str = "",
        **traits: Any,
    ) -> int:
        """Adds an image whose rows depend on a bounded window of rows; gives its value.

        Args:
            function: `(x, w, strip) -> tensor`. `x` lists the inputs: of an image `[N, r, ..., C]` the rows that
                `windows` ask for, padding included, so that a valid window gives the rows of the strip. `w` lists
                the weights; `strip` (`tfbig.ops.kernels.Strip`) says where the strip lies.
            windows: one `tfbig.geometry.Window` per spatial axis of the model, the same for every image; by
                default every pixel of the output depends on the pixel at its own place.
            weights: Keras variables.
            inputs: values; those of the call by default.
            outside: number that stands outside the image; None: nothing is padded, `function` sees to it by `strip`,
                and to the order of the axes by `graph.order`.
            channels: of the result; those of the layer's output by default.
            name: of this step, where there are several.
            traits: see `tfbig.network.graph.Local`; `cheap` by default where there are no windows.
        """
        inputs = self.inputs if inputs is None else inputs
        channels = self.channels if channels is None else channels
        axes = None
        if windows is not None:
            if len(windows) != self.graph.spatial:
                self.refuse(
                    f"has a rule with {len(windows)} windows; expected one per spatial axis, {self.graph.spatial}."
                )
            image_axes = self.graph.turned(windows)
            axes = [image_axes if self.graph.values[i].image else None for i in inputs]
            taps = prod(getattr(a, "kernel", 1) for a in windows)
            traits.setdefault("operations", 2 * channels * taps)
            if outside is not None:
                function = _padding(function, axes, outside, self.graph)
        traits.setdefault("cheap", windows is None)
        return self.graph.local(
            self._name(name), function, inputs, channels, self.dtype, axes, weights, **traits
        )

    def reduce(
        self,
        partial: Callable[..., Any],
        finalize: Callable[..., Any] | None = None,
        weights: Sequence[Any] = (),
        *,
        inputs: Sequence[int] | None = None,
        name: str = "",
    ) -> int:
        """Adds a sum over all pixels and what is made from it; gives its value, which is small and exists complete.

        Args:
            partial: `(x, strip) -> tensor or tuple`: what the rows of a strip add to the sum, for example
                `tf.reduce_sum(x[0], [1, 2])`. Its shape may depend on N and C alone. `x` lists the inputs, which
                are all images, in float32 or wider.
            finalize: `(total, pixels, w) -> tensor`, from the sum over all strips and the number of pixels of an
                image, a scalar of the same element type; the sum itself by default.
            weights: Keras variables for `finalize`.
            inputs: values; those of the call by default.
            name: of this step, where there are several.
        """
        inputs = self.inputs if inputs is None else inputs
        known = [self.graph.values[i] for i in inputs]
        op = _sum(partial, known, self.graph.spatial)
        total = self.graph.reduce(self._name(f"{name}_reduce" if name else "reduce"), op, inputs)
        dtype = self.dtype

        def finish(x: list[Any], w: list[tf.Tensor]) -> Any:
            *sums, pixels = x[0]
            sums = sums[0] if len(sums) == 1 else tuple(sums)
            result = sums if finalize is None else finalize(sums, pixels, w)
            return tf.nest.map_structure(lambda t: tf.cast(t, dtype), result)

        return self.graph.whole(self._name(name), finish, [total], weights)

    def whole(
        self,
        function: Callable[..., Any],
        inputs: Sequence[int],
        weights: Sequence[Any] = (),
        name: str = "",
    ) -> int:
        """Adds `function(x, w)`, a small tensor made from small tensors; gives its value."""
        return self.graph.whole(self._name(name), function, inputs, weights)

    def _name(self, step: str) -> str:
        return f"{self.layer.name}/{step}" if step else self.layer.name

    # ------------------------------------------------------------------------ what is known

    @property
    def images(self) -> list[Value]:
        """The inputs that are images."""
        return [self.graph.values[i] for i in self.inputs if self.graph.values[i].image]

    @property
    def rank(self) -> int:
        """Dimensions of an image: N, the spatial axes, C."""
        return self.graph.spatial + 2

    @property
    def channels(self) -> int:
        """C of the output."""
        return int(self.outputs[0].shape[-1])

    @property
    def dtype(self) -> str:
        """Element type of the output."""
        return keras.backend.standardize_dtype(self.outputs[0].dtype)

    @property
    def variables(self) -> list[Any]:
        """Floating-point variables of the layer, and those among its arguments."""
        own = getattr(self.layer, "variables", [])
        given = [a for a in keras.tree.flatten(self.arguments) if isinstance(a, keras.Variable)]
        return [v for v in (*own, *given) if keras.backend.is_float_dtype(v.dtype)]

    @property
    def generators(self) -> list[Any]:
        """What the layer draws random numbers from."""
        layers: list[Any] = getattr(self.layer, "_flatten_layers", list)()
        return [g for layer in layers for g in layer._seed_generators]

    def kernel(self, weight: tf.Tensor) -> tf.Tensor:
        """A kernel `[k, ..., a, b]`, turned as the images of the graph."""
        if self.graph.order is None:
            return weight
        return tf.transpose(weight, (*self.graph.order, self.graph.spatial, self.graph.spatial + 1))

    def refuse(self, reason: str) -> NoReturn:
        """Raises an error that names the layer."""
        raise UnsupportedLayerError(
            f"layer '{self.layer.name}' ({type(self.layer).__name__}) {reason}"
        )

    # ------------------------------------------------------------------------------ running

    def run(self, x: Sequence[Any], state: Iterable[tuple[Any, Any]] = ()) -> tuple[Any, Any]:
        """Calls the layer itself on tensors.

        Args:
            x: one tensor per input.
            state: `(variable, tensor)`: values that stand for those of the layer's variables.

        Returns:
            What it gives, and the `keras.StatelessScope` with the new values of its variables.
        """
        args, kwargs = keras.tree.map_structure(
            lambda a: x[a.position] if isinstance(a, Slot) else a, self.arguments
        )
        function = self.layer
        if self.kind is not None:
            function = self.kind.call.__get__(self.layer)  # type: ignore[attr-defined]
        elif isinstance(self.layer, keras.Layer):
            # As in Keras, `training` of the model's call overrides that of a layer's call.
            kwargs = {**kwargs, "training": self.training}
        state = list(state)
        with AutocastScope(None), keras.StatelessScope(collect_losses=True) as scope:
            # Given to the scope, values would be cast: to the type of mixed precision, or without that to `floatx`.
            scope.state_mapping.update({id(variable): value for variable, value in state})
            result = function(*args, **kwargs)
        if scope.losses:
            self.refuse("adds a loss of its own, which cannot run strip by strip.")
        if _drawn_unseeded(scope, state):
            self.refuse(
                "draws random numbers from Keras' global generator, which strips cannot draw again; "
                "give it a keras.random.SeedGenerator of its own."
            )
        return result, scope

    def on(self, inputs: Sequence[int]) -> Call:
        """The same call on other values."""
        return replace(self, inputs=tuple(inputs))

    def inner(self, layer: Any, value: int) -> Call:
        """The call of another layer on an image like this one's output: an activation that is a layer."""
        arguments: Any = ((Slot(0),), {})
        return replace(self, layer=layer, inputs=(value,), specs=self.outputs, arguments=arguments)


def _drawn_unseeded(scope: Any, state: Sequence[tuple[Any, Any]]) -> bool:
    """Whether something drew from Keras' global generator, which `state` does not hold."""
    generator = get_global_attribute(GLOBAL_SEED_GENERATOR)
    if generator is None or any(v is generator.state for v, _ in state):
        return False
    return scope.get_current_value(generator.state) is not None


def _padding(
    function: Callable[..., Any], axes: Sequence[Any], outside: float, graph: Graph
) -> Callable[..., Any]:
    """The function on images with their padding, turned as in the model."""

    def padded(x: list[Any], w: list[tf.Tensor], strip: kernels.Strip) -> Any:
        x = [
            t if a is None else _turn(kernels.padded(t, a, strip, outside, p), graph.turning_back)
            for p, (t, a) in enumerate(zip(x, axes, strict=True))
        ]
        return _turn(function(x, w, strip), graph.turning)

    return padded


def _turn(x: tf.Tensor, turning: tuple[int, ...]) -> tf.Tensor:
    return x if list(turning) == sorted(turning) else tf.transpose(x, turning)


def _sum(partial: Callable[..., Any], images: Sequence[Value], spatial: int) -> Reduce:
    """A sum over strips, whose gradient is that of every strip's part."""
    wide = moments.wide(tf.as_dtype(images[0].dtype))

    def part(x: list[tf.Tensor], strip: Any) -> tuple[tf.Tensor, ...]:
        found = partial([tf.cast(t, wide) for t in x], strip)
        return tuple(found) if isinstance(found, (tuple, list)) else (found,)

    def init(batch: Any) -> tuple[tf.Tensor, ...]:
        pixel = [tf.ones([batch, *[1] * spatial, i.channels], wide) for i in images]
        return tuple(tf.zeros_like(t) for t in part(pixel, kernels.Strip(0, 1, 1, ())))

    def pullback(x: list[Any], w: Any, strip: Any, result: Any, cotangent: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            found = part(x, strip)
        return tape.gradient(found, x, list(cotangent[: len(found)]))

    return Reduce(
        init,
        lambda x, w, strip: part(x, strip),
        lambda a, b: tuple(i + j for i, j in zip(a, b, strict=True)),
        lambda a, pixels: (*a, tf.cast(tf.cast(pixels, tf.float64), wide)),
        pullback,
        operations=images[0].channels,
    )

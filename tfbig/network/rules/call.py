"""The call of a layer that a rule receives: its inputs and outputs, and methods that add nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NoReturn

import keras
import tensorflow as tf

from tfbig.errors import Advice, UnsupportedLayerError
from tfbig.geometry.windows import Axis
from tfbig.network.graph import Graph, Reduce, Value
from tfbig.ops import kernels, totals
from tfbig.system import keras_internals


@dataclass(frozen=True)
class Slot:
    """Placeholder for the tensor `Call.inputs[position]` among the arguments of a call."""

    position: int


@dataclass(frozen=True)
class Call:
    """A call of a Keras layer or operation while a model is read; a rule turns it into nodes.

    Args:
        layer: The layer, or operation.
        graph: Graph that nodes are added to.
        inputs: Value ids, in the order of the arguments; images in the element type that the layer computes in.
        specs: Keras tensor of each input, with its static shape and element type.
        outputs: Keras tensors of the outputs.
        training: Whether the layer runs in training mode.
        arguments: `(args, kwargs)` of the call with a `Slot` for every tensor.
        kind: Class whose rule and `call` are used instead of those of the layer: the twin of a Big layer.
        substitutes: `(variable, whole value)`: values that nodes use instead of variables of the layer.
    """

    layer: Any
    graph: Graph
    inputs: tuple[int, ...]
    specs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    training: bool
    arguments: Any
    kind: type | None = None
    substitutes: tuple[tuple[Any, int], ...] = ()

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
        dtype: str | None = None,
        name: str = "",
        **traits: Any,
    ) -> int:
        """Add an image whose rows depend on a bounded window of input rows, and return its value.

        Args:
            function: `(x, w, strip) -> tensor`. `x` lists the inputs: for an image `[N, r, ..., C]` the rows that
                `windows` request, padding included, so that a valid window returns the rows of the strip. `w` lists
                the weights; `strip` (`tfbig.ops.kernels.Strip`) is the position of the strip.
            windows: One `tfbig.geometry.Window` per spatial axis of the model, the same for every image; by
                default each output pixel depends on the input pixel at the same position.
            weights: Keras variables.
            inputs: Values; by default those of the call.
            outside: Padding value. With None nothing is padded and images stay in the order of the graph:
                `function` has to pad by `strip` and to respect `graph.order`.
            channels: Channels of the result; by default those of the layer's output.
            dtype: Element type of the result; by default that of the layer's first output.
            name: Name of this step if there are several.
            **traits: See `tfbig.network.graph.Local`; `cheap` by default if there are no windows. With `tiles=True`, a
                function outside of tfbig gets tiles of images whose whole rows do not fit the budget: it must not
                depend on the number of columns of the image, or use `strip.others`. With `uniform=True`, it is not
                run on background, where it must give equal results for equal pixels wherever they are.
        """
        inputs = self.inputs if inputs is None else inputs
        channels = self.channels if channels is None else channels
        for trait in ("tiles", "uniform"):
            traits.setdefault(trait, str(function.__module__).startswith("tfbig."))
        if any(variable is w for variable, _ in self.substitutes for w in weights):
            function, inputs, weights, traits = self._substituted(function, inputs, weights, traits)
        axes = None
        if windows is not None:
            if len(windows) != self.graph.spatial:
                self.refuse(
                    f"has a rule with {len(windows)} windows; expected {self.graph.spatial}, one per spatial axis."
                )
            image_axes = self.graph.to_graph_order(windows)
            axes = [image_axes if self.graph.values[i].image else None for i in inputs]
            taps = prod(getattr(a, "kernel", 1) for a in windows)
            traits.setdefault("operations", 2 * channels * taps)
            if outside is not None:
                function = _padding(function, axes, outside, self.graph)
        traits.setdefault("cheap", windows is None)
        return self.graph.local(
            self._name(name),
            function,
            inputs,
            channels,
            dtype or self.dtype,
            axes,
            weights,
            **traits,
        )

    def reduce(
        self,
        partial: Callable[..., Any],
        finalize: Callable[..., Any] | None = None,
        weights: Sequence[Any] = (),
        *,
        inputs: Sequence[int] | None = None,
        name: str = "",
        any_channels: bool = False,
        dtype: str | None = None,
    ) -> int:
        """Add a sum over all pixels and a function of it, and return the value of the result, a whole value.

        Args:
            partial: `(x, strip) -> tensor or tuple`: the sum over the rows of a strip, for example
                `tf.reduce_sum(x[0], [1, 2])`. Its shape may depend only on N and C. `x` lists the inputs, which
                are all images, in float32 or wider.
            finalize: `(total, pixels, w) -> tensor`, computed from the sum over all strips and the number of pixels
                of an image, a scalar of the same element type; by default the sum itself.
            weights: Keras variables for `finalize`.
            inputs: Values; by default those of the call.
            name: Name of this step if there are several.
            any_channels: A trait of `partial`, see `tfbig.network.graph.Local`.
            dtype: Element type of the result; by default that of the layer's first output.
        """
        inputs = self.inputs if inputs is None else inputs
        images = [self.graph.values[i] for i in inputs]
        op = Sum(partial, images, self.graph.spatial, any_channels)
        total = self.graph.reduce(self._name(f"{name}_reduce" if name else "reduce"), op, inputs)
        dtype = dtype or self.dtype

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
        """Add a whole value `function(x, w)` computed from whole values, and return it."""
        return self.graph.whole(self._name(name), function, inputs, weights)

    def _substituted(
        self, function: Any, inputs: Sequence[int], weights: Sequence[Any], traits: dict[str, Any]
    ) -> tuple[Any, Sequence[int], Sequence[Any], dict[str, Any]]:
        """Return the arguments of `local` with whole values among the inputs in place of some weights."""
        values = {id(variable): value for variable, value in self.substitutes}
        given = [id(w) in values for w in weights]
        prepare, count = traits.get("prepare"), sum(given)

        def all_weights(x: Sequence[Any], w: Sequence[Any]) -> list[Any]:
            of_inputs, others = iter(x[len(x) - count :]), iter(w)
            return [next(of_inputs) if is_value else next(others) for is_value in given]

        def run(x: Sequence[Any], w: Any, strip: Any) -> Any:
            w = w if prepare else all_weights(x, w)
            return function(list(x[: len(x) - count]), w, strip)

        changed: dict[str, Any] = {"phase": None, "any_channels": False}
        if prepare:
            changed["prepare"] = lambda x, w: prepare(x[: len(x) - count], all_weights(x, w))
        inputs = [*inputs, *(values[id(w)] for w in weights if id(w) in values)]
        return run, inputs, [w for w in weights if id(w) not in values], traits | changed

    def _name(self, step: str) -> str:
        return f"{self.layer.name}/{step}" if step else self.layer.name

    # ------------------------------------------------------------------------ properties

    @property
    def images(self) -> list[Value]:
        """Inputs that are images."""
        return [self.graph.values[i] for i in self.inputs if self.graph.values[i].image]

    @property
    def rank(self) -> int:
        """Number of dimensions of an image: N, the spatial axes, C."""
        return self.graph.spatial + 2

    @property
    def channels(self) -> int:
        """Number of channels of the output."""
        return int(self.outputs[0].shape[-1])

    @property
    def dtype(self) -> str:
        """Element type of the first output."""
        return keras.backend.standardize_dtype(self.outputs[0].dtype)

    @property
    def variables(self) -> list[Any]:
        """Floating-point variables of the layer and among its arguments."""
        of_layer = getattr(self.layer, "variables", [])
        in_arguments = [
            a for a in keras.tree.flatten(self.arguments) if isinstance(a, keras.Variable)
        ]
        return [v for v in (*of_layer, *in_arguments) if keras.backend.is_float_dtype(v.dtype)]

    @property
    def generators(self) -> list[Any]:
        """Seed generators of the layer."""
        return keras_internals.seed_generators(self.layer)

    def kernel(self, weight: tf.Tensor) -> tf.Tensor:
        """Return a kernel `[k, ..., a, b]`, transposed as the images of the graph."""
        if self.graph.order is None:
            return weight
        return tf.transpose(weight, (*self.graph.order, self.graph.spatial, self.graph.spatial + 1))

    def refuse(self, reason: str, *advice: Advice) -> NoReturn:
        """Raise an `UnsupportedLayerError` that names the layer; `advice` is what to do beside what the reason says."""
        raise UnsupportedLayerError(
            f"layer '{self.layer.name}' ({type(self.layer).__name__}) {reason}", *advice
        )

    # ------------------------------------------------------------------------------ running

    def run(self, x: Sequence[Any], state: Iterable[tuple[Any, Any]] = ()) -> tuple[Any, Any]:
        """Call the layer itself on tensors.

        Args:
            x: One tensor per input.
            state: `(variable, tensor)`: values to use for variables of the layer.

        Returns:
            The result, and the `keras.StatelessScope` with the new values of the variables.
        """
        args, kwargs = keras.tree.map_structure(
            lambda a: x[a.position] if isinstance(a, Slot) else a, self.arguments
        )
        function = self.layer
        if self.kind is not None:
            function = self.kind.call.__get__(self.layer)  # type: ignore[attr-defined]
        elif isinstance(self.layer, keras.Layer):
            # As in Keras, the mode of the model overrides the `training` argument of the layer call.
            kwargs = {**kwargs, "training": self.training}
        state = list(state)
        with (
            keras_internals.without_autocast(),
            keras.StatelessScope(collect_losses=True) as scope,
        ):
            # Passed to the scope, values would be cast: to the type of mixed precision, or without that to `floatx`.
            scope.state_mapping.update({id(variable): value for variable, value in state})
            result = function(*args, **kwargs)
        if scope.losses:
            self.refuse("calls add_loss, which cannot run strip by strip.")
        if _drawn_unseeded(scope, state):
            self.refuse(
                "draws random numbers from Keras' global generator, which strips cannot repeat; "
                "create a keras.random.SeedGenerator in the layer."
            )
        return result, scope

    def with_inputs(self, inputs: Sequence[int]) -> Call:
        """Return the same call on other values."""
        return replace(self, inputs=tuple(inputs))

    def for_activation(self, layer: Any, value: int) -> Call:
        """Return the call of an activation that is a layer, on an image with the shape of the output."""
        arguments: Any = ((Slot(0),), {})
        return replace(self, layer=layer, inputs=(value,), specs=self.outputs, arguments=arguments)


def _drawn_unseeded(scope: Any, state: Sequence[tuple[Any, Any]]) -> bool:
    """Return whether the layer used Keras' global seed generator although `state` does not hold it."""
    generator = keras_internals.existing_seed_generator()
    if generator is None or any(v is generator.state for v, _ in state):
        return False
    return scope.get_current_value(generator.state) is not None


def _padding(
    function: Callable[..., Any], axes: Sequence[Any], outside: float, graph: Graph
) -> Callable[..., Any]:
    """Wrap a rule's function so that it receives padded images in the axis order of the model."""

    def padded(x: list[Any], w: list[tf.Tensor], strip: kernels.Strip) -> Any:
        x = [
            t
            if a is None
            else _transpose(kernels.padded(t, a, strip, outside, p), graph.inverse_permutation)
            for p, (t, a) in enumerate(zip(x, axes, strict=True))
        ]
        return _transpose(function(x, w, strip), graph.permutation)

    return padded


def _transpose(x: tf.Tensor, permutation: tuple[int, ...]) -> tf.Tensor:
    return x if list(permutation) == sorted(permutation) else tf.transpose(x, permutation)


class Sum(Reduce):
    """Sum of a function over strips; its pullback differentiates the function on each strip.

    Args:
        function: `(x, strip) -> tensor or tuple`, the sum over the rows of a strip.
        images: The inputs.
        spatial: Number of spatial axes.
        any_channels: As in `Reduce`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        images: Sequence[Value],
        spatial: int,
        any_channels: bool = False,
    ) -> None:
        self.function = function
        self.any_channels = any_channels
        self.spatial = spatial
        self.wide = totals.wide(tf.as_dtype(images[0].dtype))
        self.operations = images[0].channels

    def init(self, batch: Any, channels: Sequence[Any]) -> tuple[tf.Tensor, ...]:
        """Return zeros."""
        pixel = [tf.ones([batch, *[1] * self.spatial, c], self.wide) for c in channels]
        return tuple(tf.zeros_like(t) for t in self.partial(pixel, kernels.Strip(0, 1, 1, ())))

    def partial(self, inputs: list[tf.Tensor], strip: Any) -> tuple[tf.Tensor, ...]:
        """Return the sums of a strip, in float64, in which those of all strips are added up."""
        return tuple(tf.cast(t, tf.float64) for t in self._sums(inputs, strip))

    def _sums(self, inputs: list[tf.Tensor], strip: Any) -> tuple[tf.Tensor, ...]:
        """Return the sums of a strip in the element type of the function."""
        sums = self.function([tf.cast(t, self.wide) for t in inputs], strip)
        return tuple(sums) if isinstance(sums, (tuple, list)) else (sums,)

    def finalize(self, partial: tuple[tf.Tensor, ...], pixels: Any) -> tuple[tf.Tensor, ...]:
        """Return the sums and the number of pixels, in their element type."""
        return tuple(tf.cast(t, self.wide) for t in (*partial, tf.cast(pixels, tf.float64)))

    def pullback(
        self, inputs: list[tf.Tensor], strip: Any, result: Any, cotangent: Any
    ) -> list[Any]:
        """Return the gradients of the inputs."""
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            sums = self._sums(inputs, strip)
        seeds = [tf.cast(c, t.dtype) for t, c in zip(sums, cotangent, strict=False)]
        return tape.gradient(sums, inputs, seeds)

"""Splitting a model into a front that streams and a rest that runs on whole tensors, as plain Keras.

The tensors that the front computes and the rest reads, or that are outputs, cross between them. The rest is an ordinary
functional model of the same layers, so its statistics, dropout and losses are Keras' own, and gradients flow through
the crossing tensors. This is the "number of stages that are Big" of Big-Layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from difflib import get_close_matches
from math import prod
from typing import Any

import keras

from tfbig.errors import UnsupportedLayerError
from tfbig.geometry.windows import Size
from tfbig.network import keras_reader
from tfbig.network.instances import Instances
from tfbig.network.rules import registry
from tfbig.system import keras_internals
from tfbig.units import itemsize


@dataclass(frozen=True)
class Split:
    """A functional model split into front and rest.

    Args:
        model: The model that is split.
        front: Model from the inputs to the crossing tensors.
        rest: Model from the crossing tensors, and inputs that it reads directly, to the other outputs.
        rest_inputs: Source of each input of the rest: `("crossing", i)` or `("input", i)`.
        output_sources: Source of each output of the model: `("crossing", i)`, `("input", i)` or `("rest", i)`.
        whole: Model from the inputs to every whole tensor: the crossing ones and all tensors of the rest.
    """

    model: Any
    front: keras.Model
    rest: keras.Model
    rest_inputs: tuple[tuple[str, int], ...]
    output_sources: tuple[tuple[str, int], ...]
    whole: keras.Model
    _known: dict[Any, list[tuple[int | None, ...]]] = field(default_factory=dict, compare=False)

    def outputs(
        self, inputs: Sequence[Any], crossing: Sequence[Any], training: bool | None
    ) -> list[Any]:
        """Run the rest and return the flat outputs of the model.

        Args:
            inputs: Inputs of the model.
            crossing: Outputs of the front.
            training: Mode of the rest.
        """
        crossing = restore_shapes(crossing, self.front.outputs)
        tensors: dict[str, Sequence[Any]] = {"input": inputs, "crossing": crossing}
        rest_inputs = [tensors[source][i] for source, i in self.rest_inputs]
        tensors["rest"] = keras.tree.flatten(self.rest(rest_inputs, training=training))
        return [tensors[source][i] for source, i in self.output_sources]

    def whole_bytes(self, batch: int, size: Size) -> int:
        """Return the bytes of the tensors that cross into the rest and of all tensors of the rest.

        Args:
            batch: N.
            size: Rows, columns, ... of the input images.
        """
        rank = max(len(t.shape) for t in self.model.inputs)
        shapes = [
            (batch, *size, t.shape[-1]) if len(t.shape) == rank else (batch, *t.shape[1:])
            for t in self.model.inputs
        ]
        return sum(
            prod(t.shape) * itemsize(keras.backend.standardize_dtype(t.dtype))
            for t in self._specs(self.whole, shapes)
        )

    def output_shapes(self, shapes: Sequence[Sequence[int | None]]) -> list[tuple[int | None, ...]]:
        """Return the shapes of the outputs of the model, None for lengths that are not known.

        Args:
            shapes: Shapes of its inputs.
        """
        key = tuple(map(tuple, shapes))
        if key not in self._known:
            self._known.clear()  # consecutive steps are often on one size
            self._known[key] = [tuple(t.shape) for t in self._specs(self.model, shapes)]
        return self._known[key]

    def _specs(self, model: keras.Model, shapes: Sequence[Sequence[int | None]]) -> list[Any]:
        """Return the flat outputs of a model with the inputs of this one as symbolic tensors, for inputs of shapes."""
        inputs = zip(shapes, self.model.inputs, strict=True)
        specs = [keras.KerasTensor(shape, t.dtype) for shape, t in inputs]
        # In another thread: this reads variables, which the tape of a step that is being traced must not record.
        with ThreadPoolExecutor(1) as thread:
            outputs = thread.submit(model.compute_output_spec, specs).result()
        return list(keras.tree.flatten(outputs))

    @property
    def direct(self) -> frozenset[int]:
        """Positions of the inputs that the rest reads or that are outputs."""
        sources = (*self.rest_inputs, *self.output_sources)
        return frozenset(i for source, i in sources if source == "input")

    @property
    def layers(self) -> str:
        """Text naming the layers that run on whole tensors: `'c5' .. 'fc' (12 layers)`."""
        names = [n.name for n in self.rest.layers if not isinstance(n, keras.layers.InputLayer)]
        return f"'{names[0]}' .. '{names[-1]}' ({len(names)} layers)"


def restore_shapes(tensors: Sequence[Any], specs: Sequence[Any]) -> list[Any]:
    """Reshape streamed outputs to their shapes in the model: channels of several axes, or none, have one in the graph.

    Features of instances have extra axes of length one.
    """
    return [_restored(t, tuple(s.shape)) for t, s in zip(tensors, specs, strict=True)]


def _restored(t: Any, shape: tuple[int | None, ...]) -> Any:
    if len(t.shape) == len(shape):
        return t
    leading = len(t.shape) - 1
    channels = shape[leading:]
    of_channels = None not in channels and prod(channels) == t.shape[-1]  # type: ignore[arg-type]
    kept = leading if len(shape) >= leading and of_channels else 2
    return keras.ops.reshape(t, (*keras.ops.shape(t)[:kept], *shape[kept:]))


def find(model: Any, upto: str | None, unsupported: str) -> Split | None:
    """Split a functional model, or return None if all of it streams.

    Args:
        model: Functional model.
        upto: Name of the last layer that streams, with all layers that it depends on; None for all layers.
        unsupported: "device" to run layers that cannot stream, and those that depend on them, in the rest;
            "error" to raise an error for them.

    Raises:
        ValueError: No layer is called `upto`, or `unsupported` is neither of the two.
        UnsupportedLayerError: No layer is left to stream.
    """
    if unsupported not in ("error", "device"):
        raise ValueError(f"unsupported={unsupported!r}: expected 'error' or 'device'.")
    nodes = [n for n in keras_internals.nodes(model) if not n.is_input]
    bags = [n.operation.name for n in nodes if isinstance(n.operation, Instances)]
    if upto is None and bags:
        upto = bags[-1]  # later layers need the features of all instances at once
    front = nodes if upto is None else _calls_up_to(model, nodes, upto)
    if unsupported == "device":
        front = _streamable(model, front)
    _check_bags(front)
    front_tensors = {id(t) for n in front for t in n.output_tensors}
    if all(id(t) in front_tensors or any(t is i for i in model.inputs) for t in model.outputs):
        return None
    if not front:
        first = next(n for n in nodes if not any(id(t) in front_tensors for t in n.output_tensors))
        raise UnsupportedLayerError(
            f"nothing of '{model.name}' would stream: its first layer '{first.operation.name}' "
            f"({type(first.operation).__name__}) runs on whole tensors. {_advice(first.operation, upto)}"
        )
    return _cut(model, [n for n in nodes if n not in front], front_tensors)


def _advice(layer: Any, upto: str | None) -> str:
    """Return what to do if nothing streams because the first layer runs on whole tensors."""
    if registry.is_augmentation(layer):
        return registry.IN_PIPELINE
    first = "Choose a later layer" if upto else "Put a layer that can stream in its place"
    return f"{first}, or use the plain model."


def _check_bags(front: list[Any]) -> None:
    """Raise if a layer after `Instances` would stream: it needs the whole bag, not a slice."""
    features: set[int] = set()
    for node in front:
        layer = node.operation
        inner = keras_internals.inner_layers(layer) if isinstance(layer, keras.Model) else []
        nested = any(isinstance(each, Instances) for each in inner)
        if nested or any(id(t) in features for t in node.arguments.keras_tensors):
            raise UnsupportedLayerError(
                f"layer '{layer.name}' {'holds' if nested else 'follows'} the instances of a bag, which it needs all "
                "at once; stream up to the `Instances` layer, and put that in the model itself, not in a nested model."
            )
        if isinstance(layer, Instances):
            features |= {id(t) for t in node.output_tensors}


def _calls_up_to(model: Any, nodes: list[Any], name: str) -> list[Any]:
    """Return the calls of a layer and those that they depend on."""
    names = list(dict.fromkeys(n.operation.name for n in nodes))
    if name not in names:
        near = get_close_matches(name, names, n=3, cutoff=0.4) or names[-3:]
        inside = [
            n.operation.name
            for n in nodes
            if isinstance(n.operation, keras.Model) and _has_layer(n.operation, name)
        ]
        hint = f" It is inside '{inside[0]}', which can only stream as a whole." if inside else ""
        raise ValueError(
            f"'{model.name}' has no layer called '{name}' to stream up to; did you mean "
            f"{', '.join(map(repr, near))}?{hint}"
        )
    needed = {id(t) for n in nodes if n.operation.name == name for t in n.output_tensors}
    calls: list[Any] = []
    for node in reversed(nodes):
        if any(id(t) in needed for t in node.output_tensors):
            needed |= {id(t) for t in node.arguments.keras_tensors}
            calls.insert(0, node)
    return calls


def _has_layer(model: keras.Model, name: str) -> bool:
    return any(layer.name == name for layer in keras_internals.inner_layers(model))


def _streamable(model: Any, nodes: list[Any]) -> list[Any]:
    """Return the calls that can stream and depend only on calls that can."""
    inputs = keras.Model(model.inputs, model.inputs)
    graph = keras_reader.read(inputs, True)
    value_of = {id(t): v for t, v in zip(model.inputs, graph.outputs, strict=True)}
    calls: list[Any] = []
    for node in nodes:
        specs = node.arguments.keras_tensors
        if has_activity_regularizer(node.operation) or any(id(t) not in value_of for t in specs):
            continue
        try:
            value_of |= keras_reader.read_node(graph, node, value_of, True)
        except UnsupportedLayerError:
            continue
        calls.append(node)
    return calls


def has_activity_regularizer(layer: Any) -> bool:
    """Return whether a layer or one inside it adds a penalty of its output to the loss."""
    layers = [layer, *keras_internals.inner_layers(layer)]
    return any(getattr(each, "activity_regularizer", None) is not None for each in layers)


def _cut(model: Any, rest: list[Any], front_tensors: set[int]) -> Split:
    """Return the split of a model.

    Args:
        model: Functional model.
        rest: Calls of the rest.
        front_tensors: `id` of each tensor that the front computes.
    """
    needed = {id(t): t for n in rest for t in n.arguments.keras_tensors}
    needed |= {id(t): t for t in model.outputs}
    crossing = [t for i, t in needed.items() if i in front_tensors]
    direct = [t for t in model.inputs if id(t) in needed]
    sources = {id(t): ("crossing", i) for i, t in enumerate(crossing)}
    sources |= {id(t): ("input", i) for i, t in enumerate(model.inputs) if id(t) in needed}
    rest_tensors = [t for n in rest for t in n.output_tensors]
    outputs = list({id(t): t for t in model.outputs if id(t) not in sources}.values())
    output_sources = sources | {id(t): ("rest", i) for i, t in enumerate(outputs)}
    inputs = [t for t in [*crossing, *direct] if any(_reads(n, t) for n in rest)]
    return Split(
        model,
        keras.Model(model.inputs, crossing, name=f"{model.name}_front"),
        _model_of_calls(rest, inputs, outputs, name=f"{model.name}_rest"),
        tuple(sources[id(t)] for t in inputs),
        tuple(output_sources[id(t)] for t in model.outputs),
        keras.Model(model.inputs, [*crossing, *rest_tensors]),
    )


def _model_of_calls(
    calls: list[Any], inputs: list[Any], outputs: list[Any], name: str
) -> keras.Model:
    """Return a new model of some calls of another; layers are called again, as the front may call them too."""
    new_inputs = [keras.Input(batch_shape=t.shape, dtype=t.dtype) for t in inputs]
    copies = {id(t): i for t, i in zip(inputs, new_inputs, strict=True)}
    for node in calls:
        arguments, options = node.arguments.fill_in(copies)
        results = keras.tree.flatten(node.operation(*arguments, **options))
        copies |= {id(t): r for t, r in zip(node.output_tensors, results, strict=True)}
    return keras.Model(new_inputs, [copies[id(t)] for t in outputs], name=name)


def _reads(node: Any, tensor: Any) -> bool:
    return any(t is tensor for t in node.arguments.keras_tensors)

"""A model in two: a front that streams, and a rest that runs on whole tensors, as plain Keras.

Tensors cross between them: what the front makes and the rest, or the outputs, take. The rest is an ordinary
functional model of the same layers, so its statistics, dropout and losses are Keras' own, and gradients flow through
the tensors that cross. This is the "number of stages that are Big" of Big-Layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from difflib import get_close_matches
from math import prod
from types import SimpleNamespace
from typing import Any

import keras

from tfbig.errors import UnsupportedLayerError
from tfbig.geometry.windows import Size
from tfbig.network import keras_reader
from tfbig.network.instances import Instances
from tfbig.units import itemsize


@dataclass(frozen=True)
class Split:
    """Where a functional model is cut.

    Args:
        model: the whole.
        front: from its inputs to what crosses, as a model.
        rest: from what crosses, and inputs that it reads itself, to its other outputs.
        reads: what the rest takes: `("crossing", i)` or `("input", i)`.
        gives: where each output of the model comes from: `("crossing", i)` or `("rest", i)`.
        whole: every tensor that exists complete: what crosses and what the rest makes, as a model of it.
    """

    model: Any
    front: keras.Model
    rest: keras.Model
    reads: tuple[tuple[str, int], ...]
    gives: tuple[tuple[str, int], ...]
    whole: keras.Model

    def outputs(
        self, inputs: Sequence[Any], crossing: Sequence[Any], training: bool | None
    ) -> list[Any]:
        """Runs the rest; gives the outputs of the model, flat."""
        crossing = shaped(crossing, self.front.outputs)
        found: dict[str, Sequence[Any]] = {"input": inputs, "crossing": crossing}
        given = [found[place][i] for place, i in self.reads]
        found["rest"] = keras.tree.flatten(self.rest(given, training=training))
        return [found[place][i] for place, i in self.gives]

    def whole_bytes(self, batch: int, size: Size) -> int:
        """Bytes of all tensors that exist complete, for input images of `batch` x `size`."""
        rank = max(len(t.shape) for t in self.model.inputs)
        specs = [
            keras.KerasTensor(
                (batch, *size, t.shape[-1]) if len(t.shape) == rank else (batch, *t.shape[1:]),
                t.dtype,
            )
            for t in self.model.inputs
        ]
        # In a thread of its own: this reads variables, which the tape of a step that is being traced must not see.
        with ThreadPoolExecutor(1) as thread:
            found = thread.submit(self.whole.compute_output_spec, specs).result()
        found = keras.tree.flatten(found)
        return sum(
            prod(t.shape) * itemsize(keras.backend.standardize_dtype(t.dtype)) for t in found
        )

    @property
    def direct(self) -> frozenset[int]:
        """Positions of the inputs that do not only stream."""
        return frozenset(i for place, i in (*self.reads, *self.gives) if place == "input")

    @property
    def layers(self) -> str:
        """What runs on whole tensors: `'c5' .. 'fc' (12 layers)`."""
        names = [n.name for n in self.rest.layers if not isinstance(n, keras.layers.InputLayer)]
        return f"'{names[0]}' .. '{names[-1]}' ({len(names)} layers)"


def shaped(tensors: Sequence[Any], specs: Sequence[Any]) -> list[Any]:
    """What streamed, as the model has it: features of instances come with the axes of an instance, of length one."""
    return [
        t
        if len(t.shape) == len(s.shape)
        else keras.ops.reshape(t, (*keras.ops.shape(t)[:2], *s.shape[2:]))
        for t, s in zip(tensors, specs, strict=True)
    ]


def find(model: Any, upto: str | None, unsupported: str) -> Split | None:
    """Where to cut a functional model, or None where all of it streams.

    Args:
        model: functional.
        upto: name of the last layer that streams, with all that it needs; None for all layers.
        unsupported: "device": a layer that cannot stream, and what depends on it, goes to the rest;
            "error": it is an error.

    Raises:
        ValueError: no layer is called `upto`, or `unsupported` is something else.
        UnsupportedLayerError: nothing is left to stream.
    """
    if unsupported not in ("error", "device"):
        raise ValueError(f"unsupported={unsupported!r}: expected 'error' or 'device'.")
    nodes = [n for n in _nodes(model) if not n.is_input]
    bags = [n.operation.name for n in nodes if isinstance(n.operation, Instances)]
    if upto is None and bags:
        upto = bags[-1]  # what is made of the features of all instances needs them at once
    front = nodes if upto is None else _needed(model, nodes, upto)
    if unsupported == "device":
        front = _readable(model, front)
    _check_bags(front)
    made = {id(t) for n in front for t in n.output_tensors}
    if all(id(t) in made or any(t is i for i in model.inputs) for t in model.outputs):
        return None
    if not front:
        first = next(n for n in nodes if not any(id(t) in made for t in n.output_tensors))
        raise UnsupportedLayerError(
            f"nothing of '{model.name}' would stream: its first layer '{first.operation.name}' "
            f"({type(first.operation).__name__}) runs on whole tensors. Choose a later layer, or use the plain model."
        )
    return _cut(model, [n for n in nodes if n not in front], made)


def _check_bags(front: list[Any]) -> None:
    """Refuses to stream what follows a layer `Instances`: a slice of the bag is not what it is made for."""
    features: set[int] = set()
    for node in front:
        layer = node.operation
        inner = layer._flatten_layers(include_self=False) if isinstance(layer, keras.Model) else []
        nested = any(isinstance(each, Instances) for each in inner)
        if nested or any(id(t) in features for t in node.arguments.keras_tensors):
            raise UnsupportedLayerError(
                f"layer '{layer.name}' {'holds' if nested else 'follows'} the instances of a bag, which it needs at "
                "once; stream up to the `Instances` layer, and have that in the model itself, not in a model inside it."
            )
        if isinstance(layer, Instances):
            features |= {id(t) for t in node.output_tensors}


def _nodes(model: Any) -> Iterator[Any]:
    """The calls of a functional model, in an order in which they can run."""
    for depth in sorted(model._nodes_by_depth, reverse=True):
        yield from model._nodes_by_depth[depth]


def _needed(model: Any, nodes: list[Any], name: str) -> list[Any]:
    """The calls of a layer and those that they depend on."""
    names = list(dict.fromkeys(n.operation.name for n in nodes))
    if name not in names:
        near = get_close_matches(name, names, n=3, cutoff=0.4) or names[-3:]
        inside = [
            n.operation.name
            for n in nodes
            if isinstance(n.operation, keras.Model) and _has_layer(n.operation, name)
        ]
        hint = (
            f" It is inside '{inside[0]}', which streams as a whole or not at all."
            if inside
            else ""
        )
        raise ValueError(
            f"'{model.name}' has no layer called '{name}' to stream up to; near are "
            f"{', '.join(map(repr, near))}.{hint}"
        )
    wanted = {id(t) for n in nodes if n.operation.name == name for t in n.output_tensors}
    found: list[Any] = []
    for node in reversed(nodes):
        if any(id(t) in wanted for t in node.output_tensors):
            wanted |= {id(t) for t in node.arguments.keras_tensors}
            found.insert(0, node)
    return found


def _has_layer(model: keras.Model, name: str) -> bool:
    return any(layer.name == name for layer in model._flatten_layers(include_self=False))


def _readable(model: Any, nodes: list[Any]) -> list[Any]:
    """The calls that can stream and depend on none that cannot."""
    inputs = keras.Model(model.inputs, model.inputs)
    graph = keras_reader.read(inputs, True)
    known = {id(t): v for t, v in zip(model.inputs, graph.outputs, strict=True)}
    found: list[Any] = []
    for node in nodes:
        specs = node.arguments.keras_tensors
        if penalises(node.operation) or any(id(t) not in known for t in specs):
            continue
        one = SimpleNamespace(
            inputs=specs, outputs=node.output_tensors, _nodes_by_depth={0: [node]}
        )
        try:
            values = keras_reader.read_into(graph, one, [known[id(t)] for t in specs], True)
        except UnsupportedLayerError:
            continue
        known |= {id(t): v for t, v in zip(node.output_tensors, values, strict=True)}
        found.append(node)
    return found


def penalises(layer: Any) -> bool:
    """Whether a layer, or one inside it, adds a penalty of its whole output to the loss."""
    inner = layer._flatten_layers() if isinstance(layer, keras.layers.Layer) else []
    return any(getattr(each, "activity_regularizer", None) is not None for each in inner)


def _cut(model: Any, behind: list[Any], made: set[int]) -> Split:
    """The split of a model whose front makes the tensors `made`, `behind` being the calls of the rest."""
    taken = {id(t): t for n in behind for t in n.arguments.keras_tensors}
    taken |= {id(t): t for t in model.outputs}
    crossing = [t for i, t in taken.items() if i in made]
    direct = [t for t in model.inputs if id(t) in taken]
    place = {id(t): ("crossing", i) for i, t in enumerate(crossing)}
    place |= {id(t): ("input", i) for i, t in enumerate(model.inputs) if id(t) in taken}
    made_here = [t for n in behind for t in n.output_tensors]
    others = list({id(t): t for t in model.outputs if id(t) not in place}.values())
    rest_place = {id(t): ("rest", i) for i, t in enumerate(others)}
    read = [t for t in [*crossing, *direct] if any(_reads(n, t) for n in behind)]
    return Split(
        model,
        keras.Model(model.inputs, crossing, name=f"{model.name}_front"),
        _again(behind, read, others, name=f"{model.name}_rest"),
        tuple(place[id(t)] for t in read),
        tuple((place | rest_place)[id(t)] for t in model.outputs),
        keras.Model(model.inputs, [*crossing, *made_here]),
    )


def _again(calls: list[Any], read: list[Any], others: list[Any], name: str) -> keras.Model:
    """A model of some calls of another: the calls are made again, as a layer may be called before them too."""
    inputs = [keras.Input(batch_shape=t.shape, dtype=t.dtype) for t in read]
    known = {id(t): i for t, i in zip(read, inputs, strict=True)}
    for node in calls:
        arguments, options = node.arguments.fill_in(known)
        made = keras.tree.flatten(node.operation(*arguments, **options))
        known |= {id(t): m for t, m in zip(node.output_tensors, made, strict=True)}
    return keras.Model(inputs, [known[id(t)] for t in others], name=name)


def _reads(node: Any, tensor: Any) -> bool:
    return any(t is tensor for t in node.arguments.keras_tensors)

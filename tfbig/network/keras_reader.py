"""Reads a Keras model into a graph of nodes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import keras
import tensorflow as tf

from tfbig.errors import UnsupportedLayerError
from tfbig.network import instances, rules, user_code
from tfbig.network.graph import Graph
from tfbig.network.rules.nodes import cast


def read(
    model: keras.Model,
    training: bool | None,
    input_dtypes: list[str] | None = None,
    order: tuple[int, ...] | None = None,
) -> Graph:
    """The nodes of a functional or Sequential model.

    Args:
        model: built; every layer that works on images needs a rule.
        training: whether BatchNormalization uses the statistics of the image and dropout drops; None: where the
            model calls its layers so.
        input_dtypes: element type of each input as it will arrive; that of the model by default.
        order: of the spatial axes, the one to cut first, see `longest_first`; by default as they come.

    Raises:
        UnsupportedLayerError: a layer without a rule, a channels-first layer, or a subclassed model.
    """
    functional = as_functional(model)
    graph = Graph(spatial=_spatial(functional, model.name), order=order)
    values = []
    for position, tensor in enumerate(functional.inputs):
        image = len(tensor.shape) == graph.spatial + 2
        if image and tensor.shape[-1] is None:
            raise UnsupportedLayerError(
                f"input '{tensor.name}' of '{model.name}' has no known channels."
            )
        dtype = (
            input_dtypes[position]
            if input_dtypes
            else keras.backend.standardize_dtype(tensor.dtype)
        )
        channels = int(tensor.shape[-1]) if image else 0
        values.append(graph.input(tensor.name, image, channels, dtype if image else None))
    outputs = read_into(graph, functional, values, training)
    graph.outputs = [_made(graph, v) if v in graph.inputs else v for v in outputs]
    return graph


def longest_first(size: Sequence[int]) -> tuple[int, ...] | None:
    """Order of spatial axes in which the longest is cut; None where that is the first.

    Strips span the other axes in full, so the smallest strip is one place of the longest axis by all of the others.
    """
    longest = max(range(len(size)), key=lambda i: size[i])
    if size[longest] == size[0]:
        return None
    return (longest, *(i for i in range(len(size)) if i != longest))


def _made(graph: Graph, value: int) -> int:
    """A value of its own for an output that is an input."""
    known = graph.values[value]
    if not known.image:
        return graph.whole(f"{known.name}/output", lambda x, w: tf.identity(x[0]), [value])
    return graph.local(
        f"{known.name}/output",
        lambda x, w, strip: tf.identity(x[0]),
        [value],
        known.channels,
        known.dtype or "float32",
        cheap=True,
    )


def _spatial(functional: Any, name: str) -> int:
    """Spatial axes of the images: the inputs with the most dimensions are images, the others small."""
    spatial = max(len(t.shape) for t in functional.inputs) - 2
    if not 1 <= spatial <= 3:
        shapes = [t.shape for t in functional.inputs]
        raise UnsupportedLayerError(
            f"'{name}' has no image among its inputs, whose shapes are {shapes}; an image is [N, rows, ..., C] with "
            "one, two or three spatial axes."
        )
    return spatial


def as_functional(model: keras.Model) -> Any:
    """The functional form of a model.

    Raises:
        UnsupportedLayerError: the model has none.
    """
    if user_code.overridden(model, "call"):
        raise UnsupportedLayerError(
            f"'{model.name}' ({type(model).__name__}) overrides `call`, so its graph is not what it computes; "
            "use a functional or Sequential model of Keras' own class."
        )
    if isinstance(model, keras.Sequential):
        if not model.built:
            raise UnsupportedLayerError(
                f"Sequential model '{model.name}' is not built; call model.build(input_shape) first."
            )
        return model._functional
    if hasattr(model, "_nodes_by_depth"):
        return model
    raise UnsupportedLayerError(
        f"'{model.name}' ({type(model).__name__}) is a subclassed model, whose graph is not known; "
        "use a functional or Sequential model."
    )


def read_into(graph: Graph, functional: Any, inputs: list[int], training: bool | None) -> list[int]:
    """Adds the layers of a model to a graph; gives the values of its outputs."""
    known = {id(t): v for t, v in zip(functional.inputs, inputs, strict=True)}
    for depth in sorted(functional._nodes_by_depth, reverse=True):
        for node in functional._nodes_by_depth[depth]:
            specs = node.arguments.keras_tensors
            if node.is_input or any(id(t) not in known for t in specs):
                continue
            slots = count()
            arguments = node.arguments.convert(
                lambda a, slots=slots: (
                    rules.Slot(next(slots)) if isinstance(a, keras.KerasTensor) else a
                )
            )
            values = [known[id(t)] for t in specs]
            outputs = node.output_tensors
            found = read_call(graph, node.operation, values, specs, outputs, training, arguments)
            known |= {id(t): v for t, v in zip(outputs, found, strict=True)}
    return [known[id(t)] for t in functional.outputs]


def read_call(
    graph: Graph,
    layer: Any,
    values: Sequence[int],
    specs: Sequence[Any],
    outputs: Sequence[Any],
    training: bool | None,
    arguments: Any = None,
    kind: type | None = None,
) -> list[int]:
    """Adds one call of a layer, an operation or an inner model to a graph; gives the values of its outputs.

    Args:
        graph: what it is added to.
        layer: what is called.
        values: its inputs.
        specs, outputs: the Keras tensors that go in and come out.
        training: whether it trains; None: as its arguments say, else not. Keras lets that of the model override
            them.
        arguments: `(args, kwargs)` with slots for the inputs; by default the input, or the list of inputs.
        kind: class that the layer runs as; its own by default.
    """
    if arguments is None:
        slots = [rules.Slot(i) for i in range(len(values))]
        arguments = ((slots if len(slots) > 1 else slots[0],), {})
    training = arguments[1].get("training") if training is None else training
    images = any(graph.values[v].image for v in values)
    if images and isinstance(layer, instances.Instances):
        return _read_instances(graph, layer, values[0], specs[0], training)
    if images and isinstance(layer, keras.Model):
        return read_into(graph, as_functional(layer), list(values), training)
    if images:
        dtypes = [getattr(layer, "compute_dtype", t.dtype) for t in specs]
        values = [_cast(graph, v, d) for v, d in zip(values, dtypes, strict=True)]
    call = rules.Call(
        layer, graph, tuple(values), tuple(specs), tuple(outputs), bool(training), arguments, kind
    )
    first = len(graph.nodes)
    apply = instances.apply if _holds_instances(graph, values) else rules.apply
    found = apply(call) if images else rules.small(call)
    alike = _alike(call)
    for step, node in enumerate(graph.nodes[first:]):
        part = (*alike, type(node.op).__name__, node.name.partition("/")[2], step)
        graph.nodes[first + step] = replace(node, kind=part)
    return found


def _read_instances(
    graph: Graph, layer: Any, bag: int, spec: Any, training: bool | None
) -> list[int]:
    """The layers of a model that is applied to every instance."""
    shape = tuple(spec.shape[2:])
    if None in shape:
        raise UnsupportedLayerError(
            f"layer '{layer.name}' takes instances of shape {shape}; slices of a bag need a known shape, as in "
            "keras.Input((None, 224, 224, 3))."
        )
    graph.instance_shapes[bag] = shape
    graph.norm_slice = layer.norm_slice
    graph.at_once = 1
    return read_into(graph, as_functional(layer.model), [bag], training)


def _holds_instances(graph: Graph, values: Sequence[int]) -> bool:
    return any(v in graph.instance_shapes for v in values)


def _cast(graph: Graph, value: int, dtype: str) -> int:
    """The value in another element type; instances keep their shape."""
    found = cast(graph, value, dtype)
    if value in graph.instance_shapes:
        graph.instance_shapes[found] = graph.instance_shapes[value]
    return found


_OF_NO_EFFECT = ("name", "trainable", "_initializer", "_regularizer", "_constraint")


def _alike(call: rules.Call) -> tuple[Any, ...]:
    """What decides how a layer computes; one that is not Keras' own may hold more than its config says."""
    layer = call.layer
    others = [a for a in keras.tree.flatten(call.arguments) if not isinstance(a, rules.Slot)]
    plain = all(isinstance(a, (bool, int, float, str, type(None))) for a in others)
    holds_more = isinstance(layer, (keras.Model, keras.layers.Normalization))
    function = getattr(layer, "activation", None)
    mine = not str(getattr(function, "__module__", "keras.")).startswith("keras.")
    if holds_more or mine or not plain or not type(layer).__module__.startswith("keras."):
        return (object(),)  # like no other
    config = {k: v for k, v in layer.get_config().items() if not k.endswith(_OF_NO_EFFECT)}
    known = [call.graph.values[i] for i in call.inputs]
    return (
        type(layer).__name__,
        json.dumps(config, sort_keys=True, default=repr),
        call.training,
        repr(call.arguments),
        tuple((v.image, v.channels, v.dtype) for v in known),
    )

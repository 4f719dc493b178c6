"""Reads a Keras model into a graph of nodes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import keras

from tfbig import rules
from tfbig.errors import UnsupportedLayerError
from tfbig.graph import Graph


def read(model: keras.Model, training: bool, input_dtypes: list[str] | None = None) -> Graph:
    """The nodes of a functional or Sequential model.

    Args:
        model: built; every layer needs a rule.
        training: whether BatchNormalization uses the statistics of the image and dropout drops.
        input_dtypes: element type of each input as it will arrive; that of the model by default.

    Raises:
        UnsupportedLayerError: a layer without a rule, a channels-first layer, or a subclassed model.
    """
    functional = as_functional(model)
    graph = Graph()
    values = []
    for position, tensor in enumerate(functional.inputs):
        image = len(tensor.shape) == 4
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
    graph.outputs = read_into(graph, functional, values, training)
    return graph


def as_functional(model: keras.Model) -> Any:
    """The functional form of a model.

    Raises:
        UnsupportedLayerError: the model has none.
    """
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


def read_into(graph: Graph, functional: Any, inputs: list[int], training: bool) -> list[int]:
    """Adds the layers of a model to a graph; gives the values of its outputs."""
    known = {id(t): v for t, v in zip(functional.inputs, inputs, strict=True)}
    for depth in sorted(functional._nodes_by_depth, reverse=True):
        for node in functional._nodes_by_depth[depth]:
            if node.is_input or not node.arguments.keras_tensors:
                continue
            arguments = [known[id(t)] for t in node.arguments.keras_tensors]
            # As in Keras, `training` of the model's call overrides that of a layer's call.
            outputs = _read_layer(graph, node.operation, arguments, training)
            for tensor, value in zip(node.output_tensors, outputs, strict=True):
                known[id(tensor)] = value
    return [known[id(t)] for t in functional.outputs]


def _read_layer(graph: Graph, layer: Any, inputs: list[int], training: bool) -> list[int]:
    if isinstance(layer, keras.Model):
        return read_into(graph, as_functional(layer), inputs, training)
    first = len(graph.nodes)
    value = rules.find(layer)(layer, graph, inputs, training)
    kind = _kind(layer)
    for step, node in enumerate(graph.nodes[first:]):
        graph.nodes[first + step] = replace(node, kind=(*kind, step))
    return [value]


_OF_NO_EFFECT = ("name", "trainable", "_initializer", "_regularizer", "_constraint")


def _kind(layer: Any) -> tuple[Any, ...]:
    """What decides how a layer computes; a layer that is not Keras' own may hold more than its config says."""
    if not type(layer).__module__.startswith("keras."):
        return (id(layer),)
    config = {k: v for k, v in layer.get_config().items() if not k.endswith(_OF_NO_EFFECT)}
    return type(layer).__name__, json.dumps(config, sort_keys=True, default=repr)

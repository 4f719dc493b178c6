"""Reading a Keras model into a graph of nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfbig.errors import UnsupportedLayerError
from tfbig.network import blocks, instances, rules, tokens, written_attention
from tfbig.network.graph import Graph
from tfbig.network.rules import constant_images
from tfbig.network.rules.nodes import cast
from tfbig.system import keras_internals


def read(
    model: keras.Model,
    training: bool | None,
    input_dtypes: list[str] | None = None,
    order: tuple[int, ...] | None = None,
) -> Graph:
    """Read a model into a graph.

    Args:
        model: A built model; every layer that works on images needs a rule.
        training: Whether BatchNormalization uses the statistics of the image and dropout is active; None for
            the `training` argument of each layer call in the model.
        input_dtypes: Element type in which each input will arrive; by default that of the model.
        order: Order of the spatial axes, the one to cut first, see `longest_first`; by default that of the model.

    Returns:
        The graph, with the inputs and outputs of the model. Its first weights are the trainable variables of the
        model, in their order, so that gradients by weight are those that an optimizer expects.

    Raises:
        UnsupportedLayerError: A layer has no rule or is channels-first, or a `call` cannot be read.
    """
    functional = as_functional(model, bool(training))
    graph = Graph(spatial=_spatial(functional, model.name), order=order)
    graph.weights = list(model.trainable_variables)
    values = []
    for position, tensor in enumerate(functional.inputs):
        image = len(tensor.shape) == graph.spatial + 2
        if image and tensor.shape[-1] is None:
            raise UnsupportedLayerError(
                f"input '{tensor.name}' of '{model.name}' has no known channels on its last axis, where they must be; "
                "give keras.Input a known C, and build the model with data_format='channels_last'."
            )
        expected = keras.backend.standardize_dtype(tensor.dtype)
        arrives = input_dtypes[position] if input_dtypes else expected
        channels = int(tensor.shape[-1]) if image else 0
        value = graph.input(tensor.name, image, channels, arrives if image else None)
        values.append(_as_expected(graph, value, arrives, expected))
    outputs = [
        rules.tokens.as_output(graph, constant_images.in_full(graph, v))
        for v in read_into(graph, functional, values, training)
    ]
    graph.outputs = [_copy(graph, v) if v in graph.inputs else v for v in outputs]
    if graph.tokens and order is not None:  # tokens are in the order of the rows
        return read(model, training, input_dtypes)
    return graph


def _as_expected(graph: Graph, value: int, arrives: str, expected: str) -> int:
    """Return an input in the element type of the model, as Keras converts it before the first layer.

    Without a cast if all numbers stay the same, as from uint8 to float32: a layer then casts to its own type at once.
    """
    source, target = (tf.as_dtype(name).as_numpy_dtype for name in (arrives, expected))
    if np.can_cast(source, target, "safe"):
        return value
    if graph.values[value].image:
        return cast(graph, value, expected)
    name = f"{graph.values[value].name}/cast"
    return graph.whole(name, lambda x, w: tf.cast(x[0], expected), [value])


def longest_first(size: Sequence[int]) -> tuple[int, ...] | None:
    """Return the order of the spatial axes that cuts the longest; None if that is the first.

    Strips span the other axes in full, so cutting the longest axis gives the smallest strip of one row.
    """
    longest = max(range(len(size)), key=lambda i: size[i])
    if size[longest] == size[0]:
        return None
    return (longest, *(i for i in range(len(size)) if i != longest))


def _copy(graph: Graph, value: int) -> int:
    """Add a copy of an input that is also an output."""
    spec = graph.values[value]
    if not spec.image:
        return graph.whole(f"{spec.name}/output", lambda x, w: tf.identity(x[0]), [value])
    return graph.local(
        f"{spec.name}/output",
        lambda x, w, strip: tf.identity(x[0]),
        [value],
        spec.channels,
        spec.dtype or "float32",
        cheap=True,
    )


def _spatial(functional: Any, name: str) -> int:
    """Return the number of spatial axes: inputs with the most dimensions are images, the others whole values."""
    spatial = max(len(t.shape) for t in functional.inputs) - 2
    if not 1 <= spatial <= 3:
        shapes = [t.shape for t in functional.inputs]
        raise UnsupportedLayerError(
            f"'{name}' has no image among its inputs, whose shapes are {shapes}; expected [N, rows, ..., C] with one, "
            "two or three spatial axes."
        )
    return spatial


def as_functional(model: keras.Model, training: bool = False) -> Any:
    """Return the functional form of a model.

    Args:
        model: The model.
        training: Mode in which a model with a `call` of its own is read.

    Raises:
        UnsupportedLayerError: The model is not built, or its `call` cannot be read.
    """
    sequential = isinstance(model, keras.Sequential)
    if sequential and not model.built:
        raise UnsupportedLayerError(
            f"Sequential model '{model.name}' is not built; call model.build(input_shape) first."
        )
    graph = keras_internals.functional_of(model) if sequential else model
    has_graph = keras_internals.has_graph(graph)
    if blocks.is_own(model):
        structure = keras_internals.input_structure(graph) if has_graph else None
        return _read_model(model, structure, training)
    if not has_graph:
        raise UnsupportedLayerError(
            f"'{model.name}' ({type(model).__name__}) has neither a graph nor a `call` of its own; expected a "
            "functional, Sequential or subclassed model."
        )
    return graph


def _read_model(model: keras.Model, inputs: Any, training: bool) -> blocks.Block:
    """Return the operations of a model with a `call` of its own.

    Args:
        model: The model.
        inputs: Keras tensors that it was made from; None for a model that was built by calling it, which is read for
            images of any size if its `call` allows that.
        training: Whether it runs in training mode.
    """
    if inputs is not None:
        return _read_at(
            model, keras.tree.map_structure(lambda t: tuple(t.shape), inputs), 0, training
        )
    shapes = keras_internals.built_shapes(model)
    if shapes is None:
        raise UnsupportedLayerError(
            f"'{model.name}' ({type(model).__name__}) is not built, so its inputs are unknown; call it on an image "
            "first."
        )
    structure = list(shapes.values())
    structure = structure[0] if len(structure) == 1 else structure
    known = keras.tree.map_shape_structure(tuple, structure)
    rank = max(len(shape) for shape in _shapes(known))
    try:
        return _read_at(model, known, rank, training)
    except UnsupportedLayerError:  # it needs a size: that of the images that it was built with
        return _read_at(model, known, 0, training)


def _read_at(model: keras.Model, shapes: Any, free: int, training: bool) -> blocks.Block:
    """Return the operations of a model for inputs with these shapes; those of rank `free` have any size."""

    def tensor(shape: tuple[int | None, ...]) -> Any:
        side = [None] * (free - 2) if len(shape) == free else shape[1:-1]
        return keras.KerasTensor((None, *side, shape[-1]), model.compute_dtype, name="image")

    inputs = keras.tree.map_shape_structure(tensor, shapes)
    flat = keras.tree.flatten(inputs)
    slots = keras.tree.pack_sequence_as(inputs, [rules.Slot(i) for i in range(len(flat))])
    block = blocks.read(model, ((slots,), {}), flat, training)
    return replace(block, _inputs_struct=inputs)


def _shapes(structure: Any) -> list[tuple[int | None, ...]]:
    """Return the shapes in a structure of shapes."""
    found: list[tuple[int | None, ...]] = []
    keras.tree.map_shape_structure(found.append, structure)
    return found


def read_into(graph: Graph, functional: Any, inputs: list[int], training: bool | None) -> list[int]:
    """Add the layers of a model to a graph and return the values of its outputs."""
    value_of = {id(t): v for t, v in zip(functional.inputs, inputs, strict=True)}
    modes: dict[int, bool] = {}
    if isinstance(functional, blocks.Block):
        modes = functional.modes
        value_of |= {id(t): _weight(graph, t, v) for t, v in functional.weights}
    nodes = [node for node in keras_internals.nodes(functional) if not node.is_input]
    attentions = written_attention.find(nodes, functional.outputs)
    replaced = {id(call): found for found in attentions for call in found.calls}
    for node in nodes:
        found = replaced.get(id(node))
        if found is not None and node is not found.calls[-1]:
            continue
        if found is not None and all(id(t) in value_of for t in found.inputs):
            read = _read_written(graph, found, value_of, _mode_of(found, modes, training))
            if read is not None:
                value_of[id(found.output)] = read
                continue
        for each in (node,) if found is None else found.calls:
            if all(id(t) in value_of for t in each.arguments.keras_tensors):
                value_of |= read_node(graph, each, value_of, modes.get(id(each), training))
    return [value_of[id(t)] for t in functional.outputs]


def _mode_of(
    found: written_attention.Found, modes: Mapping[int, bool], training: bool | None
) -> bool | None:
    """Return whether the dropout of an attention that a model writes out runs in training mode."""
    for call in found.calls:
        if isinstance(call.operation, keras.layers.Dropout):
            given = call.arguments.kwargs.get("training")
            return modes.get(id(call), given if training is None else training)
    return training


def _read_written(
    graph: Graph, found: written_attention.Found, value_of: Mapping[int, int], training: bool | None
) -> int | None:
    """Add an attention that the model writes out, between tokens; None if its operations are to be read one by one."""
    values = [value_of[id(t)] for t in found.inputs]
    if not all(graph.values[v].image for v in values):
        return None
    first = len(graph.images.nodes)
    slots = tuple(rules.Slot(i) for i in range(len(values)))
    try:
        (result,) = read_call(
            graph, found.operation, values, found.inputs, [found.output], training, (slots, {})
        )
    except UnsupportedLayerError:
        del graph.images.nodes[first:]
        return None
    return result


def _weight(graph: Graph, tensor: Any, variable: Any) -> int:
    """Add a variable, or a constant, as a whole value, in the element type of a Keras tensor."""
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if not isinstance(variable, keras.Variable):
        return graph.whole(tensor.name, lambda x, w: tf.cast(variable, dtype), [])
    return graph.whole(variable.path, lambda x, w: tf.cast(w[0], dtype), [], [variable])


def read_node(
    graph: Graph, node: Any, value_of: Mapping[int, int], training: bool | None
) -> dict[int, int]:
    """Add a call in a functional model to a graph.

    Args:
        graph: Graph to add nodes to.
        node: The call, as `keras_internals.nodes` yields it.
        value_of: Values by the `id` of Keras tensors, at least those of the inputs of the call.
        training: As for `read_call`.

    Returns:
        Values by the `id` of the Keras tensors that the call returns.
    """
    specs, outputs, slots = node.arguments.keras_tensors, node.output_tensors, count()
    arguments = node.arguments.convert(
        lambda a: rules.Slot(next(slots)) if isinstance(a, keras.KerasTensor) else a
    )
    values = [value_of[id(t)] for t in specs]
    results = read_call(graph, node.operation, values, specs, outputs, training, arguments)
    return {id(t): v for t, v in zip(outputs, results, strict=True)}


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
    """Add one call of a layer, an operation or a nested model to a graph.

    Args:
        graph: Graph to add nodes to.
        layer: Layer, operation or model that is called.
        values: Values of the inputs.
        specs: Keras tensors of the inputs.
        outputs: Keras tensors of the outputs.
        training: Whether the layer runs in training mode; None to use the `training` argument of the call (False
            without one). As in Keras, the mode of the model overrides that argument.
        arguments: `(args, kwargs)` with slots for the inputs; by default the input, or the list of inputs.
        kind: Class whose rule applies; by default the class of the layer.

    Returns:
        The values of the outputs.
    """
    if arguments is None:
        slots = [rules.Slot(i) for i in range(len(values))]
        arguments = ((slots if len(slots) > 1 else slots[0],), {})
    training = arguments[1].get("training") if training is None else training
    graph = tokens.of_call(graph, values)
    images = any(graph.values[v].image for v in values)
    if images and isinstance(layer, instances.Instances):
        return _read_instances(graph, layer, values[0], specs[0], training)
    own = images and _reads_inside(graph, layer, values, kind)
    if images and isinstance(layer, keras.Model) and not own:
        return read_into(graph.images, as_functional(layer), list(values), training)
    if images and isinstance(layer, keras.Layer):
        values = [_cast(graph, v, layer.compute_dtype) for v in values]
    elif images:
        values = [
            v if v not in graph.inputs else _cast(graph, v, t.dtype)
            for v, t in zip(values, specs, strict=True)
        ]
        specs, outputs = _computed_specs(graph, layer, values, specs, outputs, arguments)
    call = rules.Call(
        layer, graph, tuple(values), tuple(specs), tuple(outputs), bool(training), arguments, kind
    )
    if own:
        return _read_inside(call)
    first = len(graph.nodes)
    apply = instances.apply if _holds_instances(graph, values) else rules.apply
    results = apply(call) if images else rules.on_whole_values(call)
    computations = {channels: _computation(call, channels) for channels in (False, True)}
    for step, node in enumerate(graph.nodes[first:]):
        computation = computations[getattr(node.op, "any_channels", False)]
        node_kind = (*computation, type(node.op).__name__, node.name.partition("/")[2], step)
        graph.nodes[first + step] = replace(node, kind=node_kind)
    return results


def _reads_inside(graph: Graph, layer: Any, values: Sequence[int], kind: type | None) -> bool:
    """Return whether a layer or model is read by calling it: it has no rule, and no graph of its own."""
    if not isinstance(layer, keras.Layer) or _holds_instances(graph, values):
        return False
    if isinstance(layer, keras.Model):
        return blocks.is_own(layer)
    return not rules.has(layer, kind) and not rules.is_augmentation(layer)


def _read_inside(call: rules.Call) -> list[int]:
    """Add the operations inside a layer or model, as its `call` computes them.

    Raises:
        UnsupportedLayerError: The `call` cannot be read, or one of the operations cannot run strip by strip.
    """
    rules.check_settings(call)
    graph, layer = call.graph, call.layer
    inputs = [
        keras.KerasTensor(t.shape, graph.values[v].dtype or t.dtype)
        for v, t in zip(call.inputs, call.specs, strict=True)
    ]
    try:
        block = blocks.read(layer, call.arguments, inputs, call.training)
    except UnsupportedLayerError:
        if not blocks.is_own(layer):
            rules.find(layer)  # says what to do in place of a layer of Keras without a rule
        if _ends_images(call):
            return rules.pooling.read_whole(call)
        raise
    try:
        return read_into(graph.images, block, list(call.inputs), call.training)
    except UnsupportedLayerError as error:
        problem = f"inside layer '{layer.name}' ({type(layer).__name__}): {error.problem}"
        raise UnsupportedLayerError(problem, *error.advice, **error.values) from error


def _ends_images(call: rules.Call) -> bool:
    """Return whether a layer makes vectors of images of fixed size, so that it can be called on whole images."""
    vectors = all(len(spec.shape) < call.rank for spec in call.outputs)
    return vectors and bool(call.images) and rules.pooling.has_fixed_size(call)


def _read_instances(
    graph: Graph, layer: Any, bag: int, spec: Any, training: bool | None
) -> list[int]:
    """Add the layers of a model that is applied to every instance of a bag."""
    shape = tuple(spec.shape[2:])
    if None in shape:
        raise UnsupportedLayerError(
            f"layer '{layer.name}' receives instances of shape {shape}; expected a fully known shape, as in "
            "keras.Input((None, 224, 224, 3))."
        )
    graph.instance_shapes[bag] = shape
    graph.norm_slice = layer.norm_slice
    graph.at_once = 1
    return read_into(graph, as_functional(layer.model), [bag], training)


def _computed_specs(
    graph: Graph, operation: Any, values: Sequence[int], specs: Any, outputs: Any, arguments: Any
) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return the Keras tensors of the inputs and outputs of an operation with the element types that it computes in.

    Keras' own are float32 after `keras.ops.logsumexp` of any image.
    """
    pairs = [(graph.values[v].dtype, t) for v, t in zip(values, specs, strict=True)]
    if all(dtype in (None, t.dtype) for dtype, t in pairs):
        return specs, outputs
    specs = [keras.KerasTensor(t.shape, dtype or t.dtype) for dtype, t in pairs]
    args, options = keras.tree.map_structure(
        lambda a: specs[a.position] if isinstance(a, rules.Slot) else a, arguments
    )
    return specs, keras.tree.flatten(operation.compute_output_spec(*args, **options))


def _holds_instances(graph: Graph, values: Sequence[int]) -> bool:
    return any(v in graph.instance_shapes for v in values)


def _cast(graph: Graph, value: int, dtype: str) -> int:
    """Add a cast of a value to another element type; instances keep their shape."""
    result = cast(graph, value, dtype)
    if value in graph.instance_shapes:
        graph.instance_shapes[result] = graph.instance_shapes[value]
    return result


_IRRELEVANT = ("name", "trainable", "_initializer", "_regularizer", "_constraint")
"""Ends of config keys that do not change what a layer computes."""


def _computation(call: rules.Call, any_channels: bool) -> tuple[Any, ...]:
    """Return a key that is equal for calls that compute the same; unique for custom layers.

    A custom layer may depend on more than its config.

    Args:
        call: The call.
        any_channels: Whether calls that differ in numbers of channels only have the same key.
    """
    layer = call.layer
    constants = [a for a in keras.tree.flatten(call.arguments) if not isinstance(a, rules.Slot)]
    plain = all(isinstance(a, (bool, int, float, str, type(None))) for a in constants)
    holds_more = isinstance(layer, (keras.Model, keras.layers.Normalization))
    function = getattr(layer, "activation", None)
    custom = not str(getattr(function, "__module__", "keras.")).startswith("keras.")
    if holds_more or custom or not plain or not type(layer).__module__.startswith("keras."):
        return (object(),)
    irrelevant = (*_IRRELEVANT, "filters") if any_channels else _IRRELEVANT
    try:
        config = {k: v for k, v in layer.get_config().items() if not k.endswith(irrelevant)}
    except NotImplementedError:  # made with a dtype policy, Identity cannot tell its config
        return (object(),)
    inputs = [call.graph.values[i] for i in call.inputs]
    return (
        type(layer).__name__,
        json.dumps(config, sort_keys=True, default=repr),
        call.training,
        repr(call.arguments),
        tuple((v.image, None if any_channels else v.channels, v.dtype) for v in inputs),
        tuple(call.graph.channel_shapes.get(i) for i in call.inputs),
        tuple(call.graph.tokens.get(i) for i in call.inputs),
        tuple(
            None if v.image else tuple(t.shape[:-1])
            for v, t in zip(inputs, call.specs, strict=True)
        ),
        tuple(tuple(t.shape) for t in call.specs) if call.graph is not call.graph.images else None,
    )

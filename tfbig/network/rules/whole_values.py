"""Layers on whole values (vectors, pooled images, the head of a model), the variables they change, and random seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfbig.network.graph import Graph
from tfbig.network.rules.call import Call


def on_whole_values(call: Call) -> list[int]:
    """Add a node that calls a layer or model itself, and return the values of its outputs.

    In training, variables that the call changes (moving statistics) become updates of the graph, and every random
    generator of the layer starts from a seed of the graph, as in plain Keras.
    """
    graph, weights, seeds = call.graph, call.variables, add_seeds(call)
    generators = call.generators if call.training else []
    moving = _changeable(call)
    current = [_current(graph, v) for v in moving]
    already_updated = {
        id(v): value for v, value in zip(moving, current, strict=True) if value is not None
    }
    weights = [v for v in weights if id(v) not in already_updated]
    first, second = len(call.inputs), len(call.inputs) + len(seeds)

    def run(x: list[Any], w: list[tf.Tensor]) -> Any:
        seeded = seed_state(generators, x[first:second])
        changed = [v for v in moving if id(v) in already_updated]
        state = [*zip(weights, w, strict=True), *zip(changed, x[second:], strict=True), *seeded]
        result, scope = call.run(x[:first], state)
        updated = [scope.get_current_value(v) for v in moving]
        updated = [v.value if u is None else u for u, v in zip(updated, moving, strict=True)]
        results = (*keras.tree.flatten(result), *updated)
        return results if len(results) > 1 else results[0]

    inputs = [*call.inputs, *seeds, *already_updated.values()]
    value = call.whole(run, inputs, weights)
    count = len(call.outputs)
    for position, variable in enumerate(moving, count):
        graph.updates[:] = [u for u in graph.updates if u[0] is not variable]
        graph.updates.append((variable, value, _item(position)))
    if count + len(moving) == 1:
        return [value]
    return [call.whole(_pick(i), [value], name=f"output_{i}") for i in range(count)]


def add_seeds(call: Call) -> list[int]:
    """Add a seed for each random generator of a layer in training mode, drawn again in every step."""
    if not call.training:
        return []
    return [add_seed(call, generator) for generator in call.generators]


def add_seed(call: Call, generator: Any) -> int:
    """Add a value that is `generator.next()` in every step."""
    value = call.graph.input(f"{call.layer.name}/seed", False)
    call.graph.seeds.append((value, generator))
    return value


def seed_state(generators: list[Any], seeds: list[tf.Tensor]) -> list[tuple[Any, tf.Tensor]]:
    """Return the `(variable, tensor)` pairs with which the generators draw these seeds next."""
    pairs = zip(generators, seeds, strict=True)
    return [(g.state, tf.cast(s, g.state.dtype)) for g, s in pairs]


def _changeable(call: Call) -> list[Any]:
    """Return the variables that the call may change."""
    if not call.training:
        return []
    states = {id(g.state) for g in call.generators}
    variables = getattr(call.layer, "non_trainable_variables", [])
    return [v for v in variables if id(v) not in states]


def _current(graph: Graph, variable: Any) -> int | None:
    """Return the value of a variable after the calls so far; None if none changed it (or it is a counter)."""
    updates = [(value, f) for updated, value, f in graph.updates if updated is variable]
    if not updates or not keras.backend.is_float_dtype(variable.dtype):
        return None
    value, function = updates[-1]
    name = f"{graph.values[value].name}/{variable.name}"
    return graph.whole(name, lambda x, w: function(w[0], x[0]), [value], [variable])


def _item(position: int) -> Callable[..., Any]:
    return lambda old, new: tf.cast(new[position], old.dtype)


def _pick(position: int) -> Callable[..., Any]:
    return lambda x, w: x[0][position]

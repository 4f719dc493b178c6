"""Traces what sweeps do once per kind of sweep, not once per sweep.

Deep networks repeat themselves, and tracing costs seconds. Two sweeps whose nodes are of the same kinds, connected
alike, compute the same function of their tensors; it is traced for the first and called for the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record

from tfbig.engine.sweep_state import Part
from tfbig.network.graph import Graph, Node
from tfbig.plan.sweeps import Sweep

Structure = Any


class Canonical:
    """A sweep by positions instead of value ids.

    Attributes:
        ids: value id by position.
        slots: position in `Graph.weights` by position in the sweep.
        graph: the values and nodes of the sweep alone.
        sweep: the sweep, by position.
        key: equal for sweeps that do the same.
    """

    def __init__(self, graph: Graph, sweep: Sweep) -> None:
        self.ids = list(
            dict.fromkeys([*sweep.reads, *(i for n in sweep.nodes for i in (*n.inputs, n.output))])
        )
        self.slots = list(dict.fromkeys(w for n in sweep.nodes for w in n.weights))
        self.place = {v: p for p, v in enumerate(self.ids)}
        nodes = [self._node(n) for n in sweep.nodes]
        self.graph = Graph(
            values=[replace(graph.values[v], id=p) for p, v in enumerate(self.ids)],
            nodes=nodes,
            inputs=[p for p, v in enumerate(self.ids) if v in graph.inputs],
            spatial=graph.spatial,
            at_once=graph.at_once,
        )
        reads, writes, observed = (
            tuple(self.place[v] for v in values)
            for values in (sweep.reads, sweep.writes, sweep.observed)
        )
        self.sweep = Sweep(sweep.index, tuple(nodes), reads, writes, observed, ())
        values = [(v.image, v.channels, v.dtype) for v in self.graph.values]
        links = [
            (type(n.op).__name__, n.kind or id(n.op), n.inputs, n.output, n.weights) for n in nodes
        ]
        self.key = repr(
            (
                links,
                values,
                reads,
                writes,
                observed,
                self.graph.inputs,
                graph.spatial,
                graph.at_once,
            )
        )

    def _node(self, node: Node) -> Node:
        return replace(
            node,
            inputs=tuple(self.place[i] for i in node.inputs),
            output=self.place[node.output],
            weights=tuple(self.slots.index(w) for w in node.weights),
        )

    def named(self, values: dict[int, Any]) -> dict[int, Any]:
        """The entries of values of the sweep, by position."""
        return {self.place[v]: t for v, t in values.items() if v in self.place}


class Functions:
    """Functions of a `Part`, each traced once for parts of the same kind.

    Args:
        inline: make one graph of all calls. By itself a function takes its arguments to the device that it runs on,
            images of another device among them; without, every call would be optimised and placed again.
    """

    def __init__(self, inline: bool = False) -> None:
        self._inline = inline
        self._traced: dict[Any, tuple[Any, list[Structure]]] = {}

    def call(self, key: Any, function: Callable[[Part], Structure], part: Part) -> Structure:
        """`function(part)`; the trace of another function with the same key may serve for it."""
        fields = vars(part)
        flat = tf.nest.flatten(fields)
        specs = tf.nest.flatten({name: _specs(name, field) for name, field in fields.items()})
        shape = repr(tf.nest.map_structure(lambda _: 0, fields))
        whole = (key, shape, tuple(map(repr, specs)))
        if whole not in self._traced:
            self._traced[whole] = _trace(function, fields, specs, self._inline)
        traced, structure = self._traced[whole]
        with record.stop_recording():  # gradients are the engine's own
            found = traced(*flat)
        return tf.nest.pack_sequence_as(structure[0], tf.nest.flatten(found))


def _trace(function: Any, fields: dict[str, Any], specs: list[tf.TensorSpec], inline: bool) -> Any:
    structure: list[Structure] = []

    def run(*flat: tf.Tensor) -> list[tf.Tensor]:
        found = function(Part(**tf.nest.pack_sequence_as(fields, flat)))
        structure[:] = [found]
        return tf.nest.flatten(found)

    attributes = {} if inline else {"_noinline": True}
    traced = tf.function(run, autograph=False, experimental_attributes=attributes)
    return traced.get_concrete_function(*specs), structure


def _specs(name: str, field: Structure) -> Structure:
    """Images of all sizes share a trace: of their shape only N and C count."""
    images = name in ("images", "stores", "written", "d_images")

    def spec(t: tf.Tensor) -> tf.TensorSpec:
        shape = t.shape
        if images and shape.rank:
            shape = [shape[0], *[None] * (shape.rank - 2), shape[-1]][: shape.rank]
        return tf.TensorSpec(shape, t.dtype)

    return tf.nest.map_structure(spec, field)

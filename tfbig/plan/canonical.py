"""Sweeps by position, so that sweeps that compute the same can be recognised."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tfbig.network.graph import Graph, Node
from tfbig.plan.sweeps import Sweep


class Canonical:
    """A sweep with positions instead of value ids.

    Args:
        graph: Graph of the program.
        sweep: A sweep of this graph.

    Attributes:
        ids: Value id by position.
        position: Position by value id.
        slots: Position in `Graph.weights` by position in the sweep.
        graph: Graph of the values and nodes of the sweep only.
        sweep: The sweep, by position.
        any_channels: Whether a trace of the sweep serves sweeps that differ from it in numbers of channels only.
        key: Equal for sweeps that compute the same function.
    """

    def __init__(self, graph: Graph, sweep: Sweep) -> None:
        self.ids = list(
            dict.fromkeys([*sweep.reads, *(i for n in sweep.nodes for i in (*n.inputs, n.output))])
        )
        self.slots = list(dict.fromkeys(w for n in sweep.nodes for w in n.weights))
        self.position = {v: p for p, v in enumerate(self.ids)}
        nodes = [self._node(n) for n in sweep.nodes]
        self.any_channels = all(n.op.any_channels for n in nodes)
        self.graph = Graph(
            values=[replace(graph.values[v], id=p) for p, v in enumerate(self.ids)],
            nodes=nodes,
            inputs=[p for p, v in enumerate(self.ids) if v in graph.inputs],
            spatial=graph.spatial,
            at_once=graph.at_once,
            any_channels=self.any_channels,
        )
        reads, writes, observed = (
            tuple(self.position[v] for v in values)
            for values in (sweep.reads, sweep.writes, sweep.observed)
        )
        self.sweep = Sweep(
            sweep.index,
            tuple(nodes),
            reads,
            writes,
            observed,
            (),
            axes=sweep.axes,
            skips=sweep.skips,
            single=sweep.single,
            even=sweep.even,
            compiles=sweep.compiles,
        )
        values = [(v.image, self.graph.traced_channels(v.id), v.dtype) for v in self.graph.values]
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
                sweep.axes,
                sweep.skips,
                sweep.single,
                sweep.even,
                sweep.compiles,
                graph.spatial,
                graph.at_once,
            )
        )

    def _node(self, node: Node) -> Node:
        return replace(
            node,
            inputs=tuple(self.position[i] for i in node.inputs),
            output=self.position[node.output],
            weights=tuple(self.slots.index(w) for w in node.weights),
        )

    def named(self, values: dict[int, Any]) -> dict[int, Any]:
        """Return the entries for values of the sweep, by position instead of value id."""
        return {self.position[v]: t for v, t in values.items() if v in self.position}

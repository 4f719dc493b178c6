"""What the nodes of a sweep compute once for all of its strips (`Local.prepare`), and the gradients of that."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import tensorflow as tf

from tfbig.engine.sweep_tensors import Structure, SweepValues
from tfbig.network.graph import Node
from tfbig.ops import autodiff
from tfbig.plan.sweeps import Sweep


class Preparation:
    """Preparation of a sweep: what its nodes compute once before the strips, and the gradients of that.

    Args:
        sweep: The sweep.
        learned: Values that need a gradient.
        trained: Weights that need a gradient.
    """

    def __init__(
        self, sweep: Sweep, learned: Collection[int] = (), trained: Collection[int] = ()
    ) -> None:
        self.nodes = [n for n in sweep.locals if n.op.prepare]
        direct = [n for n in sweep.locals if not n.op.prepare]
        self._direct = _Sources(direct, learned, trained)
        self._inner = _Sources(self.nodes, learned, trained)
        self._learned = {n.output for n in self.nodes if self._inner.has(n)}

    def prepare(self, values: SweepValues) -> dict[int, Structure]:
        """Return what the nodes compute, by their output.

        Args:
            values: Statistics and weights of the sweep.
        """
        return {n.output: _prepared(n, values) for n in self.nodes}

    def sources_of(self, values: SweepValues) -> tuple[Structure, ...]:
        """Return whose gradients a strip computes: wholes, weights, and what is prepared, each by position.

        Args:
            values: Statistics and weights of the sweep, and what is prepared.
        """
        prepared = {v: t for v, t in values.prepared.items() if v in self._learned}
        return *self._direct.of(values), prepared

    def pull(
        self, values: SweepValues, d_prepared: dict[int, Structure]
    ) -> tuple[dict[int, Any], dict[int, Any]]:
        """Return the gradients of wholes and weights that come from what is prepared from them.

        Args:
            values: Statistics and weights of the sweep.
            d_prepared: Gradients of what is prepared, summed over the strips.
        """
        sources = self._inner.of(values)
        with tf.GradientTape() as tape:
            tape.watch(autodiff.floats(sources))
            prepared = self.prepare(values)
        outputs = {v: prepared[v] for v in d_prepared}
        d_wholes, d_weights = autodiff.gradients(tape, outputs, d_prepared, sources)
        return d_wholes, d_weights


def _prepared(node: Node, values: SweepValues) -> Structure:
    wholes = [values.wholes[i] for i in node.inputs if i in values.wholes]
    return node.op.prepare(wholes, [values.weights[w] for w in node.weights])


class _Sources:
    """The wholes and weights that some nodes use and that need a gradient, by position in the sweep."""

    def __init__(
        self, nodes: list[Node], learned: Collection[int], trained: Collection[int]
    ) -> None:
        inputs = {i for n in nodes for p, i in enumerate(n.inputs) if p not in n.image_positions}
        self.values = inputs.intersection(learned)
        self.weights = {w for n in nodes for w in n.weights if w in trained}

    def of(self, values: SweepValues) -> tuple[dict[int, Any], dict[int, Any]]:
        """Return them."""
        wholes = {i: t for i, t in values.wholes.items() if i in self.values}
        return wholes, {w: values.weights[w] for w in sorted(self.weights)}

    def has(self, node: Node) -> bool:
        """Return whether a node has any of them."""
        return not self.values.isdisjoint(node.inputs) or not self.weights.isdisjoint(node.weights)

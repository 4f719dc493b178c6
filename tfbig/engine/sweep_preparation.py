"""What the nodes of a sweep compute once for all of its strips (`Local.prepare`), and the gradients of that."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import tensorflow as tf

from tfbig.engine.sweep_tensors import Structure, SweepValues
from tfbig.network.graph import Node
from tfbig.ops import autodiff
from tfbig.plan.sweeps import Sweep


def prepare(sweep: Sweep, values: SweepValues) -> dict[int, Structure]:
    """Return what the nodes of a sweep compute once for all strips, by their output.

    Args:
        sweep: The sweep.
        values: Its statistics and weights.
    """
    return {n.output: _prepared(n, values) for n in sweep.locals if n.op.prepare}


def _prepared(node: Node, values: SweepValues) -> Structure:
    wholes = [values.wholes[i] for i in node.inputs if i in values.wholes]
    return node.op.prepare(wholes, [values.weights[w] for w in node.weights])


class Preparation:
    """The tensors that are prepared before the strips of a backward sweep, and the gradients that are summed over them.

    Args:
        sweep: The sweep.
        values: Its statistics and weights.
        learned: Values that need a gradient.
        trained: Weights that need a gradient.

    Attributes:
        tensors: What the nodes have prepared, by their output.
    """

    def __init__(
        self,
        sweep: Sweep,
        values: SweepValues,
        learned: Collection[int],
        trained: Collection[int],
    ) -> None:
        preparing = [n for n in sweep.locals if n.op.prepare]
        direct = [n for n in sweep.locals if not n.op.prepare]
        wholes = values.wholes.keys() & learned
        self._direct = _Sources(direct, wholes, trained)
        self._inner = _Sources(preparing, wholes, trained)
        self._sources = self._inner.of(values)
        with tf.GradientTape() as self._tape:
            self._tape.watch(autodiff.floats(self._sources))
            self.tensors = prepare(sweep, values)
        self._learned = {n.output for n in preparing if self._inner.has(n)}

    def sources_of(self, values: SweepValues) -> tuple[Structure, ...]:
        """Return whose gradients a strip computes: wholes, weights, and what is prepared, each by position."""
        prepared = {v: t for v, t in values.prepared.items() if v in self._learned}
        return *self._direct.of(values), prepared

    def pull(
        self, d_wholes: dict[int, Any], d_weights: dict[int, Any], d_prepared: dict[int, Any]
    ) -> tuple[dict[int, Any], dict[int, Any]]:
        """Return the gradients of the wholes and weights of a sweep.

        Args:
            d_wholes: Gradients of the wholes that strips use, summed over the strips.
            d_weights: Those of the weights.
            d_prepared: Those of what is prepared.
        """
        outputs = {v: self.tensors[v] for v in d_prepared}
        pulled = autodiff.gradients(self._tape, outputs, d_prepared, self._sources)
        sums = dict(d_wholes), dict(d_weights)
        for known, terms in zip(sums, pulled, strict=True):
            for position, term in terms.items():
                autodiff.accumulate(known, position, term)
        return sums


class _Sources:
    """The wholes and weights that some nodes use and that need a gradient, by position in the sweep."""

    def __init__(
        self, nodes: list[Node], wholes: Collection[int], trained: Collection[int]
    ) -> None:
        self.values = {i for n in nodes for i in n.inputs if i in wholes}
        self.weights = {w for n in nodes for w in n.weights if w in trained}

    def of(self, values: SweepValues) -> tuple[dict[int, Any], dict[int, Any]]:
        """Return them."""
        wholes = {i: t for i, t in values.wholes.items() if i in self.values}
        return wholes, {w: values.weights[w] for w in sorted(self.weights)}

    def has(self, node: Node) -> bool:
        """Return whether a node has any of them."""
        return not self.values.isdisjoint(node.inputs) or not self.weights.isdisjoint(node.weights)
